"""What the example programs print: losses to the last bit, and how long a step took."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import statistics
import struct
import time
from pathlib import Path

WARMUP = 3
FILE = "STEP_LOG"  # in the environment: where to write what each step took


class StepLog:
    """Prints each step's loss exactly, then one digest and one time for the run.

    The lines of two runs are equal exactly when every loss is equal bit for bit,
    but for the last line, the only one that holds a time.

    With STEP_LOG set, it writes `rows` to that file as JSON. After the warm-up the
    kernel's high-water mark starts again, so that later rows hold the steady peak;
    `first_peak` is the one before, which a parent process no longer sees.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._seconds: list[float] = []
        self._last = time.perf_counter()
        self._rows: list[dict[str, float]] = []
        self._first_peak = 0
        self._is_reset = False

    def step(self, loss: float) -> None:
        """Print one step: its number from 1, its loss in hexadecimal and decimal."""
        now = time.perf_counter()
        self._seconds.append(now - self._last)
        self._last = now
        self._digest.update(struct.pack("<d", loss))
        number = len(self._seconds)
        print(f"step {number} loss {loss.hex()} {loss:.6f}", flush=True)
        if FILE in os.environ:
            self._note(now)

    def _note(self, now: float) -> None:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        row = {
            "at": now,
            "faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
            "cpu": time.process_time(),
            "peak": int(fields["VmHWM"].split()[0]) * 1024,
        }
        self._rows.append(row)
        if len(self._rows) == WARMUP:
            self._first_peak = int(row["peak"])
            try:
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            except OSError:
                return
            self._is_reset = True

    def finish(self) -> None:
        """Print the digest of all losses, and the median step without the first 3."""
        print(f"loss-sha256 {self._digest.hexdigest()}")
        steady = self._seconds[WARMUP:]
        print(
            f"seconds/step median {statistics.median(steady):.4f}"
            if steady
            else f"seconds/step median unknown: {WARMUP + 1} steps or more needed"
        )
        if FILE in os.environ:
            noted = {
                "rows": self._rows,
                "first_peak": self._first_peak,
                "is_reset": self._is_reset,
            }
            Path(os.environ[FILE]).write_text(json.dumps(noted), encoding="utf-8")
