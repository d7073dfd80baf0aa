"""Time runs of torch: alone, or several in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

Run = Callable[[], object]
Result = TypeVar("Result")

LEAST, DECISIVE = 3, 2  # rounds of runs in turns, and of decisive ones
MOST = 25
LONG = 0.1  # seconds of a run that needs fewer rounds
CLEARLY_SLOWER = 1.5  # times the fastest: slower runs are dropped
UNSURE, SURE = 0.1, 5  # how probably a median lies outside its interval; of values
SOON, LATE = 0.5, 5.0  # seconds of pairs of runs that decide clearly, and hardly
FAR_BELOW, FAR_ABOVE = 0.9, 1.3  # times a limit, of pairs that decide clearly


def clock() -> Callable[[], float]:
    """Processor time if torch uses one thread, else wall-clock time."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def timed(run: Callable[[], Result], device: str = "cpu") -> tuple[Result, float]:
    """What a run returns, and its seconds; on a GPU, until it is done."""
    now = clock() if device == "cpu" else time.perf_counter
    start = now()
    result = run()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return result, now() - start


def is_decisive(took: float, device: str = "cpu") -> bool:
    """Whether one run of so many seconds decides: it is LONG, and of one thread, whose
    clock excludes other programs."""
    return took > LONG and device == "cpu" and torch.get_num_threads() == 1


def in_turns(
    runs: Sequence[Run],
    device: str = "cpu",
    enough: float = 0.3,
    least: tuple[int, int] = (LEAST, DECISIVE),
    ready: bool = False,
    drop: float = float("inf"),
) -> list[list[float]]:
    """The times of each run; they take turns after a warm-up of each, so that other
    programs slow all of them alike.

    device: on a GPU, times include waiting for it. enough: seconds after which no
    further round begins, once there were `least`, or the second of these of decisive
    runs. ready: each has run just before, so that there is no warm-up. drop: runs so
    many times slower than the fastest have no further turns; the last has none either.
    """
    for run in () if ready else runs:
        timed(run, device)
    took: list[list[float]] = [[] for _ in runs]
    left, began = list(range(len(runs))), time.perf_counter()
    for turn in range(1, MOST + 1):
        for index in left:
            took[index].append(timed(runs[index], device)[1])
        best = [min(each) for each in took]
        left = [index for index in left if best[index] <= drop * min(best)]
        if len(left) == 1 and len(runs) > 1:
            break
        wanted = least[is_decisive(min(best), device)]
        if turn >= wanted and time.perf_counter() - began > enough:
            break
    return took


def seconds(
    runs: Sequence[Run], device: str = "cpu", enough: float = 0.3, ready: bool = False
) -> list[float]:
    """The least time of each run `in_turns`, where those CLEARLY_SLOWER are dropped."""
    took = in_turns(runs, device, enough, ready=ready, drop=CLEARLY_SLOWER)
    return [min(each) for each in took]


def in_pairs(
    before: Run,
    after: Run,
    device: str = "cpu",
    limit: float = math.inf,
    most: float = LATE,
) -> list[float]:
    """The time of `after` over that of `before`, in pairs of runs after a warm-up.

    There are more pairs while it is unsure on which side of `limit` their median is:
    `interval` is then around it. `most`: seconds after which it may stay unsure.
    """
    for run in (before, after):
        timed(run, device)
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < MOST:
        took = timed(before, device)[1]
        found.append(timed(after, device)[1] / took)
        elapsed = time.perf_counter() - began
        if elapsed < SOON or len(found) < LEAST:
            continue
        low, high = interval(found)
        if high <= FAR_BELOW * limit or low > FAR_ABOVE * limit:
            break
        if len(found) >= SURE and (high <= limit or low > limit or elapsed > most):
            break
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median is of what the values are a sample of, with a probability of
    1 - UNSURE; for fewer than five values, which is too few, the least and the largest.

    It lies between the k-th value from either end, by the sign test: half of all values
    are below a median, so that fewer than k of n are with a binomial probability.
    """
    count, outside = len(values), UNSURE / 2
    tail, below = 0.5**count, 0
    while tail <= outside:
        below += 1
        tail += math.comb(count, below) * 0.5**count
    below = max(1, below)
    ordered = sorted(values)
    return ordered[below - 1], ordered[-below]
