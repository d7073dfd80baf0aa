"""Lowest gap first: buffers placed one by one around those that are there already."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.core.problem import FREE, Problem
from memplan.errors import UsageError
from memplan.limits import MAX_TOTAL_BYTES
from memplan.native import _dsa
from memplan.solving.clock import lifetimes, spans
from memplan.solving.fixed import refuse_collisions
from memplan.solving.gapped import refuse_gaps

ORDERS = ("lifetime", "size")


def place_around(
    problem: Problem,
    capacity: int | None = None,
    order: str | npt.NDArray[np.int32] = "lifetime",
) -> Int64Array:
    """Offsets in bytes, shape (n,), around the buffers with a fixed offset.

    One by one, each buffer takes the lowest gap between those placed before it that
    are alive at the same time. One that would reach above `capacity` bytes is left
    out, with offset -1; fixed buffers stay where they are.

    order: "lifetime", the longest first, or "size", the largest first; ties go by the
    other, descending, then by index. Or the indices of all buffers, int32, shape (n,).

    Raises NoPlanError if two fixed buffers collide, UsageError for an unknown order or
    a negative capacity, and for gaps in lifespans, which `gapped.place_pieces` takes.
    """
    if isinstance(order, str) and order not in ORDERS:
        raise UsageError(
            f"there is no order {order!r}; the orders are {', '.join(ORDERS)}"
        )
    if capacity is not None and capacity < 0:
        raise UsageError(f"a capacity of {capacity} bytes is negative")
    refuse_gaps(problem, "place_around")
    refuse_collisions(problem)
    start, end = spans(problem)
    if isinstance(order, str):
        keys = (lifetimes(problem), problem.padded)
        ranked = _dsa.longest_first(*(keys if order == "lifetime" else keys[::-1]))
    else:
        ranked = order
    return _dsa.fill_gaps(
        start,
        end,
        problem.taken,
        problem.alignment,
        problem.fixed,
        ranked[problem.fixed[ranked] == FREE],
        problem.length or 0,
        # More than any offset can be, so as not to overflow the kernel's integers.
        None if capacity is None else min(capacity, 2 * MAX_TOTAL_BYTES - 1),
    )
