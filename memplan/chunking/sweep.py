"""Candidates for regions: slices followed backwards from where a region could end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import lcm
from operator import getitem

from memplan.chunking.region import call_of
from memplan.chunking.rules.flow import Flow, Slice
from memplan.chunking.rules.table import flow
from memplan.chunking.timing import PRODUCTS
from memplan.graph.liveness import Profile, lifetimes, owners, profile, roots_of
from memplan.graph.program import Loop, Meta, Op, Program, Step, refs, results

MAX_COPIED = 12  # operators that run both whole and in a loop, in one region

# Worth doing again in a loop rather than to keep their result: little arithmetic.
DEAR = (*PRODUCTS, "attention", "gather", "sort", "topk")


@dataclass
class Wish:
    """What the operators behind a value want of it."""

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
    """A program with what the search asks of it again and again."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.profile: Profile = profile(program)
        self.last, self.owned = lifetimes(program)
        self.maker = {
            name: i for i, step in enumerate(program.ops) for name in results(step)
        }
        self.made = [owners(program, step) for step in program.ops]
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
        self._flows: dict[tuple[str, Slice], Flow | None] = {}

    def made_by(self, position: int) -> list[str]:
        """Names of the values that the step at a position makes."""
        return results(self.program.ops[position])

    def flow(self, op: Op, piece: Slice) -> Flow | None:
        """The operator's flow for a slice of its result, remembered."""
        key = op.name, piece
        if key not in self._flows:
            self._flows[key] = self._checked(op, piece)
        return self._flows[key]

    def _checked(self, op: Op, piece: Slice) -> Flow | None:
        moving = self.program.moving
        if piece.dim in moving.get(op.name, ()):
            return None
        found = flow(call_of(self.program, op, ""), piece)
        if found is None:
            return None
        for name, need in zip(op.operands(), found.needs, strict=True):
            if need is not None and need.dim in moving.get(name, ()):
                return None
        return found


def ends(land: Landscape, peak: int, reach: int) -> Iterator[tuple[int, int]]:
    """Position and dimension where a region around `peak` may end."""
    ops = land.program.ops
    for i in range(peak, min(len(ops), peak + reach)):
        op = ops[i]
        if isinstance(op, Loop) or not (land.made[i] or _last_part(ops, i)):
            continue
        meta = land.program.metas[op.name]
        if not isinstance(meta, Meta):
            continue
        for dim, size in enumerate(meta.shape):
            if size > 1:
                yield i, dim


def sweep(
    land: Landscape, last: int, dim: int, first: int, copies: bool
) -> Iterator[Candidate]:
    """Regions that end with the operator at `last`, sliced along `dim` of its result.

    Slices are followed backwards (the paper's backward search, §3.3) down to the
    position `first`; at each operator that can be sliced, the region that begins there
    is a candidate. What cannot, or is needed in two ways, runs whole before the loop.
    copies: whether cheap operators that are needed both ways run twice.
    """
    ops = land.program.ops
    end = ops[last]
    wishes = {last: Wish([Slice(dim)])}
    slices: dict[str, Slice] = {}
    copied: set[str] = set()
    hoisted: set[int] = set()
    granule = 1
    extent = land.program.metas[end.name].shape[dim]
    for i in range(last, first - 1, -1):
        wish = wishes.pop(i, None)
        if wish is None:
            continue
        op = ops[i]
        piece, found = _sliced(land, op, wish)
        if found is not None and not _whole_ends(found, extent):
            found = None
        if found is None or piece is None or not isinstance(op, Op):
            if i == last:
                return
            _hoist(land, i, wishes, hoisted)
            continue
        if wish.whole:
            if not copies or len(copied) == MAX_COPIED or not _cheap(op):
                _hoist(land, i, wishes, hoisted)
                continue
            copied.add(op.name)
            _hoist(land, i, wishes, hoisted)
        slices = _with_member(land, slices, op, piece, last)
        ratios = [need.ratio.denominator for need in found.needs if need is not None]
        granule = lcm(granule, *ratios)
        for name, need in zip(land.takes[i], found.needs, strict=True):
            maker = land.maker.get(name)
            if maker is None:
                continue
            behind = wishes.setdefault(maker, Wish())
            if need is None:
                behind.whole = True
            elif need not in behind.slices:
                behind.slices.append(need)
        if land.made[i]:
            yield Candidate(
                i,
                last,
                dict(reversed(slices.items())),
                frozenset(copied),
                frozenset(hoisted),
                extent,
                granule,
            )


def _with_member(
    land: Landscape, slices: dict[str, Slice], op: Op, piece: Slice, last: int
) -> dict[str, Slice]:
    """`slices` with one more operator, and its parts, from the last to the first."""
    beside = parts_of(land, op, piece, last) - slices.keys()
    slices[op.name] = piece
    if not beside:
        return slices
    slices.update(dict.fromkeys(beside, piece))
    ordered = sorted(slices, key=lambda name: -land.maker[name])
    return {name: slices[name] for name in ordered}


def _last_part(ops: list[Step], i: int) -> bool:
    """Whether the operator at `i` takes the last of several results that are taken one
    after the other: where a region ends, it has those before."""
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
    """Of an operator with several results, those that are taken up to the position
    `last`: made in the loop as well, or others could not have them."""
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
    """The slice of its result that an operator makes for all who want some, and how."""
    if not isinstance(op, Op) or not wish.slices:
        return None, None
    piece = wish.slices[0]
    for other in wish.slices[1:]:
        if (other.dim, other.ratio) != (piece.dim, piece.ratio):
            return None, None
        before, after = max(piece.before, other.before), max(piece.after, other.after)
        piece = piece._replace(before=before, after=after)
    return piece, land.flow(op, piece)


def _whole_ends(found: Flow, extent: int) -> bool:
    """Whether the loop's end is an element's end in all that is needed."""
    return all(
        need is None or (extent * need.ratio).denominator == 1 for need in found.needs
    )


def _hoist(land: Landscape, i: int, wishes: dict[int, Wish], hoisted: set[int]) -> None:
    """Let the operator at `i` run whole, before the loop."""
    hoisted.add(i)
    for name in land.takes[i]:
        maker = land.maker.get(name)
        if maker is not None:
            wishes.setdefault(maker, Wish()).whole = True


def _cheap(op: object) -> bool:
    return isinstance(op, Op) and not any(word in op.key for word in DEAR)
