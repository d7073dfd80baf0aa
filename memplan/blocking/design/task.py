"""One search among many, which another process may run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memplan.blocking.cost.objective import Objective
from memplan.blocking.nest.array import Datapath
from memplan.blocking.nest.layer import Layer
from memplan.blocking.search.result import Options, Result
from memplan.blocking.search.spatial import search_one_of

_DEFAULT = Options()


@dataclass(frozen=True)
class Task:
    """One search; what `search_datapath` takes."""

    layer: Layer
    datapath: Datapath
    objective: Objective
    options: Options = _DEFAULT

    def run(self) -> Result:
        """The search's result, found on one thread."""
        options = replace(self.options, threads=1)
        return search_one_of(self.layer, self.datapath, self.objective, options)
