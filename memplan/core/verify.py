"""The independent checker: shares no code with any solver.

It sweeps the clock once, with the address ranges of the live buffers in order. As long
as these are free of overlaps, a newcomer can only touch its neighbours; one that does
is reported and kept out. The sweep is native, and no source of the solvers' is in that
module. A buffer with gaps comes and goes in pieces: the rectangles of time and bytes
that it uses.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.plan import Plan, Stated, Warmup
from memplan.core.planfile import as_plan
from memplan.core.problem import Problem, join, pieces
from memplan.files import PathLike
from memplan.limits import MAX_INTEGER, MAX_TOTAL_BYTES
from memplan.native import _verify


class Failure(str, enum.Enum):
    """What can be wrong with a plan."""

    OVERLAP = "overlap"
    MISALIGNED = "misaligned"
    OUTSIDE = "outside"
    MOVED = "moved"
    MISSING = "missing"
    FINGERPRINT = "fingerprint"
    BOUND = "bound"
    PEAK = "peak"


@dataclass(frozen=True)
class Violation:
    """One failure: its kind, the buffers concerned, and a sentence with numbers."""

    failure: Failure
    buffers: tuple[str, ...]
    message: str


def verify(plan: Plan | PathLike) -> list[Violation]:
    """Everything wrong with `plan`, or with that in a file; empty when it is safe to
    apply.

    Names every buffer that is misaligned, out of place or outside the arena, and
    every buffer that collides with one already found sound. At least one violation
    is reported for any plan in which two live buffers share a byte. Raises TypeError
    for anything else than a plan or a path, and InputError for a file that cannot be
    read.
    """
    plan = as_plan(plan)
    if len(plan.offsets) != len(plan.problem):
        capacity = 0  # no peak to speak of: what is wrong is the number of offsets
    else:
        capacity = plan.peak if plan.stated is None else plan.stated.peak
    found = verify_offsets(plan.problem, plan.offsets, capacity)
    if plan.stated is not None:
        found += _misstated(plan, plan.stated)
    if not found and plan.lower_bound > plan.peak:
        found.append(
            Violation(
                Failure.BOUND,
                (),
                f"peak {plan.peak} is below the stated lower bound {plan.lower_bound}",
            )
        )
    if not found and plan.warmup is not None:
        found = _verify_warmup(plan, plan.warmup)
    for number, kind in enumerate(plan.kinds if not found else ()):
        for one in verify_offsets(kind.problem, kind.offsets, plan.lane_bytes):
            text = f"kind {number}: {one.message}"
            found.append(Violation(one.failure, one.buffers, text))
    return found


def _misstated(plan: Plan, stated: Stated) -> list[Violation]:
    """What a plan's file says of its buffers, and is not so."""
    found = []
    if stated.fingerprint != plan.problem.fingerprint():
        text = "the fingerprint is not that of the sizes and lifespans listed"
        found.append(Violation(Failure.FINGERPRINT, (), text))
    if len(plan.offsets) == len(plan.problem) and stated.peak not in _peaks(plan):
        text = f"the stated peak is {stated.peak}, the buffers reach {plan.peak}"
        found.append(Violation(Failure.PEAK, (), text))
    return found


def _peaks(plan: Plan) -> tuple[int, int]:
    """What a file may state as the peak: memplan once rounded it up."""
    unit = plan.problem.granularity
    return plan.peak, -(-plan.peak // unit) * unit


def verify_offsets(
    problem: Problem, offsets: Int64Array, capacity: int
) -> list[Violation]:
    """Violations of `offsets` (bytes, shape (n,)) in an arena of `capacity` bytes."""
    if len(offsets) != len(problem):
        text = f"{len(offsets)} offsets for {len(problem)} buffers"
        return [Violation(Failure.MISSING, (), text)]
    return _misplaced(problem, offsets, capacity) + _overlaps(problem, offsets)


def _misplaced(problem: Problem, offsets: Int64Array, capacity: int) -> list[Violation]:
    """Buffers outside the arena, misaligned or moved; in this order for each."""
    # An offset may be any integer: subtract rather than add, lest it wrap around.
    highest = min(capacity, MAX_INTEGER) - problem.taken
    outside = (offsets < 0) | (offsets > highest)
    askew = offsets % problem.alignment != 0
    moved = (problem.fixed >= 0) & (offsets != problem.fixed)
    found: list[Violation] = []
    for i in np.flatnonzero(outside | askew | moved).tolist():
        name, offset = problem.label(i), int(offsets[i])
        if outside[i]:
            bytes_ = f"[{offset}, {offset + int(problem.taken[i])})"
            text = f"buffer {name}: {bytes_} leaves [0, {capacity})"
            found.append(Violation(Failure.OUTSIDE, (name,), text))
        if askew[i]:
            unit = problem.alignment[i]
            text = f"buffer {name}: offset {offset} is not a multiple of {unit}"
            found.append(Violation(Failure.MISALIGNED, (name,), text))
        if moved[i]:
            at = problem.fixed[i]
            text = f"buffer {name}: offset {offset}, but it is fixed at {at}"
            found.append(Violation(Failure.MOVED, (name,), text))
    return found


def _overlaps(problem: Problem, offsets: Int64Array) -> list[Violation]:
    used = pieces(problem)
    # What lies further off is outside of any arena; its top must not wrap around.
    far = MAX_TOTAL_BYTES - 1
    placed = np.clip(offsets, -far, far)[used.owner]
    start, end = placed + used.begin, placed + used.end
    found: list[Violation] = []
    seen: set[tuple[int, int]] = set()
    clashes = _verify.overlaps(used.lower, used.upper, start, end)
    for i, j, time in clashes.tolist():
        one, other = int(used.owner[i]), int(used.owner[j])
        pair = (min(one, other), max(one, other))
        if pair not in seen:
            seen.add(pair)
            low, high = int(max(start[i], start[j])), int(min(end[i], end[j]))
            found.append(_overlap(problem, pair, low, high, max(time, 0)))
    return found


def _overlap(
    problem: Problem, pair: tuple[int, int], low: int, high: int, time: int
) -> Violation:
    names = (problem.label(pair[0]), problem.label(pair[1]))
    text = (
        f"buffers {names[0]} and {names[1]} are both alive at tick {time} "
        f"and share the bytes [{low}, {high})"
    )
    return Violation(Failure.OVERLAP, names, text)


def _verify_warmup(plan: Plan, warmup: Warmup) -> list[Violation]:
    """The warm-up, and the first hot step that follows it, on one linear clock."""
    joint, offsets = warmup_with_first_step(plan, warmup)
    return verify_offsets(joint, offsets, plan.warmup_room)


def warmup_with_first_step(plan: Plan, warmup: Warmup) -> tuple[Problem, Int64Array]:
    """Warm-up buffers followed by the hot ones of the first pass, and their offsets.

    On the warm-up's clock the first hot pass begins at `warmup.ticks`; a wrap-around
    buffer is first born in it, and reaches over its end.
    """
    hot, before = plan.problem, warmup.problem
    period = hot.length or 0
    upper = np.where(hot.wraps, hot.upper + period, hot.upper)
    later = None if hot.gaps is None else hot.gaps.shifted(len(before), warmup.ticks)
    joint = Problem.of(
        np.concatenate([before.lower, hot.lower + warmup.ticks]),
        np.concatenate([before.upper, upper + warmup.ticks]),
        np.concatenate([before.size, hot.size]),
        alignment=np.concatenate([before.alignment, hot.alignment]),
        labels=[f"warm-up {before.label(i)}" for i in range(len(before))]
        + [hot.label(i) for i in range(len(hot))],
        gaps=join(before.gaps, later),
        rounding=math.gcd(before.rounding, hot.rounding),
    )
    return joint, np.concatenate([warmup.offsets, plan.offsets])
