"""Energy of a nest whose buffers are chosen one by one, and not by a rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isclose

from memplan.blocking.cost.objective import Codesign, Objective
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.counts import ELEMENT_BYTES, Buffer, Traffic, count
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.errors import MemplanError

_SAME = 1e-9


@dataclass(frozen=True)
class Held:
    """A buffer of the optimum: of `nbytes` bytes, in a memory of `pj` an access.

    loop: index, in the string, of a loop of the run in which it is used again.
    """

    tensor: Tensor
    loop: int
    nbytes: int
    pj: float


def held_energy(nest: Nest, objective: Objective, held: Sequence[Held]) -> float:
    """pJ of all accesses, with these buffers and no others.

    Raises MemplanError where a buffer is none of the nest's, is priced as no memory of
    the objective's is, or all do not fit together; that would be a mistake in a search.
    """
    if isinstance(objective, Codesign):
        _check_own(objective, held)
    else:
        _check_levels(objective.hierarchy, held)
    return sum(
        flow.pj
        for own in count(nest).values()
        for flow in held_flows(own, objective, held)
    )


@dataclass(frozen=True)
class HeldFlow:
    """What one tensor does in the memory of a buffer, or in main memory, where both are
    None: elements served, and their energy in pJ."""

    held: Held | None
    buffer: Buffer | None
    accesses: int
    pj: float


def held_flows(
    own: Traffic, objective: Objective, held: Sequence[Held]
) -> Iterator[HeldFlow]:
    """One tensor's memories, innermost first, and main memory last.

    Raises MemplanError where a buffer of `held` is none of the tensor's.
    """
    flow = own.demand
    for one in held:
        if one.tensor is own.tensor:
            buffer = _buffer(own, one)
            filled = buffer.outward if objective.count_fills else 0
            yield HeldFlow(one, buffer, flow, one.pj * (flow + filled))
            flow = buffer.outward
    yield HeldFlow(None, None, flow, flow * objective.main_pj(own.tensor))


def level_of(hierarchy: Hierarchy, held: Held) -> int | None:
    """The innermost level, from 0, that holds the buffer at its price."""
    for depth, level in enumerate(hierarchy.levels):
        price = hierarchy.price(depth, held.tensor)
        fits = level.capacity(held.tensor) >= held.nbytes
        if fits and isclose(price, held.pj, rel_tol=_SAME):
            return depth
    return None


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
        depth = level_of(hierarchy, one)
        if depth is None:
            raise _wrong(one, "is in no level")
        room = taken[depth]
        room[one.tensor] = max(one.nbytes, room.get(one.tensor, 0))
    for level, used in zip(hierarchy.levels, taken, strict=True):
        if level.shared is not None and sum(used.values()) > level.shared:
            raise MemplanError(f"level {level.name} holds more than it has room for")


def _wrong(held: Held, what: str) -> MemplanError:
    return MemplanError(
        f"a memory of {held.nbytes} bytes for the {held.tensor.value} {what}; this is "
        "a mistake of memplan's"
    )
