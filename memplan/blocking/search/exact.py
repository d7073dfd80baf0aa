"""The loop nest of least energy among those whose extents divide each other.

All of these are searched: any depth, every chain of divisors of each size, any order,
the window as one block anywhere, and every choice of the buffers that are worth having,
stripes of the input (`nest.counts`) among them, and sliding buffers in memories that
can have them.
A dynamic programme goes from the outermost loop inwards, over the tiles that are still
to be walked through. What the rest costs at least is known beforehand for every tile,
as a function of what the three tensors cost there, so that hardly anything is looked at
that does not lead to the optimum. The kernel is compiled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.energy import Curve
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.layer import DIMS, Layer, Tensor
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.result import Options, Result
from memplan.cores import cores
from memplan.errors import MemplanError, NoPlanError, UsageError
from memplan.native import _nest

DIVISORS = Options("divisors")
_SAME = 1e-9  # relative
MAX_SHARED = 4  # levels that several tensors share
LOOPS = ("X", "Y", "C", "K", "B")
WINDOW = ("Fw", "Fh")
# (knots, largest, pool, whether they slide, levels, pJ of main memory, knots of what
# lies outermost), as the kernel takes them; a level is (bytes, pJ, pool, whether it
# slides).
_Knots = list[tuple[float, float]]
_Level = tuple[float, float, int, bool]
_Memories = tuple[_Knots, float, int, bool, list[_Level], float, _Knots]


def optimum(
    layer: Layer,
    unroll: Mapping[str, int] | None = None,
    objective: Objective | None = None,
    options: Options = DIVISORS,
) -> Result:
    """The best nest for `layer`, with sizes rounded up to what `unroll` does at once,
    among those whose extents divide each other, the window's loops side by side.

    objective: memories of the buffers' own (the default, without a budget) or a given
    hierarchy. Buffers are a choice: one that does not pay is left out. Under a budget,
    and in a hierarchy, which ones have which memory is chosen as well, not by order of
    accesses; so no other rule does better. After the time limit the result is the best
    so far, not proved.

    Raises UsageError for unrolling that makes no sense, sizes with too many divisors
    and more than MAX_SHARED shared levels; NoPlanError where there was no time for any
    nest; KeyboardInterrupt after Ctrl-C.
    """
    found = optimum_so_far(layer, unroll or {}, objective or Codesign(), options)
    if found.interrupted:
        raise KeyboardInterrupt
    return found


def optimum_so_far(
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
    options: Options,
    report: Callable[[], None] | None = None,
) -> Result:
    """The same, but that after Ctrl-C the best nest so far is returned, if there is
    one. report: called now and then."""
    start = time.perf_counter()
    check_unroll(unroll)
    try:
        found = _nest.optimum(
            problem_of(layer.padded(unroll), unroll, objective),
            whole=False,
            incumbent=math.inf,
            seconds=math.inf if options.time_limit is None else options.time_limit,
            threads=options.threads or cores(),
            report=report,
        )
    except OverflowError:
        raise UsageError(
            f"{layer.name} has sizes with too many divisors for the exact search: "
            "take another method, or unroll a dimension"
        ) from None
    if math.isinf(found.energy):
        if found.interrupted:
            raise KeyboardInterrupt
        raise NoPlanError(
            f"{options.time_limit} seconds are too few for a nest of {layer.name}: "
            "allow more"
        )
    seconds = time.perf_counter() - start
    return replace(_read(found, layer, unroll, objective), seconds=seconds)


def base_of(layer: Layer, unroll: Mapping[str, int]) -> dict[str, int]:
    """What the datapath covers of each dimension, below all loops."""
    return {dim: min(unroll.get(dim, 1), layer.size(dim)) for dim in DIMS}


def problem_of(
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
    shared: bool = True,
    last: Mapping[Tensor, Curve] | None = None,
) -> _nest.Problem:
    """One group of the layer, and the memories, for the kernels.

    shared: otherwise, each tensor has all bytes that it would share with others. last:
    prices of the outermost of a tensor's buffers, where these have their own; of a
    Codesign.
    Raises UsageError where there are more than MAX_SHARED shared levels.
    """
    base = base_of(layer, unroll)
    if isinstance(objective, Fixed):
        memories, pools = _levels(objective.hierarchy)
    else:
        memories, pools = _own(objective, last or {})
    if not shared:
        memories, pools = [_alone(one, pools) for one in memories], []
    precision = objective.precision
    memories = [
        _scaled(one, precision.scale(tensor))
        for one, tensor in zip(memories, Tensor, strict=True)
    ]
    return _nest.Problem(
        extent=[layer.size(dim) for dim in LOOPS],
        base=[base[dim] for dim in LOOPS],
        window=[layer.Fw, layer.Fh],
        base_window=[base["Fw"], base["Fh"]],
        stride=layer.stride,
        kernel=layer.kernel,
        memories=memories,
        pools=pools,
        # Groups the datapath does at once make every tile larger.
        element_bytes=[precision.held(t) * base["G"] / 8 for t in Tensor],
        last_write=precision.output / precision.partial,
        count_fills=objective.count_fills,
    )


def check_unroll(unroll: Mapping[str, int]) -> None:
    """Raises UsageError where it names no dimension, or a number below 1."""
    for dim, extent in unroll.items():
        if dim not in DIMS or extent < 1:
            raise UsageError(
                f"unrolling {dim!r} by {extent}: give one of {', '.join(DIMS)} and a "
                "number from 1 up"
            )


def _own(
    machine: Codesign, last: Mapping[Tensor, Curve]
) -> tuple[list[_Memories], list[float]]:
    """A memory for each buffer; one pool of bytes if there is a budget."""
    nothing = machine.budget == 0
    pools = [] if machine.budget is None or nothing else [float(machine.budget)]
    memories: list[_Memories] = []
    for tensor in Tensor:
        curve = machine.curves[tensor]
        largest = 0.0 if nothing else float(curve.dram_above)
        slides = machine.sliding and tensor is Tensor.INPUT
        knots, outer = _knots(curve), _knots(last[tensor]) if tensor in last else []
        pool = len(pools) - 1
        memories.append((knots, largest, pool, slides, [], curve.dram_pj, outer))
    return memories, pools


def _knots(curve: Curve) -> _Knots:
    return list(zip(curve.nbytes, curve.pj, strict=True))


def _alone(memories: _Memories, pools: Sequence[float]) -> _Memories:
    """The same without others that take bytes of them."""
    knots, largest, pool, slides, levels, main_pj, last = memories
    if pool >= 0:
        largest = min(largest, pools[pool])
    alone = [(nbytes, pj, -1, slide) for nbytes, pj, _, slide in levels]
    return knots, largest, -1, slides, alone, main_pj, last


def _scaled(memories: _Memories, scale: float) -> _Memories:
    """Energies of an element, where those given are of 16 bits."""
    knots, largest, pool, slides, levels, main_pj, last = memories
    return (
        [(nbytes, pj * scale) for nbytes, pj in knots],
        largest,
        pool,
        slides,
        [(nbytes, pj * scale, own, slide) for nbytes, pj, own, slide in levels],
        main_pj * scale,
        [(nbytes, pj * scale) for nbytes, pj in last],
    )


def _levels(hierarchy: Hierarchy) -> tuple[list[_Memories], list[float]]:
    """The levels of a hierarchy; shared ones are pools."""
    shared = [depth for depth, at in enumerate(hierarchy.levels) if not at.private]
    if len(shared) > MAX_SHARED:
        raise UsageError(
            f"{hierarchy.name} has {len(shared)} shared levels, and the exact search "
            f"takes {MAX_SHARED}: take another method"
        )
    pools = [float(hierarchy.levels[depth].capacity(Tensor.INPUT)) for depth in shared]
    memories: list[_Memories] = []
    for tensor in Tensor:
        levels = [
            (
                float(level.capacity(tensor)),
                hierarchy.price(depth, tensor),
                shared.index(depth) if depth in shared else -1,
                level.sliding and tensor is Tensor.INPUT,
            )
            for depth, level in enumerate(hierarchy.levels)
            if level.capacity(tensor)
        ]
        main_pj = hierarchy.main_pj(tensor)
        memories.append(([], 0.0, -1, False, levels, main_pj, []))
    return memories, pools


def _read(
    found: _nest.Optimum,
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
) -> Result:
    """What the kernel found for one group of the layer, its sizes rounded up to what
    the datapath does at once: for all groups, and for the layer as it is.

    What was proved is not about the latter, if it is another one. Raises MemplanError
    where the nest, when recounted, has another energy.
    """
    sized = layer.padded(unroll)
    loops: list[tuple[str, int]] = []
    for dim, extent in found.loops:
        window = [(d, sized.size(d)) for d in WINDOW]
        loops += [(LOOPS[dim], extent)] if dim < len(LOOPS) else window
    loops.append(("G", sized.G))
    searched, nest = nest_of(sized, loops, unroll), nest_of(layer, loops, unroll)
    energy, proved = found.energy * sized.G, found.proved
    memories = dict(best_memories(objective.traffic(searched), objective))
    for tensor, own in memories.items():
        # At the kernel's prices, which differ from Python's in the last bit.
        scale, number = objective.precision.scale(tensor), list(Tensor).index(tensor)
        pj = [pj / scale for of, _, _, pj, _ in found.kept if of == number]
        if len(pj) == len(own):
            each = zip(own, pj, strict=True)
            memories[tensor] = tuple(replace(one, pj=price) for one, price in each)
    counted = objective.evaluate(searched, memories)
    if abs(counted - energy) > _SAME * counted:
        raise MemplanError(
            f"internal error in memplan; please report it: {layer.name}: the "
            f"divisors search says {energy:.12g} pJ, and its nest has "
            f"{counted:.12g} pJ. The nest: {searched}"
        )
    bound: float | None = found.lower_bound * sized.G
    if sized != layer:
        memories = dict(best_memories(objective.traffic(nest), objective))
        energy = objective.evaluate(nest, memories)
        bound, proved = None, False
    return Result(
        nest,
        "divisors",
        energy,
        0.0,
        found.labels,
        found.proved,
        memories,
        bound,
        proved,
        interrupted=found.interrupted,
    )


KERNEL_DIMS = (*LOOPS, *WINDOW)  # as the kernels number them
MOST = 24  # loops that a start of a search may have

Loops = Sequence[tuple[int, int]]  # dimension and extent, innermost first


def numbered(nest: Nest) -> list[tuple[int, int]]:
    """The loops as the kernels have them, without groups."""
    pairs = ((loop.dim, loop.outer) for loop in nest.loops)
    return [(KERNEL_DIMS.index(dim), extent) for dim, extent in pairs if dim != "G"]


def nest_from(loops: Loops, layer: Layer, unroll: Mapping[str, int]) -> Nest:
    """The nest of these loops, with a loop over groups where there are several."""
    named = [(KERNEL_DIMS[dim], extent) for dim, extent in loops]
    if base_of(layer, unroll)["G"] < layer.G:
        named.append(("G", layer.G))
    return nest_of(layer, named, unroll)


_ALIKE = [{"X", "Y", "B"}, {"C"}, {"K"}, {"Fw", "Fh"}]  # use the same tensors again


def relaxed_loops(relaxed: _nest.Optimum) -> list[tuple[int, int]]:
    """The loops of a relaxation's optimum, as few as will do; none where there is no
    optimum, or it has more than MOST.

    Neighbours that use the same tensors again are one of each dimension, up to a stripe
    of the input that is kept, and outside of it; a loop along which a kept buffer
    slides stays as it is, around the same tile.
    """
    named = [KERNEL_DIMS[dim] for dim, _ in relaxed.loops]
    slid = {number for _, number, _, _, slides in relaxed.kept if slides}
    striped = {n for tensor, n, *_ in relaxed.kept if tensor == 0 and named[n] in "XY"}
    kept: list[tuple[int, int]] = []
    inside = 0  # loops that are in a stripe, or in a sliding buffer
    for number, (dim, extent) in enumerate(relaxed.loops):
        place = len(kept)
        if number in slid:
            inside = place
        alike = next(group for group in _ALIKE if named[number] in group)
        while place > inside and KERNEL_DIMS[kept[place - 1][0]] in alike:
            place -= 1
            if kept[place][0] == dim:
                del kept[place]
        kept.append((dim, extent))
        if number in striped:
            inside = len(kept)
    return kept if len(kept) <= MOST else []
