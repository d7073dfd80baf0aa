"""Where a program's steps begin, and which of them repeat.

Boundaries come from the strongest kind of mark in the trace. A step is *hot* when
the one after it makes the same requests in the same order (profile-guided memory
optimization, section 1); programs that alternate between a few kinds of steps are
hot with a longer period. Failing that, steps that do the same with other sizes are
hot, and *elastic*: sentences of any length, say (section 4.3).

A loop without marks shows as well: the sizes it asks for repeat, again and again, and
the largest block that is requested repeatedly is among them. A pipeline may call one
part of itself twenty times within a single forward call.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.levels import level
from memplan.trace.lives import NEVER, Lives

MAX_PERIOD = 8
RARE = 8  # one step in so many may be another than is due
LEAST_PASSES = 3
MOST_PERIODS = 64  # candidates that are tried
LEAST_PART = 8  # one part in so many of the largest block must be in the loop
_STRIDES = 16  # of the largest block: so many may be in one pass


@dataclass(frozen=True)
class HotSteps:
    """Steps that repeat: `period` steps from `begin` on, and again right after.

    exact: the frees repeat as well as the requests, not the requests alone.
    elastic: the order of requests and frees repeats, the sizes do not.
    passes: how often the period comes, one after the other.
    """

    begin: int
    period: int
    exact: bool
    elastic: bool = False
    passes: int = 1


class Alike(enum.Enum):
    """In what steps must agree to be of one kind."""

    ALL = enum.auto()  # requests, and when they are freed
    REQUESTS = enum.auto()
    ORDER = enum.auto()  # of requests and frees, whatever their sizes


def find_hot(lives: Lives) -> HotSteps | None:
    """The steps that repeat longest, or None.

    Steps with the same requests and the same frees are looked for first, then steps
    with the same requests, then those with requests and frees in the same order; these
    also where the former are but a few that are alike by chance. Step 0 and the last
    one are never hot: the program's start, and a step that may be cut off; nor are
    steps that ask for nothing.
    """
    whole = range(1, lives.steps - 1)
    usual = [signature(lives, step, Alike.REQUESTS) for step in whole]
    strict: HotSteps | None = None
    for alike in Alike:
        marks = usual
        if alike is not Alike.REQUESTS:
            marks = [signature(lives, step, alike) for step in whole]
        found = _repeating(lives, marks, alike)
        if found is None:
            continue
        if found.elastic:
            return found if strict is None or _longer(found, strict) else strict
        own = set(usual[found.begin - 1 : found.begin - 1 + found.period])
        if 2 * sum(mark in own for mark in usual) >= len(usual):
            return strict or found
        strict = strict or found
    return strict


def _longer(one: HotSteps, other: HotSteps) -> bool:
    return one.period * one.passes > other.period * other.passes


def _repeating(lives: Lives, marks: list[bytes], alike: Alike) -> HotSteps | None:
    """The longest run of steps, the first one's mark first, that repeats.

    Among periods that cover equally many steps, the shortest; among equally long
    runs, the first.
    """
    best: tuple[int, HotSteps] | None = None
    for period in range(1, min(MAX_PERIOD, len(marks) // 2) + 1):
        same = [a == b for a, b in zip(marks, marks[period:], strict=False)]
        begin, length = _longest_run(same)
        asked = lives.first[begin + 1 + period] > lives.first[begin + 1]
        if length < period or not asked:
            continue
        covered = length + period
        if best is None or covered > best[0]:
            exact, elastic = alike is not Alike.REQUESTS, alike is Alike.ORDER
            passes = covered // period
            best = covered, HotSteps(begin + 1, period, exact, elastic, passes)
    return None if best is None else best[1]


def _longest_run(flags: list[bool]) -> tuple[int, int]:
    """Begin and length of the first longest run of True."""
    best, begin, length = (0, 0), 0, 0
    for i, flag in enumerate(flags):
        if not flag:
            length = 0
            continue
        begin = i if length == 0 else begin
        length += 1
        if length > best[1]:
            best = begin, length
    return best


def signature(lives: Lives, step: int, alike: Alike) -> bytes:
    """What a step does, as a hash that is equal for steps of one kind.

    A free is told by how many requests came before it in its step, and by the
    request it ends: the step's own, or of the step before. Older ones do not count.
    """
    first, stop = lives.first[step : step + 2].tolist()
    if alike is Alike.ORDER:
        digest = hashlib.sha256(b"%d" % (stop - first))
    else:
        digest = hashlib.sha256(lives.size[first:stop].astype("<i8").tobytes())
    if alike is Alike.REQUESTS:
        return digest.digest()
    begin, end = lives.begins[step : step + 2].tolist()
    candidates = np.arange(lives.first[max(step - 1, 0)], stop, dtype=np.int64)
    ends = lives.upper[candidates]
    freed = candidates[(ends >= begin) & (ends < end)]
    order = freed[np.argsort(lives.upper[freed], kind="stable")]
    before = np.searchsorted(lives.lower[first:stop], lives.upper[order])
    rows = np.stack([before, order - first], axis=1).astype("<i8")
    digest.update(rows.tobytes())
    return digest.digest()


def irregular(lives: Lives, hot: HotSteps) -> bool:
    """Whether steps come in another order than `hot` says, more than now and then.

    Then chance may have it that so many were alike in a row, and another run will have
    another order: batches of a few shapes, tasks by turns. Steps before the hot ones
    count where they come again; those that do not are the program's start.
    """
    marks = [
        signature(lives, step, Alike.REQUESTS) for step in range(1, lives.steps - 1)
    ]
    before, after = marks[: hot.begin - 1], marks[hot.begin - 1 :]
    loop, due = after[: hot.period], 0
    for mark in after:
        due += mark == loop[due % len(loop)]
    often, later = Counter(before), set(after)
    again = sum(often[mark] > 1 or mark in later for mark in before)
    return RARE * (len(after) - due + again) > len(after) + again


def unmarked_steps(lives: Lives) -> Lives | None:
    """`lives`, cut where each pass of its longest loop begins; None if there is none.

    The loop repeats at least LEAST_PASSES times with equal sizes, and the largest block
    that comes so often, and is freed, is in it; one that is small beside the largest
    of all is not worth a plan. Its passes begin where least is alive.
    """
    found = _longest_loop(lives)
    if found is None:
        return None
    begin, period, count = found
    first = begin + _quietest(lives, begin + period, period)
    first -= period if first - period >= begin else 0
    passes = (begin + count - first) // period
    if passes < LEAST_PASSES:
        return None
    cuts = first + period * np.arange(passes + 1, dtype=np.int64)
    return lives.cut(cuts[cuts < len(lives)])


def _longest_loop(lives: Lives) -> tuple[int, int, int] | None:
    """First request, requests a pass, and requests in all; among loops that cover
    nearly as many requests the one with the shortest pass."""
    size = lives.size
    freed = size[lives.upper != NEVER]
    kinds, counts = np.unique(freed, return_counts=True)
    often = kinds[counts >= LEAST_PASSES]
    if not len(often) or often[-1] * LEAST_PART < kinds[-1]:
        return None
    places = np.flatnonzero(size == often[-1])
    best: tuple[int, int, int] | None = None
    for period in _periods(places):
        same = size[period:] == size[:-period]
        for begin, length in _runs(same):
            inside = np.searchsorted(places, [begin, begin + length + period])
            if length + period < LEAST_PASSES * period or inside[0] == inside[1]:
                continue
            # A longer pass must be worth it.
            if best is None or length + period > best[2] + best[2] // 8:
                best = begin, period, length + period
    return best


def _periods(places: Int64Array) -> list[int]:
    """Distances between requests for the largest block, ascending."""
    found: set[int] = set()
    for stride in range(1, min(_STRIDES, len(places) - 1) + 1):
        apart, often = np.unique(places[stride:] - places[:-stride], return_counts=True)
        found.update(apart[np.argsort(-often, kind="stable")][:4].tolist())
    return sorted(found)[:MOST_PERIODS]


def _runs(same: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """Begin and length of the longest run of True, if there is one."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
    begins, ends = edges[::2], edges[1::2]
    if not len(begins):
        return []
    longest = int(np.argmax(ends - begins))
    return [(int(begins[longest]), int(ends[longest] - begins[longest]))]


def _quietest(lives: Lives, begin: int, period: int) -> int:
    """How far into the pass from request `begin` on the fewest bytes are alive."""
    rows = np.arange(begin, begin + period)
    alive = level(lives.lower, lives.upper, lives.size, lives.ticks)
    # Before the request, not after it.
    return int(np.argmin(alive[lives.lower[rows]] - lives.size[rows]))
