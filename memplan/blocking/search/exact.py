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
from collections.abc import Callable, Mapping, Sequence, Set

from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.cost.placement import BufferMemory
from memplan.blocking.machine.energy import Curve
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.layer import DIMS, Layer, Tensor
from memplan.blocking.nest.nest import Nest, nest_of, parse_nest
from memplan.blocking.nest.precision import Precision
from memplan.blocking.search.result import Options, Result
from memplan.cores import cores
from memplan.errors import NoPlanError, UsageError
from memplan.native import _nest

DIVISORS = Options("divisors")
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
    sized = layer.padded(unroll)
    base = base_of(sized, unroll)
    try:
        found = _nest.optimum(
            problem_of(sized, unroll, objective),
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
    return _read(found, sized, base, objective.precision, seconds)


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
        element_bytes=[_element_bytes(t, base, precision) for t in Tensor],
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


def _element_bytes(
    tensor: Tensor, base: Mapping[str, int], precision: Precision
) -> float:
    return precision.held(tensor) * base["G"] / 8


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
    sized: Layer,
    base: Mapping[str, int],
    precision: Precision,
    seconds: float,
) -> Result:
    """What the kernel found for one group, for all of them, as a string."""
    tokens: list[str] = []
    first: list[int] = []  # token of each loop
    for dim, extent in found.loops:
        first.append(len(tokens))
        if dim < len(LOOPS):
            tokens.append(f"{LOOPS[dim]}{extent}")
        else:
            tokens += [f"{d}{sized.size(d)}" for d in WINDOW if sized.size(d) > base[d]]
    if base["G"] < sized.G:
        tokens.append(f"G{sized.G}")
    memories = []
    for number, loop, elements, pj, slides in found.kept:
        tensor = tuple(Tensor)[number]
        nbytes = math.ceil(_element_bytes(tensor, base, precision) * elements)
        own_pj = pj / precision.scale(tensor)
        own = BufferMemory(tensor, first[loop], nbytes, own_pj, None, slides)
        memories.append(own)
    unroll = {dim: n for dim, n in base.items() if n > 1}
    return Result(
        parse_nest(" ".join(tokens), sized, unroll),
        "divisors",
        found.energy * sized.G,
        seconds,
        found.labels,
        found.proved,
        found.lower_bound * sized.G,
        found.proved,
        tuple(memories),
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


def relaxed_loops(relaxed: _nest.Optimum) -> list[tuple[int, int]]:
    """The loops of a relaxation's optimum, as few as will do; none where there is no
    optimum, or it has more than MOST."""
    # The loops along which a buffer that is kept slides.
    slid = {number for _, number, _, _, slides in relaxed.kept if slides}
    loops = _kept(relaxed.loops, _striped(relaxed), slid)
    return loops if len(loops) <= MOST else []


def _striped(relaxed: _nest.Optimum) -> set[int]:
    """Numbers of the loops that sweep over a stripe of the input that is kept."""
    outer = [number for tensor, number, *_ in relaxed.kept if tensor == 0]
    return {number for number in outer if KERNEL_DIMS[relaxed.loops[number][0]] in "XY"}


def _kept(loops: Loops, striped: Set[int], slid: Set[int]) -> list[tuple[int, int]]:
    """The relaxation's loops, of which neighbours that use the same tensors again are
    one of each dimension, up to a stripe and outside of it; a loop along which a buffer
    slides stays as it is, around the same tile."""
    kept: list[tuple[int, int]] = []
    inside = 0  # loops that are in a stripe, or in a sliding buffer
    for number, (dim, extent) in enumerate(loops):
        place = len(kept)
        if number in slid:
            inside = place
        while place > inside and _alike(kept[place - 1][0], dim):
            place -= 1
            if kept[place][0] == dim:
                del kept[place]
        kept.append((dim, extent))
        if number in striped:
            inside = len(kept)
    return kept


def _alike(one: int, other: int) -> bool:
    """Whether loops of both dimensions use the same tensors again."""
    groups = (("X", "Y", "B"), ("C",), ("K",), ("Fw", "Fh"))
    return any(
        KERNEL_DIMS[one] in group and KERNEL_DIMS[other] in group for group in groups
    )
