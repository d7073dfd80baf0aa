"""What a run used: resident memory, and time and page faults of its steps."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memplan.core.plan import RunStats
from memplan.native import _alloc
from memplan.trace.trace import Mark


def resident_bytes() -> int:
    """Resident bytes now; 0 if unknown."""
    return _status("VmRSS:")


def peak_resident_bytes() -> int:
    """Peak resident bytes; 0 if unknown."""
    return _status("VmHWM:")


def anonymous_bytes() -> int:
    """Resident bytes of heaps and stacks, without files; 0 if unknown."""
    return _status("RssAnon:")


def file_bytes() -> int:
    """Resident bytes of files, mostly libraries; 0 if unknown."""
    return _status("RssFile:")


def used_bytes() -> int:
    """Resident bytes once the C library has returned all free pages of its heaps; 0 if
    it cannot, or that is unknown."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:  # not glibc
        return 0
    trim(ctypes.c_size_t(0))
    return resident_bytes()


def _status(name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


# A boundary: monotonic ns, page faults so far, the Mark, ns of CPU time of all threads.
Boundary = tuple[int, int, int, int]
_FIELDS = 4
MOST = 1 << 17  # boundaries kept; a program that runs for days has many
# Reading page faults and CPU time takes 5 µs, and more on a busy core; the clock skips
# it in most short steps.
LOOK_NS = 4_000_000
_UNKNOWN = -1


class StepClock:
    """Records step boundaries; drops the oldest if there are very many.

    Reads page faults and CPU time every LOOK_NS at most and interpolates them between.
    """

    def __init__(self, most: int = MOST, look_ns: int = LOOK_NS) -> None:
        self._most = most
        self._look_ns = look_ns
        self._next_look = 0  # monotonic ns
        self._rows = array("q")
        self._noted = [0] * (max(Mark) + 1)  # by mark: its hash is Python's, and slow

    def note(self, mark: Mark) -> None:
        """A step begins. Any thread may call this."""
        time_ns = _alloc.monotonic_ns()
        faults = cpu = _UNKNOWN
        if time_ns >= self._next_look:
            time_ns, faults, cpu = _alloc.step_usage()
            self._next_look = time_ns + self._look_ns
        # One call, so that other threads cannot interleave.
        self._rows.extend((time_ns, faults, mark, cpu))
        self._noted[mark] += 1
        if len(self._rows) >= _FIELDS * self._most:
            del self._rows[: _FIELDS * (self._most // 2)]

    @classmethod
    def of_turns(cls, count: int, turns: Iterable[tuple[int, int, int]]) -> StepClock:
        """Of `count` steps without marks; turns: for the later ones, monotonic ns,
        page faults and ns of CPU time."""
        clock = cls()
        for time_ns, faults, cpu in turns:
            clock._rows.extend((time_ns, faults, int(Mark.NONE), cpu))
        clock._noted[Mark.NONE] = count
        return clock

    @property
    def steps(self) -> int:
        """Number of boundaries of the strongest kind, dropped ones included."""
        return next((count for count in reversed(self._noted) if count), 0)

    def boundaries(self) -> list[Boundary]:
        """The recorded boundaries, in order."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, _FIELDS)
        known = rows[:, 1] != _UNKNOWN
        if not known.all():
            looks = np.vstack([rows[known][:, [0, 1, 3]], _alloc.step_usage()])
            for column, values in ((1, looks[:, 1]), (3, looks[:, 2])):
                between = np.interp(rows[~known, 0], looks[:, 0], values)
                rows[~known, column] = np.rint(between).astype(np.int64)
        return [(row[0], row[1], row[2], row[3]) for row in rows.tolist()]


@dataclass(frozen=True)
class Spread:
    """Mean, quartiles and maximum of a figure over steps."""

    mean: float = 0.0
    quarter: float = 0.0
    median: float = 0.0
    three_quarters: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of some values; all 0 for none."""
        if not values:
            return cls()
        ranks = np.quantile(values, [0.25, 0.5, 0.75, 1.0]).tolist()
        return cls(float(np.mean(values)), *ranks)


@dataclass(frozen=True)
class StepSpreads:
    """Over the later half of the steps: wall seconds, CPU seconds of all threads, and
    page faults; counted: steps in that half."""

    counted: int
    seconds: Spread
    cpu_seconds: Spread
    page_faults: Spread


def step_spreads(boundaries: list[Boundary]) -> StepSpreads:
    """Of the steps between boundaries of the strongest kind of mark, as everywhere."""
    strongest = max((kind for _, _, kind, _ in boundaries), default=Mark.NONE)
    chosen = [each for each in boundaries if each[2] == strongest]
    pairs = list(itertools.pairwise(chosen))
    steady = pairs[len(pairs) // 2 :]
    return StepSpreads(
        len(steady),
        Spread.of([(after[0] - before[0]) / 1e9 for before, after in steady]),
        Spread.of([(after[3] - before[3]) / 1e9 for before, after in steady]),
        Spread.of([float(after[1] - before[1]) for before, after in steady]),
    )


def run_stats(boundaries: list[Boundary], steps: int | None = None) -> RunStats:
    """Figures of this process's run so far.

    Wall time is the median, which ignores disturbances by other programs; page faults
    and CPU time are means, which keep what falls on a few steps. steps: number of
    boundaries, if some were dropped.
    """
    spreads = step_spreads(boundaries)
    return RunStats(
        peak_rss_bytes=peak_resident_bytes(),
        page_faults_per_step=spreads.page_faults.mean,
        step_seconds=spreads.seconds.median,
        cpu_seconds=spreads.cpu_seconds.mean,
        steps=len(boundaries) if steps is None else steps,
        load=machine_load(),
    )


def machine_load() -> float:
    """Load average of the last minute; 0 if unknown."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0
