"""How long runs take, on a machine that does other things too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

LEAST, MOST = 3, 20  # rounds of timing


def _to_the_end(run: Callable[[], Any], device: str) -> None:
    import torch

    run()
    torch.cuda.synchronize(device)


def clock() -> Callable[[], float]:
    """What tells how long one thread has computed, where one does; else the time."""
    import torch

    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def seconds(
    runs: Sequence[Callable[[], Any]], device: str = "cpu", enough: float = 0.3
) -> list[float]:
    """The least time of each of some runs that take turns, after one of each that does
    not count; so what else the machine does slows none of them alone.

    device: what they run on; on a GPU, until it is done. enough: seconds after which no
    further round begins, once there were LEAST.
    """
    if device != "cpu":
        runs = [partial(_to_the_end, run, device) for run in runs]
    for run in runs:
        run()
    now = clock() if device == "cpu" else time.perf_counter
    best, began = [float("inf")] * len(runs), time.perf_counter()
    for turn in range(MOST):
        for index, run in enumerate(runs):
            start = now()
            run()
            best[index] = min(best[index], now() - start)
        if turn + 1 >= LEAST and time.perf_counter() - began > enough:
            break
    return best
