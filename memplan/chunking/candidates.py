"""Candidates for regions, and roughly what each would do to memory."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from math import lcm, prod
from operator import getitem
from typing import NamedTuple

from memplan.chunking.region import call_of, defect
from memplan.chunking.rules.flow import Flow, Slice
from memplan.chunking.rules.table import flow
from memplan.chunking.rules.totals import Accumulation, pieces, place_of
from memplan.chunking.timing import PRODUCTS, is_product, multiplications
from memplan.graph.liveness import Beside, Profile, lifetimes, owners, profile, roots_of
from memplan.graph.program import Meta, Op, Program, Ref, Step, refs, results
from memplan.graph.workspace import temporaries

MAX_COPIED = 12  # operators that run both whole and in a loop, in one region

# Too much arithmetic to run twice instead of keeping the result.
DEAR = (*PRODUCTS, "attention", "gather", "sort", "topk")


@dataclass
class Wish:
    """What the users of a value need of it: slices, or all of it."""

    slices: list[Slice] = field(default_factory=list)
    whole: bool = False


@dataclass(frozen=True)
class Candidate:
    """A region without a step.

    first, last: positions in the program. slices, copied: as in Region. hoisted:
    positions in between that run before the loop.
    """

    first: int
    last: int
    slices: dict[str, Slice]
    copied: frozenset[str]
    hoisted: frozenset[int]
    extent: int
    granule: int


class Landscape:
    """A program with the facts that the search uses repeatedly."""

    def __init__(
        self,
        program: Program,
        errors: Counter[str],
        beside: Beside = temporaries,
    ) -> None:
        """errors: counts the slices for which a rule failed, by operator and error.
        beside: bytes that operators need of their own."""
        self.program, self._errors = program, errors
        self.profile: Profile = profile(program, beside=beside)
        self.last, self.owned = lifetimes(program)
        self.maker = {
            name: i for i, step in enumerate(program.ops) for name in results(step)
        }
        self.made = [owners(program, step) for step in program.ops]
        self.extra = [
            beside(program, step) if isinstance(step, Op) else 0 for step in program.ops
        ]
        self.products = {
            i: multiplications(program, step)
            for i, step in enumerate(program.ops)
            if isinstance(step, Op) and is_product(step)
        }
        self.given = set(refs(program.outputs))
        self.takes = [step.operands() for step in program.ops]
        self.users: dict[str, list[int]] = {}
        for i, names in enumerate(self.takes):
            for name in dict.fromkeys(names):
                self.users.setdefault(name, []).append(i)
        self.root_uses: dict[str, list[int]] = {}
        for i, step in enumerate(program.ops):
            for name in (*self.takes[i], *results(step)):
                for root in roots_of(program, name):
                    uses = self.root_uses.setdefault(root, [])
                    if not uses or uses[-1] != i:
                        uses.append(i)
        self._flows: dict[tuple[object, ...], Flow | None] = {}
        # Candidates around a position with their weights, for any budget.
        self.weighed: dict[object, list[tuple[Candidate, Weight]]] = {}
        self._over: tuple[int, list[int]] = (-1, [])
        # Those that reach far, by where they end.
        self.far: dict[int, list[tuple[Candidate, Weight]]] = {}

    @functools.cached_property
    def waiting(self) -> list[int]:
        """Before each operator and after the last, bytes that were made and are needed
        later."""
        change = [0] * (len(self.program.ops) + 2)
        for root, size in self.owned.items():
            change[self.root_uses[root][0] + 1] += size
            change[self.last[root] + 1] -= size  # past the end, if it is a result
        return list(accumulate(change[:-1]))

    @property
    def candidates(self) -> int:
        """How many of them there are."""
        return sum(map(len, self.weighed.values()))

    def covered(self, first: int, last: int, budget: int) -> int:
        """Bytes above the budget, summed over the operators from `first` to `last`."""
        if self._over[0] != budget:
            over = (max(0, live - budget) for live in self.profile.live)
            self._over = budget, list(accumulate(over, initial=0))
        return self._over[1][last + 1] - self._over[1][first]

    def made_by(self, position: int) -> list[str]:
        """Names of the results of the step at a position."""
        return results(self.program.ops[position])

    def flow(self, op: Op, piece: Slice) -> Flow | None:
        """The operator's flow for a slice of its result, cached."""
        dim, ratio, *halo = piece
        key = (op.name, dim, ratio.numerator, ratio.denominator, *halo)  # hashed fast
        if key not in self._flows:
            self._flows[key] = self._checked(op, piece)
        return self._flows[key]

    def totals(self, op: Op) -> Iterator[Slice]:
        """The slices that an operator can add to a total."""
        for piece in pieces(call_of(self.program, op, "")):
            if self.flow(op, piece) is not None:
                yield piece

    def extent(self, position: int, end: Slice) -> int:
        """What a loop runs over that makes this slice of a result; 0 if none can."""
        op = self.program.ops[position]
        if not end.total:
            return int(self.program.metas[op.name].shape[end.dim])
        found = self.flow(op, end) if isinstance(op, Op) else None
        return found.size if isinstance(found, Accumulation) else 0

    def _checked(self, op: Op, piece: Slice) -> Flow | None:
        moving = self.program.moving
        if piece.dim in moving.get(op.name, ()) and not piece.total:
            return None
        try:
            found = flow(call_of(self.program, op, ""), piece)
        except Exception as error:  # a defect of one rule must not end the search
            self._errors[defect(op.key, error)] += 1
            return None
        if found is None:
            return None
        for name, need in zip(op.operands(), found.needs, strict=True):
            if need is not None and need.dim in moving.get(name, ()):
                return None
        return found


def ends(
    land: Landscape, peak: int, reach: int, totals: bool = False
) -> Iterator[tuple[int, Slice]]:
    """Positions at which a region around `peak` may end, and slices that it may end
    with: of results, or those that add to totals."""
    ops = land.program.ops
    for i in range(peak, min(len(ops), peak + reach)):
        op = ops[i]
        meta = land.program.metas.get(op.name)
        if not (isinstance(op, Op) and isinstance(meta, Meta)):
            continue  # a loop, or several results
        # A part of a value, as a view, leaves the loop alone: the rest is not kept.
        part = meta.bytes < land.owned.get(land.program.roots[op.name], 0)
        if not (land.made[i] or part or _last_part(ops, i)):
            continue
        if totals:
            yield from ((i, piece) for piece in land.totals(op))
        else:
            yield from ((i, Slice(d)) for d, size in enumerate(meta.shape) if size > 1)


def sweep(
    land: Landscape,
    last: int,
    end: Slice,
    first: int,
    copies: bool,
    within: Collection[int] = (),
) -> Iterator[Candidate]:
    """Regions that end with the slice `end` of the operator's result at `last`.

    The sweep follows slices backwards (the paper's backward search, §3.3) to the
    position `first`. Each operator that can be sliced begins a candidate. Operators
    that cannot, or whose users need different slices, run whole before the loop.
    copies: only regions in which cheap operators that are needed both ways run twice.
    within: only the widest regions that begin at or after one of these positions, or
    at the next before that makes something.
    """
    ops = land.program.ops
    wishes = {last: Wish([end])}
    slices: dict[str, Slice] = {}
    copied: set[str] = set()
    hoisted: set[int] = set()
    granule = 1
    extent = land.extent(last, end)
    begins = last

    def candidate() -> Candidate:
        return Candidate(
            begins,
            last,
            dict(reversed(slices.items())),
            frozenset(copied),
            frozenset(hoisted),
            extent,
            granule,
        )

    due = False
    for i in range(last, first - 1, -1):
        due = due or i + 1 in within
        if due and land.made[begins] and (copied or not copies):
            due = False
            yield candidate()
        wish = wishes.pop(i, None)
        if wish is None:
            continue
        op = ops[i]
        piece, found = _sliced(land, op, wish)
        if found is not None and not whole_ends(found, extent):
            found = None
        if found is None or piece is None or not isinstance(op, Op):
            if i == last:
                return
            _hoist(land, i, wishes, hoisted)
            continue
        if wish.whole:
            if not copies or len(copied) == MAX_COPIED or not is_cheap(op):
                _hoist(land, i, wishes, hoisted)
                continue
            copied.add(op.name)
            _hoist(land, i, wishes, hoisted)
        slices = _with_member(land, slices, op, piece, last)
        begins = i
        ratios = [need.ratio.denominator for need in found.needs if need is not None]
        granule = lcm(granule, *ratios)
        _want(land, i, found, wishes)
        # A loop can write over what dies in it if it makes the views of it itself.
        root = land.program.roots[op.name]
        dies = root in land.owned and land.last[root] <= last
        shared = any(len(land.users[name]) > 1 for name in land.takes[i])
        starts = (land.made[i] or (dies and shared)) and not within
        if starts and (copied or not copies):
            yield candidate()
    if first in within and land.made[begins] and (copied or not copies):
        yield candidate()


def _with_member(
    land: Landscape, slices: dict[str, Slice], op: Op, piece: Slice, last: int
) -> dict[str, Slice]:
    """`slices` with one more operator and its parts, from last to first."""
    beside = parts_of(land, op, piece, last) - slices.keys()
    slices[op.name] = piece
    if not beside:
        return slices
    slices.update(dict.fromkeys(beside, piece))
    ordered = sorted(slices, key=lambda name: -land.maker[name])
    return {name: slices[name] for name in ordered}


def _last_part(ops: list[Step], i: int) -> bool:
    """Whether the operator at `i` is the last of adjacent getitems of one operator; a
    region that ends there includes the others."""
    op, after = ops[i], ops[i + 1] if i + 1 < len(ops) else None
    return (
        isinstance(op, Op)
        and op.target is getitem
        and not (
            isinstance(after, Op)
            and after.target is getitem
            and after.operands() == op.operands()
        )
    )


def parts_of(land: Landscape, op: Op, piece: Slice, last: int) -> set[str]:
    """The getitems of an operator with several results, up to the position `last`;
    they must be in its loop."""
    if isinstance(land.program.metas[op.name], Meta) or piece.before or piece.after:
        return set()
    parts = ((i, land.program.ops[i]) for i in land.users.get(op.name, ()))
    return {
        part.name
        for i, part in parts
        if isinstance(part, Op)
        and part.target is getitem
        and i <= last
        and land.flow(part, piece) == Flow((piece,))
    }


def _sliced(
    land: Landscape, op: object, wish: Wish
) -> tuple[Slice | None, Flow | None]:
    """The slice of an operator's result that covers all users' needs, and its flow."""
    if not isinstance(op, Op) or not wish.slices:
        return None, None
    piece = wish.slices[0]
    for other in wish.slices[1:]:
        if (other.dim, other.ratio) != (piece.dim, piece.ratio):
            return None, None
        before, after = max(piece.before, other.before), max(piece.after, other.after)
        piece = piece._replace(before=before, after=after)
    return piece, land.flow(op, piece)


def whole_ends(found: Flow, extent: int) -> bool:
    """Whether the end of the loop is the end of an element in every operand."""
    return all(
        need is None or extent * need.ratio.numerator % need.ratio.denominator == 0
        for need in found.needs
    )


def _want(land: Landscape, i: int, found: Flow, wishes: dict[int, Wish]) -> None:
    """Note what the operator at `i` needs of the values that it takes."""
    for name, need in zip(land.takes[i], found.needs, strict=True):
        maker = land.maker.get(name)
        if maker is None:
            continue
        behind = wishes.setdefault(maker, Wish())
        if need is None:
            behind.whole = True
        elif need not in behind.slices:
            behind.slices.append(need)


def _hoist(land: Landscape, i: int, wishes: dict[int, Wish], hoisted: set[int]) -> None:
    """Run the operator at `i` whole, before the loop."""
    hoisted.add(i)
    for name in land.takes[i]:
        maker = land.maker.get(name)
        if maker is not None:
            wishes.setdefault(maker, Wish()).whole = True


def is_cheap(op: object) -> bool:
    return isinstance(op, Op) and not any(word in op.key for word in DEAR)


class Weight(NamedTuple):
    """A rough estimate of a loop's bytes.

    base: independent of the step. body: what one iteration over everything would need.
    leaving: bytes of the base that are results of members other than the last; they
    shrink if their users join the loop. covered: the bytes above the budget, summed
    over the operators from first to last. dear: bytes that each iteration reads whole,
    plus CALL for each operator and what halos cost: the main costs of chunks.
    """

    base: int
    body: int
    leaving: int
    covered: int
    dear: int

    def live(self, share: float) -> float:
        """Live bytes in the loop if an iteration covers `share` of it."""
        return self.base + self.body * share


def weigh(land: Landscape, region: Candidate) -> Weight:
    """Estimate the loop of `region` from the storages across it and in it; `covered` is
    left at 0, as it alone depends on a budget."""
    first, last = region.first, region.last
    looped = {land.maker[name] for name in region.slices if name not in region.copied}
    positions = sorted(land.maker[name] for name in region.slices)
    before, members = region.hoisted, set(positions)
    base = leaving = 0
    dying = _dying(land, region, positions)
    totals = {name: _total(land, region, name) for name in _totals(region)}
    for root, size in land.owned.items():
        uses = land.root_uses[root]
        born = uses[0]
        if born > last or land.last[root] < first:
            continue
        if born in looped:
            if root in totals:
                base += totals[root]
            elif _leaves(land, root, looped, last):
                taken = 0 if _reuses(land, region, dying, root) else size
                base += taken
                leaving += taken if born != last else 0
        elif born < first or born in before:
            # Members take what runs both ways from the loop itself.
            twice = bool(set(land.made_by(born)) & region.copied)
            inside = members if not twice else set()
            if land.last[root] > last or any(
                use in inside or (use not in before and use not in members)
                for use in uses[1:]
                if use >= first
            ):
                base += size
    body, halos = _body_peak(land, region, positions)
    return Weight(
        base + halos,
        body,
        leaving,
        0,
        _dear(land, region, positions),
    )


def _totals(region: Candidate) -> list[str]:
    return [name for name, piece in region.slices.items() if piece.total]


def _total(land: Landscape, region: Candidate, name: str) -> int:
    """Bytes of a total, with what an iteration adds if it is made first; none where it
    begins in memory that dies."""
    op = land.program.ops[land.maker[name]]
    assert isinstance(op, Op)
    found = land.flow(op, region.slices[name])
    assert isinstance(found, Accumulation)
    own: int = prod(found.shape) * found.dtype.itemsize
    size = own if found.direct else 2 * own
    if isinstance(found.start, Ref):
        root = land.program.roots[op.operands()[place_of(found.start)]]
        dies = root in land.owned and land.last[root] <= region.last
        size -= own if dies and land.owned[root] == own else 0
    return size


CALL = 20_000  # bytes that could be moved in the time of a call
PRODUCT = 0.1  # bytes that could be moved in the time of a multiplication
TURNS = 16  # iterations of a loop, where halos are weighed


def _dear(land: Landscape, region: Candidate, positions: list[int]) -> int:
    """Bytes that products read whole in each iteration, CALL for each operator, and
    what halos cost."""
    total = CALL * len(positions)
    for i in positions:
        op = land.program.ops[i]
        if i not in land.products or not isinstance(op, Op):
            continue
        found = land.flow(op, region.slices[op.name])
        if found is None:
            continue
        for name, need in zip(land.takes[i], found.needs, strict=True):
            meta = land.program.metas[name]
            if need is None and isinstance(meta, Meta):
                total += meta.bytes
        if share := _halo(land, region, i):
            total += int(PRODUCT * TURNS * share * land.products[i])
    return total


def _leaves(land: Landscape, root: str, looped: set[int], last: int) -> bool:
    """Whether a storage made in the loop is needed outside it."""
    if land.last[root] > last or root in land.given:
        return True
    return any(use not in looped for use in land.root_uses[root])


def _dying(
    land: Landscape, region: Candidate, positions: list[int]
) -> list[tuple[str, Slice | None]]:
    """Values whose storage dies in the loop, and the slice that a member takes."""
    program, found = land.program, list[tuple[str, Slice | None]]()
    for i in positions:
        op = program.ops[i]
        taken = [
            (place, name)
            for place, name in enumerate(land.takes[i])
            if name not in region.slices
            and isinstance(root := program.roots[name], str)
            and root in land.owned
            and land.last[root] <= region.last
            and land.root_uses[root][0] < i
        ]
        if not taken or not isinstance(op, Op):
            continue
        flow = land.flow(op, region.slices[op.name])
        if flow is not None:
            found += [(name, flow.needs[place]) for place, name in taken]
    return found


def _reuses(
    land: Landscape, region: Candidate, dying: list[tuple[str, Slice | None]], root: str
) -> bool:
    """Whether a result's buffer can lie in a dying operand's memory."""
    metas, piece = land.program.metas, region.slices.get(root)
    return piece is not None and any(
        need == piece and metas[name] == metas.get(root) for name, need in dying
    )


def _body_peak(
    land: Landscape, region: Candidate, positions: list[int]
) -> tuple[int, int]:
    """The peak of the members' own storages, including those of copied members; and
    what their halos add to it in each iteration."""
    inside = set(positions)
    dies: dict[int, int] = {}
    now = peak = halos = 0
    for i in positions:
        share = _halo(land, region, i)
        added = region.slices[land.program.ops[i].name].total
        for root in land.made[i] if not added else ():
            end = next(use for use in reversed(land.root_uses[root]) if use in inside)
            dies[end] = dies.get(end, 0) + land.owned[root]
            now += land.owned[root]
        live = now + land.extra[i]
        peak, halos = max(peak, live), max(halos, int(share * live))
        now -= dies.pop(i, 0)
    return peak, halos


def _halo(land: Landscape, region: Candidate, position: int) -> float:
    """An iteration's halo of an operator's result, as a share of all of it."""
    name = land.program.ops[position].name
    piece, meta = region.slices[name], land.program.metas[name]
    if not piece.before + piece.after or not isinstance(meta, Meta):
        return 0.0
    return (piece.before + piece.after) / int(meta.shape[piece.dim])
