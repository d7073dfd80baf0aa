"""The best nest for a layer, by whichever method."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.objective import Fixed, Objective
from memplan.blocking.cost.timed_memories import check_minimized
from memplan.blocking.machine.registers import RegisterTile, best_tile, target_of
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.exact import optimum
from memplan.blocking.search.result import Options, ProgressReport, Result
from memplan.blocking.search.timed import search_timed
from memplan.blocking.search.whole import search_whole
from memplan.errors import MemplanError, UsageError

_STEPS = (64, 256)  # of a register tile at least, if the layer has as many
_ROW = 64  # columns of the input that are read one after the other, at least
_SAME = 1e-9  # relative
_Find = Callable[[Mapping[str, int], Options], Result]


def best_for_code(
    layer: Layer, objective: Objective, options: Options, find: _Find
) -> Result:
    """The best nest for the target of `options`, whose datapath is the register tile.

    objective: of elements as the code has them, which emitted code has in 32 bits.
    find: the search over all nests on a datapath. It is asked for the loops around the
    tile's, with these as its datapath, and for the best of all nests over the register
    tile, whose energy becomes `free_energy`. Its bound is the result's, too. The
    searches share the time.
    Raises UsageError for a layer without weights, or another target.
    """
    if not layer.kernel:
        raise UsageError(f"{layer.name} has no weights, so there is no code for it")
    tile = best_tile(layer, target_of(options.target or "native"))
    ways = inner_loops(layer, tile)
    limit = options.time_limit
    part = replace(options, target=None, time_limit=limit and limit / (len(ways) + 1))
    free = find(tile.unroll, part)
    searched = [free]
    nests = [nest_of(layer, _over(inner, free.nest), tile.unroll) for inner in ways]
    for inner in ways:
        if not searched[-1].interrupted:
            searched.append(find({**tile.unroll, **inner}, part))
            around = _over(inner, searched[-1].nest)
            nests.append(nest_of(layer, around, tile.unroll))
    settled = [(one, best_memories(objective.traffic(one), objective)) for one in nests]
    priced = [(objective.evaluate(*one), one) for one in settled]
    energy, (nest, memories) = min(priced, key=lambda pair: pair[0])
    bound = free.lower_bound
    proved = bound is not None and energy <= bound * (1 + _SAME)
    return replace(
        free,
        nest=nest,
        energy=energy,
        memories=memories,
        tried=sum(found.tried for found in searched),
        complete=all(found.complete for found in searched),
        interrupted=searched[-1].interrupted,
        proved=proved,
        lower_bound=energy if proved else bound,
        free_energy=min(free.energy, energy),
    )


def inner_loops(layer: Layer, tile: RegisterTile) -> list[dict[str, int]]:
    """What the loops directly around a register tile may cover, innermost first: the
    window, few channels or more of them, and part of a row."""
    row = tile.x * math.ceil(_ROW / layer.stride[0] / tile.x)
    if 2 * row > layer.X:
        row = layer.X
    found = []
    for steps in _STEPS:
        channels = _channels(layer, steps)
        inner = {"Fw": layer.Fw, "Fh": layer.Fh, "C": channels, "X": row}
        if inner not in found:
            found.append(inner)
    return found


def _channels(layer: Layer, steps: int) -> int:
    """So many that a tile has `steps`; a divisor of C, if one is below twice that."""
    least = min(layer.C, math.ceil(steps / (layer.Fw * layer.Fh)))
    divisors = (n for n in range(least, 2 * least) if layer.C % n == 0)
    return next(divisors, least)


def _over(inner: Mapping[str, int], around: Nest) -> list[tuple[str, int]]:
    """The loops directly around a register tile, and those of a nest that reach
    further."""
    loops = [(loop.dim, loop.outer) for loop in around.loops]
    return [*inner.items(), *((d, n) for d, n in loops if n > inner.get(d, 0))]


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
    else:
        found = optimum(layer, unroll, objective, options)
        result = _settled(found, layer, unroll, objective)
    return result


def _settled(
    result: Result, layer: Layer, unroll: Mapping[str, int], objective: Objective
) -> Result:
    """The result over the layer as it is, with the memories that take the least.

    The other methods round sizes up to what the datapath does at once. Where that
    changes the layer, what they proved is not about it. Raises MemplanError where their
    nest, when recounted, has another energy.
    """
    loops = [(loop.dim, loop.outer) for loop in result.nest.loops]
    sized = layer.padded(unroll)
    searched = nest_of(sized, _rounded(loops, layer, sized), unroll)
    energy = objective.evaluate(searched, result.memories)
    if abs(energy - result.energy) > _SAME * energy:
        raise MemplanError(
            f"internal error in memplan; please report it: {layer.name}: the "
            f"{result.method} search says {result.energy:.12g} pJ, and its nest has "
            f"{energy:.12g} pJ. The nest: {result.nest}"
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
