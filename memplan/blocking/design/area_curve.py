"""The least energy for budgets of bytes, and the area they take (paper, figure 7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign
from memplan.blocking.machine.technology import area_mm2
from memplan.blocking.nest.array import Datapath
from memplan.blocking.nest.layer import Layer
from memplan.blocking.plan import CurvePoint
from memplan.blocking.search.result import Options
from memplan.blocking.search.spatial import search_one_of

_DEFAULT = Options()


def area_curve(
    layer: Layer,
    budgets: Sequence[int],
    unroll: Datapath,
    options: Options = _DEFAULT,
    objective: Codesign | None = None,
) -> Iterator[CurvePoint]:
    """The least energy within each budget of bytes, in the order given.

    options: of each budget's search. objective: curves and bits, its budget is not
    used. Raises as `search_datapath` does.
    """
    for budget in budgets:
        machine = replace(objective or Codesign(), budget=budget)
        result = search_one_of(layer, unroll, machine, options)
        found = evaluate(layer, result.nest, machine, choice=result.memories)
        nbytes = found.sram_bytes
        area = area_mm2(nbytes, machine.technology.area)
        yield CurvePoint(budget, nbytes, area, result.energy)
