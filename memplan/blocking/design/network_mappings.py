"""Memories for a whole network, and each layer's spatial mapping on them.

Memories are designed for a datapath that is known, mappings chosen on memories that
are. So both are done by turns, beginning with the channels along the array's sides, as
long as the sum over the layers falls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.design.network import LayerEnergy, NetworkEnergy, distinct
from memplan.blocking.design.network_design import NetworkDesign, design_network
from memplan.blocking.nest.array import Array
from memplan.blocking.nest.layer import Layer
from memplan.blocking.search.mappings import usual
from memplan.blocking.search.result import Options
from memplan.blocking.search.spatial import search_one_of
from memplan.errors import NoPlanError

_ROUNDS = 4
_USUAL = 6.0  # seconds of a layer's mappings, where there is no limit
_SAME = 1e-9
_DEFAULT = Options()
_Mappings = Mapping[Layer, Mapping[str, int]]


@dataclass(frozen=True)
class _Limit:
    """Seconds of everything; None where there are as many as it takes."""

    seconds: float | None
    begin: float

    def share(self, part: float) -> float | None:
        """A part of what is left."""
        if self.seconds is None:
            return None
        return max(part * (self.seconds - (time.monotonic() - self.begin)), 0.0)


def design_mapped_network(  # noqa: PLR0913 - by name, but three
    layers: Sequence[Layer],
    array: Array,
    budget: int,
    *,
    levels: int = 2,
    counts: Sequence[int] | None = None,
    objective: Codesign | None = None,
    options: Options = _DEFAULT,
    progress: Callable[[float, float], None] | None = None,
) -> NetworkDesign:
    """`design_network`, with the best mapping found of each layer on `array`.

    The arguments, and what is raised, are those of `design_network`; the time limit is
    for all of it, without one a layer's mappings have six seconds a round. Each layer's
    result says what became of its mappings on these memories. `common` is the paper's
    way with the mappings that the memories were designed for.
    """
    limit = _Limit(options.time_limit, time.monotonic())
    pairs = distinct(layers, counts)
    mappings: _Mappings = {layer: usual(layer, array) for layer, _ in pairs}
    best: NetworkDesign | None = None
    complete = True
    try:
        for number in range(_ROUNDS):
            part = replace(options, time_limit=limit.share(0.5 if best else 0.25))
            design = design_network(
                [layer for layer, _ in pairs],
                mappings.__getitem__,
                budget,
                levels=levels,
                counts=[count for _, count in pairs],
                objective=objective,
                options=part,
                last_pass=False,
                progress=progress,
            )
            best = best or design
            if not design.complete and options.time_limit is None:
                raise KeyboardInterrupt  # which `design_network` takes for its end
            mapped = _mapped(design, array, options, limit.share(0.5))
            if number and mapped.network.energy >= best.network.energy * (1 - _SAME):
                break
            best, before = mapped, mappings
            mappings = {
                one.layer: one.result.nest.unroll for one in mapped.network.layers
            }
            if progress is not None:
                progress(mapped.network.energy, time.monotonic() - limit.begin)
            if mappings == before or limit.share(1.0) == 0.0:
                break
    except (KeyboardInterrupt, NoPlanError):  # the latter, where time is too short
        if best is None:
            raise
        complete = False
    assert best is not None
    seconds = time.monotonic() - limit.begin
    return replace(best, complete=best.complete and complete, seconds=seconds)


def _mapped(
    design: NetworkDesign, array: Array, options: Options, seconds: float | None
) -> NetworkDesign:
    """The design with each layer's best mapping on its memories, which may be the one
    that it had."""
    memories, own = Fixed(design.network.hierarchy), design.network.layers
    found: list[LayerEnergy] = []
    for one in own:
        limit = _USUAL if seconds is None else seconds / len(own)
        how = replace(options, time_limit=limit)
        result = search_one_of(one.layer, array, memories, how)
        if one.result.energy < result.energy * (1 - _SAME):
            result = replace(
                result,
                nest=one.result.nest,
                energy=one.result.energy,
                memories=one.result.memories,
                proved=False,
            )
        found.append(LayerEnergy(one.layer, one.count, result))
    network = NetworkEnergy(design.network.hierarchy, tuple(found))
    # The bound is of the mappings that the memories were designed for.
    return replace(design, network=network, lower_bound=None)
