"""The best nest for a layer, by whichever method."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.objective import Fixed, Objective
from memplan.blocking.cost.timed_memories import check_minimized
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import nest_of
from memplan.blocking.search.beam import beam_search
from memplan.blocking.search.enumerate_nests import enumerate_nests
from memplan.blocking.search.exact import optimum
from memplan.blocking.search.for_code import best_for_code
from memplan.blocking.search.incumbent import ProgressReport
from memplan.blocking.search.result import Options, Result
from memplan.blocking.search.timed import search_timed
from memplan.blocking.search.whole import search_whole
from memplan.errors import MemplanError

_SAME = 1e-9  # relative; energies that differ by more are not of the same nest
_DEFAULT = Options()


def optimize(
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
    options: Options = _DEFAULT,
    progress: ProgressReport | None = None,
) -> Result:
    """The nest of least energy, or what else is to be least, that the options find.

    Where the options have a target for code, `unroll` is not used.
    Ctrl-C ends every method but "divisors" with the best so far.
    Raises UsageError where levels or unrolling make no sense, and NoPlanError where the
    method "divisors" has no time for any nest.
    """
    check_minimized(options.minimize, objective, options.front)
    begin = time.monotonic()
    if options.target is not None:

        def find(datapath: Mapping[str, int], part: Options) -> Result:
            return _least_energy(layer, datapath, objective, part, progress)

        result = best_for_code(layer, objective, options, find)
    elif isinstance(objective, Fixed) and (
        options.minimize != "energy" or options.front
    ):
        result = search_timed(
            layer, unroll, objective, options, _least_energy, progress
        )
    else:
        result = _least_energy(layer, unroll, objective, options, progress)
    return replace(result, seconds=time.monotonic() - begin)


def _least_energy(
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
    options: Options,
    progress: ProgressReport | None = None,
) -> Result:
    """The nest of least energy, whatever else is asked for."""
    if options.method == "whole":
        result = search_whole(layer, unroll, objective, options, progress)
    elif options.method == "beam":
        result = beam_search(layer, unroll, objective, options, progress=progress)
    elif options.method == "enumerate":
        result = enumerate_nests(layer, unroll, objective, options, progress)
    else:
        result = optimum(layer, unroll, objective, options)
    if options.method != "whole":
        result = _settled(result, layer, unroll, objective)
    return result


def optimize_one_of(
    layer: Layer, unroll: Mapping[str, int], objective: Objective, options: Options
) -> Result:
    """The same for one of several searches, which Ctrl-C ends all."""
    found = optimize(layer, unroll, objective, options)
    if found.interrupted:
        raise KeyboardInterrupt
    return found


def _settled(
    result: Result, layer: Layer, unroll: Mapping[str, int], objective: Objective
) -> Result:
    """The result over the layer as it is, with the memories that take the least.

    The other methods round sizes up to what the datapath does at once. Where that
    changes the layer, what they proved is not about it. Raises MemplanError where their
    nest, counted anew, does not come to the same energy.
    """
    loops = [(loop.dim, loop.outer) for loop in result.nest.loops]
    sized = layer.padded(unroll)
    searched = nest_of(sized, _rounded(loops, layer, sized), unroll)
    energy = objective.evaluate(searched, result.memories)
    if abs(energy - result.energy) > _SAME * energy:
        raise MemplanError(
            f"{layer.name}: the {result.method} search says {result.energy:.12g} pJ, "
            f"and its nest has {energy:.12g} pJ; this is a mistake of memplan's. The "
            f"nest: {result.nest}"
        )
    if sized == layer and result.memories is not None:
        return replace(result, nest=searched)
    nest = nest_of(layer, loops, unroll)
    memories = best_memories(objective.traffic(nest), objective)
    result = replace(
        result,
        nest=nest,
        memories=memories,
        energy=objective.evaluate(nest, memories),
    )
    if sized == layer:
        return result
    return replace(result, lower_bound=None, proved=False)


def _rounded(
    loops: Sequence[tuple[str, int]], layer: Layer, sized: Layer
) -> list[tuple[str, int]]:
    """The loops that cover `layer`, covering `sized`."""
    return [(d, sized.size(d) if n == layer.size(d) else n) for d, n in loops]
