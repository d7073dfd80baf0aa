"""Step boundaries, seen beside a history, put where they belong in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.trace.importers.snapshot_history import Reader
from memplan.trace.stacks import NO_STACK
from memplan.trace.trace import Action, Mark

MARK_TAG = "memplan:"  # + a count of marks, in the metadata of entries after them
_SKEW_US = 200

Rows = dict[str, npt.NDArray[Any]]  # columns by name, one row an event


@dataclass(frozen=True)
class HistoryMark:
    """A step boundary seen while the history was recorded: its kind, Unix time (µs)."""

    mark: Mark
    time_us: int


def with_marks(
    rows: Rows,
    kept: BoolArray,
    older: int,
    reader: Reader,
    marks: Sequence[HistoryMark],
) -> tuple[Rows, BoolArray]:
    """The rows, and which of them are kept, with the marks among them.

    older: how many rows stand before the history's own, and before every mark.
    """
    entries = _marks_before(reader, marks)
    before = np.concatenate([np.zeros(older, dtype=np.int64), entries])
    # Each mark comes before the first row that has it behind it.
    at = np.searchsorted(before, np.arange(len(marks)), side="right")
    step: dict[str, list[int]] = {
        "time": [mark.time_us for mark in marks],
        "action": [Action.STEP] * len(marks),
        "mark": [mark.mark for mark in marks],
        "stack": [NO_STACK] * len(marks),
    }
    none = [0] * len(marks)
    found = {
        name: np.insert(column, at, step.get(name, none))
        for name, column in rows.items()
    }
    return found, np.insert(kept, at, True)


def _marks_before(reader: Reader, marks: Sequence[HistoryMark]) -> Int64Array:
    """How many marks come before each entry."""
    times = [mark.time_us for mark in marks]
    counts = []
    for i, now in enumerate(reader.times().tolist()):
        entry: Any = reader.entries.value(i)
        counts.append(_count_before(entry, now, times))
    return np.array(list(accumulate(counts, max)), dtype=np.int64)


def _count_before(entry: dict[str, Any], now: int, times: list[int]) -> int:
    """How many of the marks at `times` come before an entry of time `now`.

    Clocks differ by microseconds, so close to a mark the entry's tag decides. Farther
    away it does not: another device's entries may bear an old one, or the program's.
    """
    by_time = bisect_left(times, now)
    text = entry.get("user_metadata")
    if not isinstance(text, str) or not text.startswith(MARK_TAG):
        return by_time
    number = text[len(MARK_TAG) :]
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        return by_time
    by_tag = min(int(number), len(times))
    first, last = sorted((by_tag, by_time))
    if first < last and max(now - times[first], times[last - 1] - now) > _SKEW_US:
        return by_time
    return by_tag
