"""Regions that users of their members join."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import lcm

from memplan.chunking.candidates import (
    Candidate,
    Landscape,
    Weight,
    parts_of,
    weigh,
    whole_ends,
)
from memplan.chunking.rules.flow import Flow, Slice
from memplan.graph.program import Meta, Op

REACH = 24  # operators after the region's end that may join
MOST = 12  # operators that join


def extended(
    land: Landscape, region: Candidate, weight: Weight, budget: int
) -> tuple[Candidate, Weight] | None:
    """The region extended by users of its members, as far as the loop needs less
    memory; None if no extension does.

    A member that is needed outside the loop has a whole result. If its users can run in
    the loop too (several outputs, in the paper's terms), only their results are whole.
    Users of the region's last member are not added; longer regions cover them.
    """
    best: tuple[Candidate, Weight] | None = None
    for wider in _wider(land, region):
        found = weigh(land, wider)
        if found.base < (best[1] if best else weight).base:
            over = land.covered(wider.first, wider.last, budget)
            best = wider, found._replace(covered=over)
    return best


def _wider(land: Landscape, region: Candidate) -> list[Candidate]:
    """Extensions of the region, each with one more operator than the one before."""
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
        if piece.total:  # known only after the loop
            following.add(op.name)
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
    """The slice of an operator's result that matches the members' slices, or None.

    If it has several results, all of their users must be able to join too.
    """
    meta = land.program.metas[op.name]
    first = meta if isinstance(meta, Meta) else meta[0]
    if not isinstance(first, Meta):
        return None
    for dim, size in enumerate(first.shape):
        piece = Slice(dim, Fraction(size, region.extent))
        found = land.flow(op, piece) if size > 1 else None
        if found is None:
            continue
        if _matches(op, found, slices, region):
            if first is not meta and not _all_parts(land, op, piece):
                continue
            return piece
    for piece in land.totals(op):
        size = land.extent(land.maker[op.name], piece)
        total = piece._replace(ratio=Fraction(size, region.extent))
        found = land.flow(op, total)
        if found is not None and _matches(op, found, slices, region):
            return total
    return None


def _matches(op: Op, found: Flow, slices: dict[str, Slice], region: Candidate) -> bool:
    """Whether an operator needs of the members what an iteration holds of them."""
    pairs = zip(op.operands(), found.needs, strict=True)
    return whole_ends(found, region.extent) and all(
        slices[name] == need for name, need in pairs if name in slices
    )


def _all_parts(land: Landscape, op: Op, piece: Slice) -> bool:
    """Whether all users of several results are getitems that can be sliced."""
    parts = parts_of(land, op, piece, len(land.program.ops))
    users = land.users.get(op.name, ())
    return parts == {name for i in users for name in land.made_by(i)}


def _before(
    land: Landscape, first: int, last: int, slices: dict[str, Slice]
) -> frozenset[int]:
    """Positions from `first` to `last` of operators that the members depend on."""
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
