"""What the example programs print: losses to the last bit, and how long a step took."""

from __future__ import annotations

import hashlib
import statistics
import struct
import time

WARMUP = 3


class StepLog:
    """Prints each step's loss exactly, then one digest and one time for the run.

    The lines of two runs are equal exactly when every loss is equal bit for bit,
    but for the last line, the only one that holds a time.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._seconds: list[float] = []
        self._last = time.perf_counter()

    def step(self, loss: float) -> None:
        """Print one step: its number from 1, its loss in hexadecimal and decimal."""
        now = time.perf_counter()
        self._seconds.append(now - self._last)
        self._last = now
        self._digest.update(struct.pack("<d", loss))
        number = len(self._seconds)
        print(f"step {number} loss {loss.hex()} {loss:.6f}", flush=True)

    def finish(self) -> None:
        """Print the digest of all losses, and the median step without the first 3."""
        print(f"loss-sha256 {self._digest.hexdigest()}")
        steady = self._seconds[WARMUP:]
        print(
            f"seconds/step median {statistics.median(steady):.4f}"
            if steady
            else f"seconds/step median unknown: {WARMUP + 1} steps or more needed"
        )
