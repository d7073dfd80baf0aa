"""What a candidate would do to memory, quickly and roughly."""

from __future__ import annotations

from typing import NamedTuple

from memplan.chunking.sweep import Candidate, Landscape
from memplan.chunking.timing import is_product
from memplan.graph.program import Meta, Op
from memplan.graph.workspace import temporaries


class Weight(NamedTuple):
    """Bytes of a loop: base, whatever the step; body, what all of it would need if it
    ran in one iteration. leaving: bytes of the base that are results of members, but
    for the last one's: less if who takes them ran in the loop as well. covered: the
    bytes above the budget at each operator from its first to its last, added up. dear:
    bytes that each iteration takes whole, with a little for each operator: what running
    in chunks costs most."""

    base: int
    body: int
    leaving: int
    covered: int
    dear: int

    def live(self, share: float) -> float:
        """Live bytes in the loop where an iteration does `share` of it."""
        return self.base + self.body * share


def weigh(land: Landscape, region: Candidate, budget: int) -> Weight:
    """The loop of `region` by storages: those alive across it, and those in it."""
    first, last = region.first, region.last
    looped = {land.maker[name] for name in region.slices if name not in region.copied}
    positions = sorted(land.maker[name] for name in region.slices)
    before, members = region.hoisted, set(positions)
    base = leaving = 0
    for root, size in land.owned.items():
        uses = land.root_uses[root]
        born = uses[0]
        if born > last or land.last[root] < first:
            continue
        if born in looped:
            if _leaves(land, root, looped, last):
                taken = _output_bytes(land, region, root, size)
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
    return Weight(
        base,
        _body_peak(land, positions),
        leaving,
        sum(max(0, land.profile.live[i] - budget) for i in range(first, last + 1)),
        _dear(land, region, positions),
    )


CALL = 20_000  # bytes that could be moved in the time of a call


def _dear(land: Landscape, region: Candidate, positions: list[int]) -> int:
    """Bytes that products take whole in each iteration, and CALL for each operator."""
    total = CALL * len(positions)
    for i in positions:
        op = land.program.ops[i]
        if not isinstance(op, Op) or not is_product(op):
            continue
        found = land.flow(op, region.slices[op.name])
        if found is None:
            continue
        for name, need in zip(land.takes[i], found.needs, strict=True):
            meta = land.program.metas[name]
            if need is None and isinstance(meta, Meta):
                total += meta.bytes
    return total


def _leaves(land: Landscape, root: str, looped: set[int], last: int) -> bool:
    """Whether a storage made in the loop is needed outside of it."""
    if land.last[root] > last or root in land.given:
        return True
    return any(use not in looped for use in land.root_uses[root])


def _output_bytes(land: Landscape, region: Candidate, root: str, size: int) -> int:
    """The bytes of a result's buffer: none where it can take a dying operand's."""
    program = land.program
    meta, piece = program.metas.get(root), region.slices.get(root)
    if not isinstance(meta, Meta) or piece is None:
        return size
    for name in region.slices:
        i = land.maker[name]
        op = program.ops[i]
        found = land.flow(op, region.slices[name]) if isinstance(op, Op) else None
        if found is None:
            continue
        for operand, need in zip(land.takes[i], found.needs, strict=True):
            source = program.roots[operand]
            if (
                operand not in region.slices
                and need == piece
                and program.metas[operand] == meta
                and isinstance(source, str)
                and source in land.owned
                and land.last[source] <= region.last
                and land.root_uses[source][0] < i
            ):
                return 0
    return size


def _body_peak(land: Landscape, positions: list[int]) -> int:
    """The peak of the members' own storages, copies of copied ones counted too."""
    program = land.program
    inside = set(positions)
    dies: dict[int, int] = {}
    now = peak = 0
    for i in positions:
        for root in land.made[i]:
            uses = [use for use in land.root_uses[root] if use in inside]
            dies[uses[-1]] = dies.get(uses[-1], 0) + land.owned[root]
            now += land.owned[root]
        op = program.ops[i]
        extra = temporaries(program, op) if isinstance(op, Op) else 0
        peak = max(peak, now + extra)
        now -= dies.pop(i, 0)
    return peak
