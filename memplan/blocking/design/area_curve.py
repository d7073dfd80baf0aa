"""The least energy for budgets of bytes, and the area they take (paper, figure 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign
from memplan.blocking.machine.area import area_mm2
from memplan.blocking.nest.layer import Layer
from memplan.blocking.plan import CurvePoint
from memplan.blocking.search.optimize import optimize_one_of
from memplan.blocking.search.result import Options, Result

_DEFAULT = Options()


def area_curve(
    layer: Layer,
    budgets: Sequence[int],
    unroll: Mapping[str, int],
    options: Options = _DEFAULT,
    progress: Callable[[CurvePoint, Result], None] | None = None,
) -> list[CurvePoint]:
    """The least energy within each budget of bytes, in the order given.

    options: of each budget's search. progress: called after each, with its result.
    Raises as `optimize` does.
    """
    points = []
    for budget in budgets:
        machine = Codesign(budget=budget)
        result = optimize_one_of(layer, unroll, machine, options)
        found = evaluate(layer, result.nest, machine, choice=result.memories)
        nbytes = found.sram_bytes
        points.append(CurvePoint(budget, nbytes, area_mm2(nbytes), result.energy))
        if progress is not None:
            progress(points[-1], result)
    return points
