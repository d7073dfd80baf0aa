"""Gaps: parts of a lifespan in which a buffer is not used, or only some of its bytes.

The model is MiniMalloc's (Moffitt, "MiniMalloc: a lightweight memory allocator for
hardware-accelerated machine learning", ASPLOS 2023). A buffer keeps its one offset
and holds nothing that matters in a gap, so that another may lie in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.arrays import BoolArray, Int64Array, Int64Like, int64


@dataclass(frozen=True, eq=False)
class Gaps:
    """m gaps, by buffer and time; every array has shape (m,), int64, read-only.

    buffer: index of the buffer that has the gap.
    lower, upper: half-open, [lower, upper) in ticks.
    begin, end: bytes of the buffer still used in the gap, [begin, end) counted from
        its offset; both 0 where none are.
    """

    buffer: Int64Array
    lower: Int64Array
    upper: Int64Array
    begin: Int64Array
    end: Int64Array

    @classmethod
    def of(
        cls,
        buffer: Int64Like,
        lower: Int64Like,
        upper: Int64Like,
        begin: Int64Like = 0,
        end: Int64Like = 0,
    ) -> Gaps:
        """Gaps from array-likes in any order; scalar windows are broadcast.

        Raises InputError for what are not integers of one length. What depends on the
        buffers, `Problem.of` checks.
        """
        columns = {"buffer": int64("gaps: buffer", buffer)}
        m = len(columns["buffer"])
        for name, values in (("lower", lower), ("upper", upper)):
            columns[name] = int64(f"gaps: {name}", values, m)
        for name, values in (("begin", begin), ("end", end)):
            columns[name] = int64(f"gaps: {name}", values, m)
        # One way to say it: the same gaps make the same fingerprint and file.
        unused = columns["begin"] == columns["end"]
        for name in ("begin", "end"):
            columns[name][unused & (columns[name] >= 0)] = 0
        order = np.lexsort((columns["lower"], columns["buffer"]))
        arrays = {name: column[order] for name, column in columns.items()}
        for array in arrays.values():
            array.flags.writeable = False
        return cls(**arrays)

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def columns(self) -> tuple[Int64Array, ...]:
        """buffer, lower, upper, begin and end."""
        return self.buffer, self.lower, self.upper, self.begin, self.end

    @property
    def partial(self) -> BoolArray:
        """Which gaps leave some bytes in use, shape (m,)."""
        return self.begin < self.end

    def among(self, members: Int64Array) -> Gaps | None:
        """The gaps of the buffers `members` alone, numbered by their place in it.

        members: indices of buffers, ascending, shape (k,). None if they have no gaps.
        """
        kept = np.isin(self.buffer, members)
        if not kept.any():
            return None
        place = np.searchsorted(members, self.buffer[kept])
        return Gaps.of(place, *(column[kept] for column in self.columns[1:]))

    def shifted(self, buffers: int, ticks: int) -> Gaps:
        """The same gaps where `buffers` more come first, and `ticks` later."""
        lower, upper = self.lower + ticks, self.upper + ticks
        return Gaps.of(self.buffer + buffers, lower, upper, self.begin, self.end)

    def by_buffer(self, count: int) -> list[list[tuple[int, ...]]]:
        """For each of `count` buffers its gaps in the order of time.

        A gap is (lower, upper), or (lower, upper, begin, end) where bytes are in use.
        """
        rows: list[list[tuple[int, ...]]] = [[] for _ in range(count)]
        columns = (column.tolist() for column in self.columns)
        for buffer, *gap in zip(*columns, strict=True):
            rows[buffer].append(tuple(gap if gap[2] < gap[3] else gap[:2]))
        return rows


def join(*parts: Gaps | None) -> Gaps | None:
    """All the gaps in one; None where there are none."""
    found = [part.columns for part in parts if part is not None]
    if not found:
        return None
    return Gaps.of(*(np.concatenate(column) for column in zip(*found, strict=True)))
