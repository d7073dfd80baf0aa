"""The best nest for a layer, by whichever method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from memplan.blocking.cost.objective import Objective
from memplan.blocking.nest.layer import Layer
from memplan.blocking.search.beam import beam_search
from memplan.blocking.search.enumerate_nests import enumerate_nests
from memplan.blocking.search.exact import optimum
from memplan.blocking.search.incumbent import SearchProgress
from memplan.blocking.search.result import Options, Result
from memplan.errors import MemplanError

_SAME = 1e-9  # relative; energies that differ by more are not of the same nest
_DEFAULT = Options()

ProgressReport = Callable[[SearchProgress], None]


def optimize(
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
    options: Options = _DEFAULT,
    progress: ProgressReport | None = None,
) -> Result:
    """The nest of least energy that the method of `options` finds.

    Raises UsageError where levels or unrolling make no sense, and NoPlanError where the
    exact method has no time for any nest.
    """
    begin = time.monotonic()
    if options.method == "beam":
        result = beam_search(layer, unroll, objective, options, progress=progress)
    elif options.method == "enumerate":
        result = enumerate_nests(layer, unroll, objective, options, progress)
    else:
        result = optimum(layer, unroll, objective, options)
    if options.method == "split":
        limit = options.time_limit
        left = None if limit is None else max(limit - result.seconds, 0.0)
        apart = beam_search(
            layer,
            unroll,
            objective,
            replace(options, time_limit=left),
            starts=[result.nest],
            progress=progress,
        )
        result = replace(result, method="split", lower_bound=None, proved=False)
        if apart.energy < result.energy:
            result = apart
    return _verified(result, objective, time.monotonic() - begin)


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
