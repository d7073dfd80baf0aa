"""How long runs take, on a machine that does other things too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from memplan.graph.clock import timed

LEAST, MOST = 3, 20  # rounds of timing
LONG = 0.1  # seconds of a run that needs fewer: it tells more by itself
CLEARLY = 1.5  # times the least: what takes longer is out of the running


def tells(took: float, device: str = "cpu") -> bool:
    """Whether a run that took so many seconds tells by itself: it is LONG, and of one
    thread, whose clock does not count what else the machine did."""
    import torch

    return took > LONG and device == "cpu" and torch.get_num_threads() == 1


def seconds(
    runs: Sequence[Callable[[], Any]],
    device: str = "cpu",
    enough: float = 0.3,
    ready: bool = False,
) -> list[float]:
    """The least time of each of some runs that take turns, after one of each that does
    not count; so what else the machine does slows none of them alone. A run that takes
    CLEARLY longer than the fastest has no further turn.

    device: what they run on; on a GPU, until it is done. enough: seconds after which no
    further round begins, once there were LEAST, or two of runs that tell by themselves.
    ready: each has run just before.
    """
    for run in () if ready else runs:
        timed(run, device)
    best, began = [float("inf")] * len(runs), time.perf_counter()
    left = list(range(len(runs)))
    for turn in range(MOST):
        for index in left:
            best[index] = min(best[index], timed(runs[index], device)[1])
        left = [index for index in left if best[index] <= CLEARLY * min(best)]
        if len(left) == 1 and len(runs) > 1:
            break
        least = 2 if tells(min(best), device) else LEAST
        if turn + 1 >= least and time.perf_counter() - began > enough:
            break
    return best
