"""Regions with more ends than one: what else their members lead to, taken in."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import lcm

from memplan.chunking.rules.flow import Slice
from memplan.chunking.sweep import Candidate, Landscape, parts_of
from memplan.chunking.weigh import Weight, weigh
from memplan.graph.program import Meta, Op

REACH = 24  # operators after the region's end that are looked at
MOST = 12  # operators that are taken in


def extended(
    land: Landscape, region: Candidate, weight: Weight, budget: int
) -> tuple[Candidate, Weight] | None:
    """The region with users of its members taken in, as many as its loop needs least
    memory with; None if it is best as it is.

    A member that is needed outside of the loop is made whole. Where its users can run
    in the loop as well (several outputs, in the paper's terms), they are members too,
    and only what they make is whole. What follows from the region's end is not
    taken in: that is what a longer region is for.
    """
    best: tuple[Candidate, Weight] | None = None
    for wider in _wider(land, region):
        found = weigh(land, wider, budget)
        if found.base < (best[1] if best else weight).base:
            best = wider, found
    return best


def _wider(land: Landscape, region: Candidate) -> list[Candidate]:
    """The region with one more operator taken in after the other."""
    end = list(region.slices)[-1]
    slices = dict(region.slices)
    following = {end}  # what depends on the loop's results
    granule, last = region.granule, region.last
    found: list[Candidate] = []
    ops = land.program.ops
    for i in range(region.first, min(len(ops), region.last + REACH)):
        op, taken = ops[i], land.takes[i]
        names = land.made_by(i)
        if names[0] in slices:
            continue
        inside = [name for name in taken if _looped(name, slices, region)]
        if not inside and following.isdisjoint(taken):
            continue
        piece = None
        if isinstance(op, Op) and following.isdisjoint(taken) and len(found) < MOST:
            piece = _joins(land, op, slices, region)
        if piece is None or not isinstance(op, Op):
            following.update(names)
            continue
        added = {op.name, *parts_of(land, op, piece, len(ops))}
        slices.update(dict.fromkeys(added, piece))
        granule = lcm(granule, piece.ratio.denominator)
        last = max(last, *(land.maker[name] for name in added))
        ordered = dict(sorted(slices.items(), key=lambda pair: land.maker[pair[0]]))
        hoisted = region.hoisted | _before(land, region.first, last, ordered)
        found.append(
            replace(region, last=last, slices=ordered, hoisted=hoisted, granule=granule)
        )
    return found


def _looped(name: str, slices: dict[str, Slice], region: Candidate) -> bool:
    return name in slices and name not in region.copied


def _joins(
    land: Landscape, op: Op, slices: dict[str, Slice], region: Candidate
) -> Slice | None:
    """The slice of an operator's result that follows from the members' slices; of
    several results, that of each, if all who take one can be members too."""
    meta = land.program.metas[op.name]
    first = meta if isinstance(meta, Meta) else meta[0]
    if not isinstance(first, Meta):
        return None
    for dim, size in enumerate(first.shape):
        piece = Slice(dim, Fraction(size, region.extent))
        found = land.flow(op, piece) if size > 1 else None
        if found is None:
            continue
        pairs = list(zip(op.operands(), found.needs, strict=True))
        whole = all(
            need is None or (region.extent * need.ratio).denominator == 1
            for _, need in pairs
        )
        if whole and all(
            slices[name] == need for name, need in pairs if name in slices
        ):
            if first is not meta and not _all_parts(land, op, piece):
                continue
            return piece
    return None


def _all_parts(land: Landscape, op: Op, piece: Slice) -> bool:
    """Whether nothing but its parts, in slices, is taken of several results."""
    parts = parts_of(land, op, piece, len(land.program.ops))
    users = land.users.get(op.name, ())
    return parts == {name for i in users for name in land.made_by(i)}


def _before(
    land: Landscape, first: int, last: int, slices: dict[str, Slice]
) -> frozenset[int]:
    """Positions from `first` to `last` of what the members take and are not."""
    wanted = {
        name
        for member in slices
        for name in land.takes[land.maker[member]]
        if name not in slices
    }
    found = set()
    for i in range(last, first - 1, -1):
        names = land.made_by(i)
        if names[0] not in slices and not wanted.isdisjoint(names):
            found.add(i)
            wanted.update(land.takes[i])
    return frozenset(found)
