"""The least energy for budgets of bytes, and the area they take (paper, figure 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.machine.area import DIANNAO_MM2, area_mm2
from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.nest.layer import Layer
from memplan.blocking.search.optimize import Result, optimize


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
        nbytes = evaluate(layer, result.nest, own, choice=result.memories).sram_bytes
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
