"""One search among many, which another process may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from memplan.blocking.cost.objective import Objective
from memplan.blocking.nest.layer import Layer
from memplan.blocking.search.optimize import optimize_one_of
from memplan.blocking.search.result import Options, Result

_DEFAULT = Options()


@dataclass(frozen=True)
class Task:
    """One search; what `optimize` takes."""

    layer: Layer
    unroll: Mapping[str, int]
    objective: Objective
    options: Options = _DEFAULT

    def run(self) -> Result:
        """The search's result, found on one thread."""
        options = replace(self.options, threads=1)
        return optimize_one_of(self.layer, self.unroll, self.objective, options)
