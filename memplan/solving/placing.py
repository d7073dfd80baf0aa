"""Buffers placed one by one, each as low as it can go around those already placed.

Also here: lifetimes, and the tick at which a periodic clock is best cut open.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.core.bounds import padded_live_bytes
from memplan.core.problem import FREE, Problem, pieces
from memplan.core.verify import verify_offsets
from memplan.errors import NoPlanError, UsageError, as_options
from memplan.limits import MAX_TOTAL_BYTES
from memplan.native import _dsa

ORDERS = ("lifetime", "size")


def place_around(
    problem: Problem,
    capacity: int | None = None,
    order: str | npt.NDArray[np.int32] = "lifetime",
) -> Int64Array:
    """Offsets in bytes, shape (n,), around the buffers with a fixed offset.

    Each buffer takes the lowest gap between the buffers placed before it that are
    alive at the same time. A buffer that would reach above `capacity` bytes gets the
    offset -1; fixed buffers stay where they are.

    order: "lifetime" (longest first) or "size" (largest first); ties go by the other
    key, descending, then by index. Or the indices of all buffers, int32, shape (n,).

    Raises NoPlanError if two fixed buffers collide, UsageError for an unknown order, a
    negative capacity, or gaps in lifespans, which `place_pieces` takes.
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
        # Larger than any offset, small enough for the kernel's integers.
        None if capacity is None else min(capacity, 2 * MAX_TOTAL_BYTES - 1),
    )


def place_pieces(problem: Problem, order: npt.NDArray[np.int32]) -> Int64Array:
    """Offsets in bytes, shape (n,), of buffers whose lifespans may have gaps.

    A buffer with gaps is several rectangles of time and bytes that move together (see
    `memplan.core.problem`); another buffer may lie in its gaps. Each pair of
    pieces alive at the same time forbids an interval of offsets; each buffer takes the
    lowest multiple of its alignment that is left. Fixed buffers come first.

    problem: on a linear clock. order: indices of all buffers, int32, shape (n,); fixed
    ones are skipped. Takes one sort per buffer of the placed buffers that it meets.

    Raises NoPlanError if two fixed buffers collide.
    """
    refuse_collisions(problem)
    return _dsa.place_pieces(
        problem.padded,
        problem.alignment,
        problem.fixed,
        order[problem.fixed[order] == FREE],
        pieces(problem).table,
    )


def refuse_gaps(problem: Problem, method: str) -> None:
    """Raise UsageError if `problem` has gaps, which `method` does not support."""
    if problem.gaps is None:
        return
    count = len(np.unique(problem.gaps.buffer))
    text = (
        f"{method} does not support gaps in lifespans, and {count:,} of "
        f'{len(problem):,} buffers have gaps; use method="auto", search or bestfit'
    )
    raise UsageError(text, shell=as_options(text))


def refuse_collisions(problem: Problem) -> None:
    """Raise NoPlanError if two buffers collide at their fixed offsets, naming them."""
    chosen = (problem.fixed != FREE).nonzero()[0]
    if not len(chosen):
        return
    fixed = Problem.of(
        problem.lower[chosen],
        problem.upper[chosen],
        problem.size[chosen],
        length=problem.length,
        labels=[problem.label(i) for i in chosen.tolist()],
        gaps=None if problem.gaps is None else problem.gaps.among(chosen),
    )
    collisions = verify_offsets(fixed, problem.fixed[chosen], 2 * MAX_TOTAL_BYTES)
    if collisions:
        raise NoPlanError(
            f"{collisions[0].message}: no plan can hold both at their fixed offsets"
        )


def lifetimes(problem: Problem) -> Int64Array:
    """Ticks each buffer lives, shape (n,): upper - lower, across the period's end."""
    if problem.length is None:
        return problem.upper - problem.lower
    around = problem.length - problem.lower + problem.upper
    return np.where(problem.wraps, around, problem.upper - problem.lower)


def quietest_moment(problem: Problem) -> int:
    """The tick that the fewest padded bytes are alive across; 0 on a linear clock.

    A buffer born or freed at a tick is not alive across it. The earliest of equals.
    """
    if problem.length is None:
        return 0
    moments, live = padded_live_bytes(problem)
    born = np.zeros(len(moments), dtype=np.int64)
    np.add.at(born, np.searchsorted(moments, problem.lower), problem.padded)
    # The end of the period is its beginning, which is on the list.
    across = (live - born)[moments < problem.length]
    return int(moments[np.argmin(across)])


def spans(problem: Problem, moment: int = 0) -> tuple[Int64Array, Int64Array]:
    """Half-open lifespans [start, end), shape (n,) each, counted from `moment`.

    On a periodic clock 0 <= start < length, and end exceeds the length for a buffer
    that is alive across the moment. A linear clock stays as it is.
    """
    if problem.length is None:
        return problem.lower, problem.upper
    start = np.mod(problem.lower - moment, problem.length)
    return start, start + lifetimes(problem)
