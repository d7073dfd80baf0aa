"""Gaps: parts of a lifespan in which a buffer is not used, or only some of its bytes.

The model is MiniMalloc's (Moffitt, "MiniMalloc: a lightweight memory allocator for
hardware-accelerated machine learning", ASPLOS 2023). A buffer keeps its one offset
and holds nothing that matters in a gap, so that another may lie in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from memplan.core.integers import Int64Array, Int64Like, int64
from memplan.errors import InputError

if TYPE_CHECKING:
    from memplan.core.problem import Problem


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
    def partial(self) -> npt.NDArray[np.bool_]:
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


def check_gaps(problem: Problem, gaps: Gaps) -> None:
    """Raise InputError naming the first buffer whose gaps are not allowed, and why.

    The clock must be linear; a gap lies inside the lifespan, its window inside the
    buffer, and the gaps of one buffer share no tick.
    """
    if problem.length is not None:
        raise InputError("gaps need a linear clock, and this one has a period")
    stray = (gaps.buffer < 0) | (gaps.buffer >= len(problem))
    if stray.any():
        i = int(gaps.buffer[np.argmax(stray)])
        raise InputError(f"gaps: there is no buffer {i} among {len(problem)}")
    again = np.zeros(len(gaps), dtype=np.bool_)
    again[1:] = gaps.buffer[1:] == gaps.buffer[:-1]
    again[1:] &= gaps.lower[1:] < gaps.upper[:-1]
    lower, upper = problem.lower[gaps.buffer], problem.upper[gaps.buffer]
    size = problem.size[gaps.buffer]
    for bad, why in (
        (gaps.lower >= gaps.upper, "is empty"),
        ((gaps.lower < lower) | (gaps.upper > upper), "leaves its lifespan"),
        (again, "begins before the gap before it has ended"),
        (gaps.begin > gaps.end, "has a window that ends before it begins"),
        ((gaps.begin < 0) | (gaps.end > size), "has a window beyond its bytes"),
    ):
        if bad.any():
            raise InputError(_named(problem, gaps, int(np.argmax(bad)), why))


def _named(problem: Problem, gaps: Gaps, k: int, why: str) -> str:
    buffer, lower, upper, begin, end = (int(column[k]) for column in gaps.columns)
    window = f" with bytes [{begin}, {end})" if begin != end else ""
    life = f"lives in [{problem.lower[buffer]}, {problem.upper[buffer]})"
    return (
        f"buffer {problem.label(buffer)}: the gap [{lower}, {upper}){window} {why}; "
        f"it {life}, {problem.size[buffer]} bytes"
    )


@dataclass(frozen=True, eq=False)
class Pieces:
    """The rectangles of time and bytes that buffers use, disjoint for each buffer.

    By owner, then by time; every array has shape (m,), int64.

    owner: index of the buffer. lower, upper: ticks, as a buffer's lifespan, which may
    wrap around where the clock is periodic. begin, end: bytes [begin, end) counted
    from the buffer's offset, never empty.
    """

    owner: Int64Array
    lower: Int64Array
    upper: Int64Array
    begin: Int64Array
    end: Int64Array

    def __len__(self) -> int:
        return len(self.owner)


def pieces(problem: Problem) -> Pieces:
    """What the buffers use, all of it once; without gaps, each buffer whole.

    Around and between its gaps a buffer is used whole. One with a single gap that is
    as long as its life has no piece, or only the gap's window.
    """
    everyone = np.arange(len(problem), dtype=np.int64)
    if problem.gaps is None:
        none = np.zeros(len(problem), dtype=np.int64)
        return Pieces(everyone, problem.lower, problem.upper, none, problem.size)
    gaps = problem.gaps
    # A buffer is whole from its birth or the end of a gap to the next gap or its
    # death: in the order of time, each beginning belongs to one end.
    owner = np.concatenate([everyone, gaps.buffer])
    lower = np.concatenate([problem.lower, gaps.upper])
    upper = np.concatenate([gaps.lower, problem.upper])
    ends_owner = np.concatenate([gaps.buffer, everyone])
    lower = lower[np.lexsort((lower, owner))]
    upper = upper[np.lexsort((upper, ends_owner))]
    owner = np.sort(owner)
    whole, partial = lower < upper, gaps.partial
    owner = np.concatenate([owner[whole], gaps.buffer[partial]])
    lower = np.concatenate([lower[whole], gaps.lower[partial]])
    upper = np.concatenate([upper[whole], gaps.upper[partial]])
    count = int(np.count_nonzero(whole))
    begin = np.concatenate([np.zeros(count, dtype=np.int64), gaps.begin[partial]])
    end = np.concatenate([problem.size[owner[:count]], gaps.end[partial]])
    order = np.lexsort((lower, owner))
    return Pieces(*(column[order] for column in (owner, lower, upper, begin, end)))
