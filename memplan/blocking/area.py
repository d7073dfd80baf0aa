"""Chip area by bytes of memory, and the least energy for it (paper, figure 7).

The paper has three sizes: DianNao's 36 KiB as the unit, 1 MiB as 6 times and 8 MiB as
45 times that, which is 45 mm². A straight line that keeps the first says 6.3 and 44.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memplan.blocking.codesign import codesign_energy
from memplan.blocking.counts import count
from memplan.blocking.hierarchy_file import load_hierarchy
from memplan.blocking.layer import Layer
from memplan.blocking.objective import Codesign, Fixed
from memplan.blocking.search import Result, optimize

MM2_PER_MIB = 5.5
DIANNAO_MM2 = 1.0
DIANNAO_BYTES = 36 << 10
_MIB = 1 << 20
# What is not memory: the multipliers, and all else.
DATAPATH_MM2 = DIANNAO_MM2 - MM2_PER_MIB * DIANNAO_BYTES / _MIB


def area_mm2(nbytes: int) -> float:
    """mm² of a core with so many bytes of memory on the chip, 45 nm."""
    return DATAPATH_MM2 + MM2_PER_MIB * nbytes / _MIB


@dataclass(frozen=True)
class AreaPoint:
    """One budget: bytes that may be used, and that are; the search's result.

    area, energy: relative to DianNao, the layer blocked as well as its memories allow.
    """

    budget: int
    nbytes: int
    result: Result
    area: float
    energy: float

    @property
    def mm2(self) -> float:
        """Chip area of the bytes used."""
        return area_mm2(self.nbytes)


def area_curve(
    layer: Layer,
    budgets: Sequence[int],
    unroll: Mapping[str, int],
    *,
    objective: Codesign | None = None,
    method: str = "exact",
    time_limit: float | None = None,
    threads: int | None = None,
    progress: Callable[[AreaPoint], None] | None = None,
) -> list[AreaPoint]:
    """The least energy within each budget of bytes, in the order given.

    objective: curves and whether fills count; its budget is not used. time_limit:
    seconds a budget. progress: called after each. Raises UsageError as `optimize` does.
    """
    base = objective or Codesign()
    reference = optimize(
        layer,
        unroll,
        Fixed(load_hierarchy("diannao")),
        time_limit=time_limit,
        threads=threads,
    )
    points = []
    for budget in budgets:
        own = Codesign(base.curves, budget, base.count_fills)
        result = optimize(
            layer, unroll, own, method=method, time_limit=time_limit, threads=threads
        )
        nbytes = _nbytes(result, own)
        point = AreaPoint(
            budget,
            nbytes,
            result,
            area_mm2(nbytes) / DIANNAO_MM2,
            result.energy / reference.energy,
        )
        points.append(point)
        if progress is not None:
            progress(point)
    return points


def _nbytes(result: Result, objective: Codesign) -> int:
    """Bytes of the memories that the result's nest has."""
    if result.held is not None:
        return sum(one.nbytes for one in result.held)
    return codesign_energy(
        count(result.nest), objective.curves, budget=objective.budget
    ).sram_bytes
