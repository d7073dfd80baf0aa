"""The hierarchy that a design of memories stands for."""

from __future__ import annotations

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.search.nest_pool import Design
from memplan.errors import UsageError


def private_hierarchy(design: Design, objective: Codesign) -> Hierarchy:
    """Levels of memories that each tensor has for itself, innermost first.

    A tensor with fewer memories than others has none in the inner levels, which are of
    0 bytes.
    """
    depth = max(map(len, design.values()))
    filled = {t: (*(0,) * (depth - len(s)), *s) for t, s in design.items()}
    levels = tuple(
        Level(
            f"SRAM{i + 1}",
            None,
            {t: filled[t][i] for t in Tensor},
            {},
            sliding=objective.sliding,
        )
        for i in range(depth)
    )
    curves = objective.curves
    drams = {curves[tensor].dram_pj for tensor in Tensor}
    if len(drams) > 1:
        raise UsageError("the tensors' curves give main memory several energies")
    return Hierarchy(
        "designed",
        "Designed",
        "",
        levels,
        curves,
        drams.pop(),
        objective.mac_pj,
        objective.count_fills,
        objective.precision,
        objective.technology,
    )
