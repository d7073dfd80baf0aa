"""What a loop nest comes to with the buffers that the exact search chose for it.

Where buffers compete for bytes, to serve those used most first is a rule, and no law:
a choice may do better, and the exact search makes the best one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isclose

from memplan.blocking.counts import Buffer, Traffic, count
from memplan.blocking.energy import MAC_PJ
from memplan.blocking.evaluation import Evaluation, Placed, Share, sram_bytes
from memplan.blocking.exact import Held
from memplan.blocking.hierarchy import Hierarchy
from memplan.blocking.layer import Layer, Tensor
from memplan.blocking.nest import Nest
from memplan.blocking.objective import Codesign, Fixed, Objective
from memplan.blocking.packing import MAIN, buffer_name

_SAME = 1e-9  # relative; prices that differ by more are not of the same level


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
        mine = [one for one in held if one.tensor is tensor]
        for share in _shares(own, objective, mine):
            before = served[share.level, tensor]
            accesses, pj = before.accesses + share.accesses, before.pj + share.pj
            served[share.level, tensor] = Share(share.level, tensor, accesses, pj)
    shares = tuple(
        share
        for share in served.values()
        if share.accesses or isinstance(objective, Fixed)
    )
    buffers = tuple(
        placed
        for tensor, own in traffic.items()
        for placed in _placed(
            own, objective, [one for one in held if one.tensor is tensor]
        )
    )
    compulsory = sum(
        own.compulsory * _main_pj(objective, tensor) for tensor, own in traffic.items()
    )
    return Evaluation(layer, nest, buffers, shares, compulsory, on_chip, mac_pj)


def _shares(
    own: Traffic, objective: Objective, held: Sequence[Held]
) -> Iterator[Share]:
    """What one tensor does in each of its memories, innermost first."""
    fills = (
        objective.count_fills
        if isinstance(objective, Codesign)
        else objective.hierarchy.count_fills
    )
    flow = own.demand
    for place, one in enumerate(held):
        outward = _buffer(own, one).outward
        pj = one.pj * (flow + outward * fills)
        yield Share(_level(objective, place, one), own.tensor, flow, pj)
        flow = outward
    yield Share(MAIN, own.tensor, flow, flow * _main_pj(objective, own.tensor))


def _placed(
    own: Traffic, objective: Objective, held: Sequence[Held]
) -> Iterator[Placed]:
    """The buffers that have a memory, and those outside them, which have none."""
    end = 0
    for place, one in enumerate(held):
        buffer = _buffer(own, one)
        level, end = _level(objective, place, one), buffer.end
        yield Placed(buffer_name(own.tensor, place), own.tensor, level, buffer)
    outside = [buffer for buffer in own.used if buffer.begin >= end]
    for place, buffer in enumerate(outside, len(held)):
        yield Placed(buffer_name(own.tensor, place), own.tensor, MAIN, buffer)


def _buffer(own: Traffic, held: Held) -> Buffer:
    return next(b for b in own.buffers if b.begin <= held.loop < b.end)


def _level(objective: Objective, place: int, held: Held) -> str:
    if isinstance(objective, Codesign):
        return f"B{place}"
    return _level_of(objective.hierarchy, held)


def _level_of(hierarchy: Hierarchy, held: Held) -> str:
    """The innermost level that holds the buffer at its price."""
    return next(
        level.name
        for depth, level in enumerate(hierarchy.levels)
        if level.capacity(held.tensor) >= held.nbytes
        and isclose(hierarchy.price(depth, held.tensor), held.pj, rel_tol=_SAME)
    )


def _main_pj(objective: Objective, tensor: Tensor) -> float:
    if isinstance(objective, Codesign):
        return objective.curves[tensor].dram_pj
    return objective.hierarchy.dram_pj
