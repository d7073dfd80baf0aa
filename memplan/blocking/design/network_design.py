"""The memories that a whole network needs least energy with (paper, section 3.6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.network import NetworkEnergy, distinct
from memplan.blocking.design.network_search import SMALLEST, STEP, NetworkSearch
from memplan.blocking.nest.layer import Layer
from memplan.blocking.search.nest_pool import Design
from memplan.blocking.search.result import Options
from memplan.errors import NoPlanError, UsageError

MAX_LEVELS = 3
_DEFAULT = Options()


@dataclass(frozen=True)
class NetworkDesign:
    """network: the layers on the best memories found; sizes: these, bytes by tensor,
    inner to outer. common: what the paper's method gives, where `considered` designs of
    each layer had to be taken until one was common. complete: whether the search came
    to its end, and not to that of its time. lower_bound: pJ that no memories within the
    budget do with less than, by nests of the space that the layers' are of; None where
    there was no time for it."""

    network: NetworkEnergy
    sizes: Design
    common: NetworkEnergy
    considered: int
    complete: bool
    seconds: float
    lower_bound: float | None = None

    @property
    def gap(self) -> float | None:
        """How far above the lower bound the network is, relative to it."""
        if self.lower_bound is None:
            return None
        return self.network.energy / self.lower_bound - 1


def design_network(  # noqa: PLR0913 - by name, but three
    layers: Sequence[Layer],
    unroll: Mapping[str, int] | Callable[[Layer], Mapping[str, int]],
    budget: int,
    *,
    levels: int = 2,
    counts: Sequence[int] | None = None,
    objective: Codesign | None = None,
    options: Options = _DEFAULT,
    progress: Callable[[float, float], None] | None = None,
) -> NetworkDesign:
    """Sizes of up to `levels` memories a tensor, no more than `budget` bytes in all.

    unroll: what the datapath does at once, for all layers, or said of each. counts: how
    often each layer is run; objective: curves, bits and whether fills count,
    its budget is not used. options: of the exact search, but that the time limit is for
    all of it; after that, or Ctrl-C, the best so far is returned, once there is one.
    progress: called with the least pJ so far and the seconds. The
    network's energy is never above the common design's.
    Raises UsageError where budget, levels or counts make no sense, and NoPlanError
    where there was no time for any design.
    """
    if not 1 <= levels <= MAX_LEVELS:
        raise UsageError(f"{levels} levels of memory: take 1 to {MAX_LEVELS}")
    least = 3 * sum(SMALLEST * STEP**i for i in range(levels))
    if budget < least:
        raise UsageError(
            f"a budget of {budget} bytes: {levels} levels need at least {least}"
        )
    designer = NetworkSearch(
        distinct(layers, counts), unroll, (budget, levels), objective, options, progress
    )
    complete = True
    try:
        designer.run()
    except KeyboardInterrupt:
        if designer.common is None:
            raise
        complete = False
    except TimeoutError:
        if designer.common is None:
            raise NoPlanError(
                f"{options.time_limit} seconds are too short to compare any designs"
            ) from None
        complete = False
    assert designer.common is not None and designer.best is not None
    sizes, network = designer.best
    return NetworkDesign(
        network,
        sizes,
        designer.common,
        designer.considered,
        complete,
        time.monotonic() - designer.begin,
        designer.lower_bound,
    )
