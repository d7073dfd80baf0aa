"""Accesses and energy as the paper counts them: Table 2 and equation 1, literally.

For comparison only. Three things differ from `counts`: each level's refetch rate
carries its own halo, and equation 1 multiplies them; partial sums count twice at every
level; the first fetch from main memory is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from memplan.blocking.machine.energy import Curve
from memplan.blocking.nest.counts import runs
from memplan.blocking.nest.layer import Tensor, columns, footprint
from memplan.blocking.nest.nest import Loop, Nest
from memplan.blocking.nest.precision import Precision

_WINDOW = ("Fw", "Fh")
_DEFAULT = Precision()


@dataclass(frozen=True)
class PaperBuffer:
    """elements: its size; refetch: RR of Table 2; accesses: of equation 1."""

    elements: int
    refetch: float
    accesses: float


@dataclass(frozen=True)
class PaperTraffic:
    """One tensor's buffers, innermost first; alpha: elements, without an input's
    halo, that equation 1 starts from."""

    tensor: Tensor
    alpha: int
    buffers: tuple[PaperBuffer, ...]


def count_as_paper(nest: Nest) -> dict[Tensor, PaperTraffic]:
    """Accesses of each tensor by Table 2 and equation 1."""
    return {tensor: _traffic(nest, tensor) for tensor in nest.layer.tensors}


def paper_energy(
    nest: Nest, curves: Mapping[Tensor, Curve], precision: Precision = _DEFAULT
) -> float:
    """pJ of all accesses, each buffer in a memory of its own.

    Main memory is read once per element where the outermost buffer is on the chip, or
    where there is none; a buffer too large for the chip is in main memory itself.
    """
    total = 0.0
    for tensor, own in count_as_paper(nest).items():
        curve, bits = curves[tensor], precision.held(tensor)
        sizes = [-(-bits * buffer.elements // 8) for buffer in own.buffers]
        scale = precision.scale(tensor)
        for nbytes, buffer in zip(sizes, own.buffers, strict=True):
            total += scale * buffer.accesses * curve(nbytes)
        if not sizes or sizes[-1] <= curve.dram_above:
            total += scale * (curve.dram_pj * own.alpha)
    return total


def _traffic(nest: Nest, tensor: Tensor) -> PaperTraffic:
    layer = nest.layer
    if tensor is Tensor.INPUT:
        alpha = layer.X * layer.Y * layer.C * layer.B * layer.G
    elif tensor is Tensor.KERNEL:
        alpha = layer.C * layer.K * layer.Fw * layer.Fh * layer.G
    else:
        alpha = layer.X * layer.Y * layer.K * layer.B * layer.G
    sizes, rates = [], []
    for begin, end in runs(nest, tensor):
        rate = _refetch(nest, tensor, begin, end)
        if rate is None:
            continue
        inner, outer = nest.extents(begin), nest.extents(end)
        tile = inner | {dim: outer[dim] for dim in _WINDOW}
        sizes.append(footprint(layer, tensor, tile))
        rates.append(rate)
    buffers = tuple(
        PaperBuffer(size, rates[i], float(alpha * prod(rates[i:])))
        for i, size in enumerate(sizes)
    )
    return PaperTraffic(tensor, alpha, buffers)


def _refetch(nest: Nest, tensor: Tensor, begin: int, end: int) -> float | None:
    """RR of Table 2 for the run [begin, end); None where it makes no buffer."""
    own = nest.loops[begin:end]
    reused = prod(_trips(loop) for loop in own if loop.dim not in _WINDOW)
    if tensor is Tensor.KERNEL:
        return reused
    # A window that is innermost is in the halo, not in a loop of its own.
    innermost = all(loop.dim in _WINDOW for loop in nest.loops[:begin])
    if innermost and all(loop.dim in _WINDOW for loop in own):
        return None
    window = prod(_trips(loop) for loop in own if loop.dim in _WINDOW)
    rate = float(reused * (1 if innermost else window))
    if tensor is Tensor.OUTPUT:
        return 2 * rate
    if not innermost and any(loop.dim == "K" for loop in own):
        tile = nest.extents(begin)
        wide = columns(tile["X"], tile["Fw"], nest.layer.stride[0])
        high = columns(tile["Y"], tile["Fh"], nest.layer.stride[1])
        rate *= wide * high / (tile["X"] * tile["Y"])
    return rate


def _trips(loop: Loop) -> int:
    return -(-loop.outer // loop.inner)
