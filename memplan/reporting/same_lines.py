"""Which lines of a function are the same in two recordings, however they shifted."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

import numpy as np

from memplan.arrays import Int64Array

# What a line asks for: by module and operator, the sizes of its buffers.
Line = Mapping[Any, Hashable]
Lines = Mapping[int, Line]
_MOST_CELLS = 1 << 22  # of the table that aligns lines


def same_lines(before: Lines, after: Lines) -> dict[int, int]:
    """The numbers of lines before, and of the same lines after.

    The same are those that ask for the same, in their order, and between them those as
    far from such a line, whatever they ask for. Two functions of one line each have the
    same line.
    """
    if len(before) == len(after) == 1:
        return dict(zip(before, after, strict=True))
    old, new = sorted(before), sorted(after)
    texts = [before[line] for line in old], [after[line] for line in new]
    head = common_start(*texts)
    tail = common_start(*(each[head:][::-1] for each in texts))
    old_end, new_end = len(old) - tail, len(new) - tail
    found = dict(zip(old[:head], new[:head], strict=True))
    found |= zip(old[old_end:], new[new_end:], strict=True)
    pairs = _in_order(texts[0][head:old_end], texts[1][head:new_end])
    found |= {old[head + i]: new[head + j] for i, j in pairs}
    return found | _between(old, new, found)


def common_start(one: Sequence[object], other: Sequence[object]) -> int:
    """How many elements are equal at the start of both."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _between(old: list[int], new: list[int], same: Mapping[int, int]) -> dict[int, int]:
    """Of the other lines, those as far from the next one that is the same."""
    found: dict[int, int] = {}
    outside = (-1, -1), (sys.maxsize, sys.maxsize)
    for low, high in pairwise([outside[0], *sorted(same.items()), outside[1]]):
        shifts = [there - line for line, there in (low, high) if line in same]
        free = set(new[bisect_right(new, low[1]) : bisect_left(new, high[1])])
        for line in old[bisect_right(old, low[0]) : bisect_left(old, high[0])]:
            there = next((line + s for s in shifts if line + s in free), None)
            if there is not None:
                found[line] = there
                free.discard(there)
    return found


def _in_order(old: Sequence[Line], new: Sequence[Line]) -> list[tuple[int, int]]:
    """The alignment in order that is worth most, as indexes, the last pair first; none
    of too many lines."""
    if len(old) * len(new) > _MOST_CELLS:
        return []
    gain = _gain(old, new)
    best = np.zeros((len(old) + 1, len(new) + 1), dtype=np.int64)
    for i, row in enumerate(gain):
        here = np.maximum(best[i, 1:], best[i, :-1] + row)
        best[i + 1, 1:] = np.maximum.accumulate(here)
    pairs, i, j = [], len(old), len(new)
    while i and j:
        if best[i, j] == best[i, j - 1]:
            j -= 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs


def _gain(old: Sequence[Line], new: Sequence[Line]) -> Int64Array:
    """What it is worth to align each line with each, shape (len(old), len(new))."""
    gain = np.zeros((len(old), len(new)), dtype=np.int64)
    rows, columns = _by_key(old), _by_key(new)
    for key in rows.keys() & columns.keys():
        one, other = rows[key], columns[key]
        known: dict[Hashable, int] = {}
        numbers = [
            [known.setdefault(sizes, len(known)) for sizes in each.values()]
            for each in (one, other)
        ]
        worth = np.where(np.equal.outer(*numbers), *_worth(*numbers))
        gain[np.ix_([*one], [*other])] += worth
    return gain


def _worth(old: list[int], new: list[int]) -> tuple[int, int]:
    """What it is worth to align two lines with a key: of equal sizes, and of others.

    Where sizes are the same, but for lines that are new or gone, they tell which line
    it is; where as many lines have other sizes, their order does.
    """
    before, after = Counter(old), Counter(new)
    if before <= after or after <= before:
        return 3, 0
    return (2, 2) if len(old) == len(new) else (3, 2)


def _by_key(lines: Sequence[Line]) -> dict[Hashable, dict[int, Hashable]]:
    """By key, the indexes of the lines that have it, with their sizes."""
    found: dict[Hashable, dict[int, Hashable]] = {}
    for i, line in enumerate(lines):
        for key, sizes in line.items():
            found.setdefault(key, {})[i] = sizes
    return found
