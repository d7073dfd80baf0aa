"""Energy of accesses as the paper counts them (equation 1)."""

from __future__ import annotations

from memplan.blocking.machine.energy import Curve
from memplan.blocking.nest.counts import ELEMENT_BYTES
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.paper_counts import LiteralTraffic


def literal_energy(
    traffic: dict[Tensor, LiteralTraffic], curves: dict[Tensor, Curve]
) -> float:
    """pJ, every buffer in a memory of its own; main memory is read once where the
    outermost buffer is on the chip, or where there is none."""
    total = 0.0
    for tensor, own in traffic.items():
        curve = curves[tensor]
        total += sum(
            buffer.accesses * curve(ELEMENT_BYTES * buffer.elements)
            for buffer in own.buffers
        )
        outside = own.buffers[-1].elements if own.buffers else 0
        if ELEMENT_BYTES * outside <= curve.dram_above:
            total += curve.dram_pj * own.alpha
    return total
