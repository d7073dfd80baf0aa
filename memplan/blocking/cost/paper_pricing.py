"""Energy of accesses as the paper counts them (equation 1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memplan.blocking.cost.pricing import MAIN, Share
from memplan.blocking.machine.energy import Curve
from memplan.blocking.nest.counts import Buffer, Traffic, runs
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.blocking.nest.paper_counts import PaperTraffic, count_as_paper
from memplan.blocking.nest.precision import Precision

_DEFAULT = Precision()


def paper_traffic(nest: Nest, precision: Precision = _DEFAULT) -> dict[Tensor, Traffic]:
    """The paper's counts in the shape of exact ones: all accesses are reads, of the
    output of partial sums."""
    found = {}
    for tensor, own in count_as_paper(nest).items():
        bits = precision.held(tensor)
        served = [round(buffer.accesses) for buffer in own.buffers] + [own.alpha]
        # Where the paper has fewer buffers than there are runs, the first is missing.
        spans = list(runs(nest, tensor))
        spans = spans[len(spans) - len(own.buffers) :]
        buffers = tuple(
            Buffer(
                *spans[place],
                buffer.elements,
                served[place],
                0,
                served[place + 1],
                0,
                bits,
                bits,
            )
            for place, buffer in enumerate(own.buffers)
        )
        found[tensor] = Traffic(
            tensor, own.alpha, served[0], buffers, own.alpha, bits, bits
        )
    return found


def paper_shares(
    nest: Nest, curves: Mapping[Tensor, Curve], precision: Precision = _DEFAULT
) -> Iterator[Share]:
    """Every buffer's share in a memory of its own, tensor after tensor.

    Main memory is read once where the outermost buffer is on the chip, or where there
    is none; what is too large for the chip is in main memory itself.
    """
    for tensor, own in count_as_paper(nest).items():
        yield from _of_buffers(own, curves[tensor], precision)
        yield from _of_main(own, curves[tensor], precision)


def paper_energy(
    nest: Nest, curves: Mapping[Tensor, Curve], precision: Precision = _DEFAULT
) -> float:
    """pJ of all of these."""
    total = 0.0
    for tensor, own in count_as_paper(nest).items():
        for shares in (_of_buffers, _of_main):
            total += sum(share.pj for share in shares(own, curves[tensor], precision))
    return total


def _of_buffers(
    own: PaperTraffic, curve: Curve, precision: Precision
) -> Iterator[Share]:
    scale = precision.scale(own.tensor)
    for place, buffer in enumerate(own.buffers):
        nbytes = _nbytes(own.tensor, buffer.elements, precision)
        level = MAIN if nbytes > curve.dram_above else f"B{place}"
        pj = scale * buffer.accesses * curve(nbytes)
        yield Share(level, own.tensor, round(buffer.accesses), pj)


def _of_main(own: PaperTraffic, curve: Curve, precision: Precision) -> Iterator[Share]:
    outside = own.buffers[-1].elements if own.buffers else 0
    if _nbytes(own.tensor, outside, precision) <= curve.dram_above:
        pj = precision.scale(own.tensor) * (curve.dram_pj * own.alpha)
        yield Share(MAIN, own.tensor, own.alpha, pj)


def _nbytes(tensor: Tensor, elements: int, precision: Precision) -> int:
    return -(-precision.held(tensor) * elements // 8)
