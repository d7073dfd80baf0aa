"""A nest of little energy among all there are, and how much less there could be.

Extents need not divide each other, and the window's loops may stand anywhere. The
search starts from the proved optimum of the smaller space, where extents divide each
other and the window is in one piece, and from a relaxation: nests in which a tile of t
out of n is visited n / t times, rounded up, as if the loops around it cut it off
nowhere. A dynamic programme finds the least energy of all these, which no nest does
with less than; so it is the bound as well, and a nest that takes no more is optimal.
From there on a local search moves, resizes, adds and drops loops. The kernels are
compiled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.nest.counts import count
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.exact import (
    LOOPS,
    WINDOW,
    base_of,
    cores,
    optimum,
    problem_of,
)
from memplan.blocking.search.result import Options, Result, Space
from memplan.errors import NoPlanError, UsageError
from memplan.native import _nest

_DIMS = (*LOOPS, *WINDOW)  # as the kernels number them
_Loops = Sequence[tuple[int, int]]
# Seconds, where there is no limit: for the smaller space's optimum, for the bound, and
# for the search, which mostly ends before.
_START, _BOUND, _CLIMB = 2.0, 4.0, 3.5
_ROUNDS = 2
_NEAR = 1e-3  # relative; a bound that is so close is worth no more time
_LONG = 24  # loops that a start may have
_SAME = 1e-9  # relative; a bound that is as close is reached


def search_whole(
    layer: Layer, unroll: Mapping[str, int], objective: Objective, options: Options
) -> Result:
    """The best nest found for `layer`, and what no nest takes less than.

    The time limit is shared out; without one the smaller space's optimum and the bound
    have a few seconds each, and the local search comes to its end. Raises UsageError
    as `optimum` does where levels or unrolling make no sense.
    """
    clock = _Clock(options.time_limit)
    threads = options.threads or cores()
    starts = [_one_loop_each(layer, unroll)]
    energy = math.inf
    part = Options("divisors", None, clock.share(0.4, _START), options.threads)
    try:
        found = optimum(layer, unroll, objective, part)
        start = nest_of(layer, _pairs(found.nest), unroll)
        starts.append(_numbered(start))
        energy = _energy(start, objective)
    except (NoPlanError, UsageError):
        pass  # too little time, or too many divisors: there are other starts
    bound, relaxed = _bound(layer, unroll, objective, energy, (clock, threads))
    starts += relaxed
    _, loops, tried, complete = _nest.improved(
        problem_of(layer, unroll, objective),
        starts,
        bound=bound / layer.G,
        rounds=_ROUNDS,
        seconds=clock.share(1.0, _CLIMB),
        threads=threads,
    )
    named = [(_DIMS[dim], extent) for dim, extent in loops]
    if base_of(layer, unroll)["G"] < layer.G:
        named.append(("G", layer.G))
    nest = nest_of(layer, named, unroll)
    memories = best_memories(count(nest), objective)
    energy = objective.evaluate(nest, memories)
    proved = energy <= bound * (1 + _SAME)
    return Result(
        nest,
        "whole",
        energy,
        clock.seconds,
        tried,
        complete,
        energy if proved else bound,
        proved,
        memories,
        Space.WHOLE,
    )


def _bound(
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
    energy: float,
    within: tuple[_Clock, int],
) -> tuple[float, list[list[tuple[int, int]]]]:
    """pJ that no nest takes less than, and the relaxation's nests.

    energy: of a nest. The bytes that tensors share are first each tensor's alone, which
    is bound from below as well, and soon done.
    """
    clock, threads = within
    bound = _compulsory(layer, objective)
    nests = []
    private = isinstance(objective, Fixed) and objective.hierarchy.private
    alone = private or (isinstance(objective, Codesign) and objective.budget is None)
    for shared in (False,) if alone else (False, True):
        if bound >= energy * (1 - _NEAR):
            break
        relaxed = _nest.optimum(
            problem_of(layer, unroll, objective, shared),
            whole=True,
            incumbent=energy / layer.G,
            seconds=clock.share(0.4, _BOUND if alone else _BOUND / 2),
            threads=threads,
        )
        bound = max(bound, relaxed.lower_bound * layer.G)
        kept = _kept(relaxed.loops)
        if 0 < len(kept) <= _LONG:
            nests.append(kept)
    return bound, nests


class _Clock:
    """Shares out the seconds there are."""

    def __init__(self, limit: float | None) -> None:
        self._limit, self._begin = limit, time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begin

    def share(self, part: float, usual: float) -> float:
        """A part of what is left; `usual` where there is no limit."""
        if self._limit is None:
            return usual
        return max(part * (self._limit - self.seconds), 0.0)


def _compulsory(layer: Layer, objective: Objective) -> float:
    """pJ of each element's one access to main memory, which every nest takes."""
    nest = nest_of(layer, [(d, layer.size(d)) for d in (*_DIMS, "G")], {})
    return sum(
        own.compulsory * objective.main_pj(tensor)
        for tensor, own in count(nest).items()
    )


def _energy(nest: Nest, objective: Objective) -> float:
    return objective.evaluate(nest, best_memories(count(nest), objective))


def _pairs(nest: Nest) -> list[tuple[str, int]]:
    return [(loop.dim, loop.outer) for loop in nest.loops]


def _numbered(nest: Nest) -> list[tuple[int, int]]:
    """The loops as the kernels have them, without groups."""
    return [(_DIMS.index(d), n) for d, n in _pairs(nest) if d != "G"]


def _one_loop_each(layer: Layer, unroll: Mapping[str, int]) -> list[tuple[int, int]]:
    base = base_of(layer, unroll)
    return [
        (number, layer.size(dim))
        for number, dim in enumerate(_DIMS)
        if layer.size(dim) > base[dim]
    ]


def _kept(loops: _Loops) -> list[tuple[int, int]]:
    """The relaxation's loops, of which neighbours that use the same tensors again are
    one of each dimension."""
    kept: list[tuple[int, int]] = []
    for dim, extent in loops:
        place = len(kept)
        while place and _alike(kept[place - 1][0], dim):
            place -= 1
            if kept[place][0] == dim:
                del kept[place]
        kept.append((dim, extent))
    return kept


def _alike(one: int, other: int) -> bool:
    """Whether loops of both dimensions use the same tensors again."""
    groups = (("X", "Y", "B"), ("C",), ("K",), ("Fw", "Fh"))
    return any(_DIMS[one] in group and _DIMS[other] in group for group in groups)
