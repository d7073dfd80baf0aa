"""How long a run takes, on a machine that does other things too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def clock() -> Callable[[], float]:
    """What tells how long one thread has computed, where one does; else the time."""
    import torch

    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def timed(run: Callable[[], Any], device: str = "cpu") -> tuple[Any, float]:
    """What a run gives, and its seconds; on a GPU, until it is done."""
    import torch

    now = clock() if device == "cpu" else time.perf_counter
    start = now()
    result = run()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return result, now() - start
