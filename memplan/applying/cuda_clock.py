"""How long steps take on a GPU, by events on its stream: the host only queues work."""

from __future__ import annotations

import contextlib
from typing import Any

MOST_STEPS = 4096  # whose times are kept; those after them are not


class DeviceClock:
    """Notes when the device comes to each step boundary; the host waits for nothing."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._events: list[Any] = []

    def note(self) -> None:
        """A step boundary is here. Under graph capture nothing is noted."""
        if len(self._events) >= MOST_STEPS:
            return
        cuda = self._torch.cuda
        with contextlib.suppress(RuntimeError):  # in the midst of somebody's program
            if not cuda.is_current_stream_capturing():
                event = cuda.Event(enable_timing=True)
                event.record()
                self._events.append(event)

    def seconds(self) -> list[float]:
        """Of each step between two boundaries. Waits for the last one."""
        if len(self._events) < 2:
            return []
        times = []
        with contextlib.suppress(
            RuntimeError
        ):  # a device that has failed tells nothing
            self._events[-1].synchronize()
            for before, after in zip(self._events, self._events[1:], strict=False):
                times.append(before.elapsed_time(after) / 1e3)
        return times
