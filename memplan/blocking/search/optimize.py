"""The best nest for a layer, by whichever method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from memplan.blocking.cost.objective import Objective
from memplan.blocking.cost.placement import BufferMemory
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.search.beam import beam_search
from memplan.blocking.search.enumerate_nests import enumerate_nests
from memplan.blocking.search.exact import optimum
from memplan.blocking.search.incumbent import Found, SearchProgress, check_time_limit
from memplan.errors import MemplanError, UsageError

METHODS = ("exact", "split", "beam", "enumerate")
_SAME = 1e-9  # relative; energies that differ by more are not of the same nest

ProgressReport = Callable[[SearchProgress], None]


@dataclass(frozen=True)
class Result:
    """The best nest found, and pJ of all its accesses.

    lower_bound: pJ that no nest with an unsplit window can do with less than; None if
    the method knows none. proved: whether the nest is known to be optimal among these.
    memories: of the buffers that have one, as the exact method chose; None where
    the objective's own rule did, as other methods have it. A choice may do better.
    """

    nest: Nest
    method: str
    energy: float
    lower_bound: float | None
    proved: bool
    seconds: float
    memories: tuple[BufferMemory, ...] | None = None

    @property
    def gap(self) -> float | None:
        """How far above the lower bound the energy is, relative to it; 0 if proved."""
        if self.proved:
            return 0.0
        return None if self.lower_bound is None else self.energy / self.lower_bound - 1


def optimize(
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
    *,
    method: str = "exact",
    levels: int | None = None,
    time_limit: float | None = None,
    threads: int | None = None,
    seed: int = 0,
    progress: ProgressReport | None = None,
) -> Result:
    """The nest of least energy that `method` finds.

    "exact": over all depths and extents, and all choices of buffers. "split": from
    there on, loops of Fw and Fh are moved apart as long as that helps; nothing is
    proved then, for the exact search keeps them together. "beam": the paper's
    heuristic, up to `levels` loops a dimension (4). "enumerate": all of up to `levels`
    loops a dimension (2). time_limit: seconds, after which the best so far is
    returned, as after Ctrl-C; threads: of the exact method, None for all; seed: of the
    beam.
    Raises UsageError where these make no sense, and NoPlanError where the exact method
    has no time for any nest.
    """
    check_time_limit(time_limit)
    if method not in METHODS:
        raise UsageError(f"there is no method {method!r}: take {', '.join(METHODS)}")
    if levels is not None and method in ("exact", "split"):
        raise UsageError(f"the {method} method takes any number of levels: give none")
    begin = time.monotonic()
    beam = partial(beam_search, layer, unroll, objective, seed=seed, progress=progress)
    if method == "beam":
        found = beam(levels=4 if levels is None else levels, time_limit=time_limit)
        result = _of(found, method)
    elif method == "enumerate":
        found = enumerate_nests(
            layer,
            unroll,
            objective,
            levels=2 if levels is None else levels,
            time_limit=time_limit,
            progress=progress,
        )
        result = _of(found, method)
    else:
        best = optimum(layer, unroll, objective, time_limit=time_limit, threads=threads)
        result = Result(
            parse_nest(best.string, layer, unroll),
            method,
            best.energy,
            best.lower_bound,
            best.proved,
            best.seconds,
            best.memories,
        )
        if method == "split":
            left = None if time_limit is None else max(time_limit - best.seconds, 0.0)
            found = beam(
                levels=1, time_limit=left, starts=[result.nest], split_window=True
            )
            result = replace(result, lower_bound=None, proved=False)
            if found.energy < result.energy:
                result = _of(found, method)
    return _verified(result, objective, time.monotonic() - begin)


def _of(found: Found, method: str) -> Result:
    return Result(found.nest, method, found.energy, None, False, found.seconds)


def _verified(result: Result, objective: Objective, seconds: float) -> Result:
    """The result, after counting its nest anew came to the same energy."""
    energy = objective.evaluate(result.nest, result.memories)
    if abs(energy - result.energy) > _SAME * energy:
        raise MemplanError(
            f"{result.nest.layer.name}: the {result.method} search says "
            f"{result.energy:.12g} pJ, and its nest has {energy:.12g} pJ; this is a "
            f"mistake of memplan's. The nest: {result.nest}"
        )
    return replace(result, energy=energy, seconds=seconds)
