"""The `gaps` fields of MiniMalloc's CSV: when buffers are not used, or not whole."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.errors import InputError
from memplan.formats.strictjson import shown
from memplan.limits import MAX_INTEGER

_GAP = re.compile(r"(\d{1,19})-(\d{1,19})(?:@(\d{1,19}):(\d{1,19}))?", re.ASCII)
_NO_DIGITS = str.maketrans("", "", "0123456789")
_NO_MARKS = str.maketrans("-@:", "   ")


@dataclass(frozen=True)
class Gap:
    """Ticks [lower, upper) in which a buffer is not used, or only in part.

    window: the bytes [begin, end) of the buffer still used; None for none of them.
    """

    lower: int
    upper: int
    window: tuple[int, int] | None


def parse_gaps(text: str, inclusive: bool = False) -> list[Gap]:
    """The gaps in a `gaps` field: ``lower-upper`` or ``lower-upper@begin:end``.

    inclusive: ends are the last tick of a gap, as in files with an `end` column.
    Raises InputError for what is not a gap, and for an empty one.
    """
    gaps = []
    for word in text.split():
        match = _GAP.fullmatch(word)
        if match is None:
            raise InputError(f"{shown(word)} is not a gap; write lower-upper")
        lower, upper = int(match[1]), int(match[2]) + inclusive
        window = None if match[3] is None else (int(match[3]), int(match[4]))
        if lower >= upper or (window is not None and window[0] >= window[1]):
            raise InputError(f"the gap {shown(word)} is empty")
        if max(upper, *(window or (0,))) > MAX_INTEGER:
            raise InputError(f"the gap {shown(word)} goes beyond 2^63 - 1")
        gaps.append(Gap(lower, upper, window))
    return gaps


def gap_columns(text: str, count: int, inclusive: bool) -> list[Int64Array] | None:
    """lower, upper, begin, end of `count` gaps; None if a careful look is needed."""
    forms = text.translate(_NO_DIGITS).split()
    if len(forms) != count or not set(forms) <= {"-", "-@:"}:
        return None
    partial = np.array([len(form) > 1 for form in forms], dtype=np.bool_)
    numbers = text.translate(_NO_MARKS).split()
    if len(numbers) != 2 * count + 2 * int(partial.sum()):
        return None
    try:
        values = np.fromiter(map(int, numbers), np.int64, len(numbers))
    except (ValueError, OverflowError):
        return None
    at = np.cumsum(2 + 2 * partial) - 2 - 2 * partial  # each one's first number
    lower, upper = values[at], values[at + 1]
    window = np.zeros((2, count), dtype=np.int64)
    window[0, partial] = values[at[partial] + 2]
    window[1, partial] = values[at[partial] + 3]
    empty = (window[0] >= window[1]) & partial
    if inclusive:
        empty |= upper == MAX_INTEGER
        upper += 1
    if (empty | (lower >= upper)).any():
        return None
    return [lower, upper, *window]
