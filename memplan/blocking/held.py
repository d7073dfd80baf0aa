"""Energy of a nest whose buffers are chosen one by one, and not by a rule."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose

from memplan.blocking.counts import ELEMENT_BYTES, Buffer, Traffic, count
from memplan.blocking.exact import Held
from memplan.blocking.hierarchy import Hierarchy
from memplan.blocking.layer import Tensor
from memplan.blocking.nest import Nest
from memplan.blocking.objective import Codesign, Objective
from memplan.errors import MemplanError

_SAME = 1e-9


def held_energy(nest: Nest, objective: Objective, held: Sequence[Held]) -> float:
    """pJ of all accesses, with these buffers and no others.

    Raises MemplanError where a buffer is none of the nest's, is priced as no memory of
    the objective's is, or all do not fit together; that would be a mistake in a search.
    """
    traffic = count(nest)
    if isinstance(objective, Codesign):
        fills = objective.count_fills
        _check_own(objective, held)
    else:
        fills = objective.hierarchy.count_fills
        _check_levels(objective.hierarchy, held)
    total = 0.0
    for tensor, own in traffic.items():
        flow = own.demand
        for one in held:
            if one.tensor is tensor:
                outward = _buffer(own, one).outward
                total += one.pj * (flow + (outward if fills else 0))
                flow = outward
        total += flow * _main_pj(objective, tensor)
    return total


def _main_pj(objective: Objective, tensor: Tensor) -> float:
    if isinstance(objective, Codesign):
        return objective.curves[tensor].dram_pj
    return objective.hierarchy.dram_pj


def _buffer(traffic: Traffic, held: Held) -> Buffer:
    for buffer in traffic.buffers:
        if buffer.begin <= held.loop < buffer.end:
            if ELEMENT_BYTES * buffer.elements == held.nbytes:
                return buffer
            break
    raise _wrong(held, "is no buffer of the nest")


def _check_own(objective: Codesign, held: Sequence[Held]) -> None:
    for one in held:
        if not isclose(objective.curves[one.tensor](one.nbytes), one.pj, rel_tol=_SAME):
            raise _wrong(one, "is not priced by its size")
    total = sum(one.nbytes for one in held)
    if objective.budget is not None and total > objective.budget:
        raise MemplanError(f"buffers of {total} bytes exceed {objective.budget}")


def _check_levels(hierarchy: Hierarchy, held: Sequence[Held]) -> None:
    """Each is in a level of its price that holds it, with the others there."""
    taken: list[dict[Tensor, int]] = [{} for _ in hierarchy.levels]
    for one in held:
        depths = [
            depth
            for depth, level in enumerate(hierarchy.levels)
            if isclose(hierarchy.price(depth, one.tensor), one.pj, rel_tol=_SAME)
            and level.capacity(one.tensor) >= one.nbytes
        ]
        if not depths:
            raise _wrong(one, "is in no level")
        room = taken[depths[0]]
        room[one.tensor] = max(one.nbytes, room.get(one.tensor, 0))
    for level, used in zip(hierarchy.levels, taken, strict=True):
        if level.shared is not None and sum(used.values()) > level.shared:
            raise MemplanError(f"level {level.name} holds more than it has room for")


def _wrong(held: Held, what: str) -> MemplanError:
    return MemplanError(
        f"a memory of {held.nbytes} bytes for the {held.tensor.value} {what}; this is "
        "a mistake of memplan's"
    )
