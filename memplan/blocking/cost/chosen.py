"""What a loop nest comes to with the buffers that the exact search chose for it.

Where buffers compete for bytes, to serve those used most first is a rule, and no law:
a choice may do better, and the exact search makes the best one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memplan.blocking.cost.evaluation import Evaluation, Placed, Share, sram_bytes
from memplan.blocking.cost.held import Held, held_flows, level_of
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.cost.packing import MAIN, buffer_name
from memplan.blocking.machine.energy import MAC_PJ
from memplan.blocking.nest.counts import Traffic, count
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest


def evaluate_chosen(
    layer: Layer, nest: Nest, objective: Objective, held: Sequence[Held]
) -> Evaluation:
    """The evaluation of `nest` if the buffers `held` have a memory each, and all that
    lies outside them is in main memory."""
    traffic = count(nest)
    if isinstance(objective, Codesign):
        names = [f"B{place}" for place in range(len(held))]
        on_chip, mac_pj = sum(one.nbytes for one in held), MAC_PJ
    else:
        hierarchy = objective.hierarchy
        names = [level.name for level in hierarchy.levels]
        on_chip, mac_pj = sram_bytes(hierarchy), hierarchy.mac_pj
    served = {
        (name, tensor): Share(name, tensor, 0, 0.0)
        for name in [*names, MAIN]
        for tensor in traffic
    }
    for tensor, own in traffic.items():
        for place, flow in enumerate(held_flows(own, objective, held)):
            level = _level(objective, place, flow.held)
            before = served[level, tensor]
            accesses, pj = before.accesses + flow.accesses, before.pj + flow.pj
            served[level, tensor] = Share(level, tensor, accesses, pj)
    shares = tuple(
        share
        for share in served.values()
        if share.accesses or isinstance(objective, Fixed)
    )
    buffers = tuple(
        placed for own in traffic.values() for placed in _placed(own, objective, held)
    )
    compulsory = sum(
        own.compulsory * objective.main_pj(tensor) for tensor, own in traffic.items()
    )
    return Evaluation(layer, nest, buffers, shares, compulsory, on_chip, mac_pj)


def _placed(
    own: Traffic, objective: Objective, held: Sequence[Held]
) -> Iterator[Placed]:
    """The buffers that have a memory, and those outside them, which have none."""
    end = place = 0
    for flow in held_flows(own, objective, held):
        if flow.buffer is not None:
            level, end = _level(objective, place, flow.held), flow.buffer.end
            yield Placed(buffer_name(own.tensor, place), own.tensor, level, flow.buffer)
            place += 1
    outside = [buffer for buffer in own.used if buffer.begin >= end]
    for number, buffer in enumerate(outside, place):
        yield Placed(buffer_name(own.tensor, number), own.tensor, MAIN, buffer)


def _level(objective: Objective, place: int, held: Held | None) -> str:
    if held is None:
        return MAIN
    if isinstance(objective, Codesign):
        return f"B{place}"
    depth = level_of(objective.hierarchy, held)
    return MAIN if depth is None else objective.hierarchy.levels[depth].name
