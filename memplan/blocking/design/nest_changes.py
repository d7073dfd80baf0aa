"""A nest and those that differ from it by one loop, to where none of them is better."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.errors import UsageError

_SAME = 1e-9


def descended(nest: Nest, energy: Callable[[Nest], float], most: int) -> Nest:
    """What a nest becomes by changes that each make it better, in an order of chance
    that is always the same, until none does or `most` were tried."""
    chance, seen = random.Random(0), {str(nest)}
    least = energy(nest)
    better = True
    while better and len(seen) < most:
        better = False
        changes = list(neighbours(nest))
        chance.shuffle(changes)
        for changed in changes:
            if str(changed) in seen or len(seen) >= most:
                continue
            seen.add(str(changed))
            found = energy(changed)
            if found < least * (1 - _SAME):
                least, nest, better = found, changed, True
                break
    return nest


def neighbours(nest: Nest) -> Iterator[Nest]:
    """Nests that differ by two loops exchanged, one more or less, or another extent."""
    for loops in _changes(nest):
        changed = _made(nest.layer, loops, nest.unroll)
        if changed is not None:
            yield changed


def _changes(nest: Nest) -> Iterator[list[tuple[str, int]]]:
    """Their loops; not all of them are nests."""
    loops = [(loop.dim, loop.outer) for loop in nest.loops]
    extents = {dim: _extents(nest, dim) for dim in "XYCKB"}
    for place, (dim, extent) in enumerate(loops):
        if place + 1 < len(loops):
            yield [*loops[:place], loops[place + 1], loops[place], *loops[place + 2 :]]
        if not _inner(loops, place):
            continue
        yield loops[:place] + loops[place + 1 :]
        for other in extents.get(dim, ()):
            if other != extent:
                yield [*loops[:place], (dim, other), *loops[place + 1 :]]
    for place in range(len(loops) + 1):
        for dim, sizes in extents.items():
            for size in sizes:
                yield [*loops[:place], (dim, size), *loops[place:]]


def _inner(loops: Sequence[tuple[str, int]], place: int) -> bool:
    """Whether another loop of its dimension lies outside."""
    return loops[place][0] in {dim for dim, _ in loops[place + 1 :]}


def _extents(nest: Nest, dim: str) -> list[int]:
    """Those that make other numbers of trips than the next."""
    lanes, size = nest.unroll.get(dim, 1), nest.layer.size(dim)
    tiles = -(-size // lanes)
    trips, found = 1, []
    while trips <= tiles:
        tile = -(-tiles // trips)
        found.append(min(tile * lanes, size))
        # The fewest trips that a smaller tile makes.
        trips = -(-tiles // (tile - 1)) if tile > 1 else tiles + 1
    return found


def _made(
    layer: Layer, loops: Sequence[tuple[str, int]], unroll: Mapping[str, int]
) -> Nest | None:
    """The nest, if these loops are one: extents must not fall, groups stay outside."""
    reached: dict[str, int] = {}
    for dim, extent in loops:
        if extent < reached.get(dim, 1):
            return None
        reached[dim] = extent
    groups = [loop for loop in loops if loop[0] == "G"]
    try:
        return nest_of(layer, [o for o in loops if o[0] != "G"] + groups, unroll)
    except UsageError:
        return None
