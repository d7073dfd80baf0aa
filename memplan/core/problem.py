"""The packing problem: buffers with sizes and half-open lifespans.

Choose an offset for every buffer so that buffers alive at the same time share no
byte, and the highest top is least: dynamic storage allocation (profile-guided
memory optimization, section 3.1).

A lifespan may have gaps, in which the buffer is not used, or only some of its bytes.
The model is MiniMalloc's (Moffitt, "MiniMalloc: a lightweight memory allocator for
hardware-accelerated machine learning", ASPLOS 2023): a buffer keeps its one offset and
its contents do not matter in a gap, so that another buffer may lie in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memplan.arrays import BoolArray, Int64Array, Int64Like, int64
from memplan.errors import InputError
from memplan.limits import MAX_LENGTH, MAX_TOTAL_BYTES

FREE = -1  # in `fixed`: this buffer may go anywhere
BRIEF = 16  # ticks that a brief buffer lives at the most


@dataclass(frozen=True)
class Buffer:
    """One row of a Problem: bytes, and a half-open lifespan on its clock."""

    id: str
    lower: int
    upper: int
    size: int


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


@dataclass(frozen=True, eq=False)
class Problem:
    """n buffers; every array has shape (n,), dtype int64, and is read-only.

    lower, upper: half-open lifespan [lower, upper) in ticks of the clock. With a
        `length` T the clock is periodic, and lower > upper means the wrap-around
        lifespan [lower, T) ∪ [0, upper), at one offset.
    size: bytes, at least 1.
    alignment: bytes; offsets must be multiples of it.
    fixed: bytes; an offset that is given, or FREE (-1).
    labels: names of the buffers, where the input had any.
    rounding: bytes. An allocator that hands out whole blocks of so many makes every
        buffer take up a multiple of it; alignments are multiples of it, too. 1 where
        a buffer takes up no more than its size.
    gaps: when buffers are not used, or not all of their bytes; None where all are used
        all their life. Only on a linear clock.
    """

    lower: Int64Array
    upper: Int64Array
    size: Int64Array
    alignment: Int64Array
    fixed: Int64Array
    length: int | None = None
    labels: tuple[str, ...] | None = None
    gaps: Gaps | None = None
    rounding: int = 1

    @classmethod
    def of(  # noqa: PLR0913 - by name, but three
        cls,
        lower: Int64Like,
        upper: Int64Like,
        size: Int64Like,
        *,
        alignment: Int64Like = 1,
        fixed: Int64Like = FREE,
        length: int | None = None,
        labels: Sequence[str] | None = None,
        gaps: Gaps | None = None,
        rounding: int = 1,
    ) -> Problem:
        """A checked Problem from array-likes; scalars are broadcast.

        Raises InputError naming the first buffer that is not allowed, and why.
        """
        columns = {"lower": lower, "upper": upper, "size": size}
        arrays = {name: int64(name, values) for name, values in columns.items()}
        n = len(arrays["size"])
        for name in ("lower", "upper"):
            if len(arrays[name]) != n:
                raise InputError(
                    f"{name} has {len(arrays[name])} entries, size has {n}"
                )
        for name, values in (("alignment", alignment), ("fixed", fixed)):
            arrays[name] = int64(name, values, n)
        if labels is not None and len(labels) != n:
            raise InputError(f"labels has {len(labels)} entries, size has {n}")
        names = None if labels is None else tuple(labels)
        # No gaps are written one way, so that the same problem is the same.
        gaps = gaps if gaps is not None and len(gaps) else None
        extra = {"length": length, "labels": names, "gaps": gaps, "rounding": rounding}
        problem = cls(**arrays, **extra)  # type: ignore[arg-type]
        problem._check()
        if gaps is not None:
            _check_gaps(problem, gaps)
        for array in arrays.values():
            array.flags.writeable = False
        return problem

    def __len__(self) -> int:
        return len(self.size)

    def __iter__(self) -> Iterator[Buffer]:
        rows = zip(
            self.lower.tolist(), self.upper.tolist(), self.size.tolist(), strict=True
        )
        return (Buffer(self.label(i), *row) for i, row in enumerate(rows))

    def label(self, index: int) -> str:
        """The buffer's name in messages and files."""
        return str(index) if self.labels is None else self.labels[index]

    @cached_property
    def granularity(self) -> int:
        """Bytes that all offsets are multiples of: the gcd of the alignments."""
        return int(np.gcd.reduce(self.alignment)) if len(self) else 1

    @cached_property
    def padded(self) -> Int64Array:
        """Sizes rounded up to the granularity: bytes lost to others beneath them.

        Only the topmost buffer may take up less, as `taken` says.
        """
        return _rounded_up(self.size, self.granularity)

    @cached_property
    def taken(self) -> Int64Array:
        """Bytes each buffer takes up: its size rounded up to `rounding`."""
        return _rounded_up(self.size, self.rounding)

    @cached_property
    def slack(self) -> Int64Array:
        """Bytes of padding that are not lost where a buffer is topmost."""
        return self.padded - self.taken

    @property
    def wraps(self) -> BoolArray:
        """Which buffers are alive across the end of the clock's period."""
        return self.lower > self.upper

    @property
    def brief(self) -> BoolArray:
        """Which buffers are freed soon after they are made."""
        turn = np.where(self.wraps, self.length or 0, 0)
        brief: BoolArray = self.upper + turn - self.lower <= BRIEF
        return brief

    def peak(self, offsets: Int64Array) -> int:
        """Bytes up to the highest one that a buffer takes up at these offsets."""
        return int((offsets + self.taken).max(initial=0))

    def take(self, members: Int64Array) -> Problem:
        """Only the buffers `members`, ascending, without labels, on the same clock."""
        return Problem.of(
            self.lower[members],
            self.upper[members],
            self.size[members],
            alignment=self.alignment[members],
            fixed=self.fixed[members],
            length=self.length,
            gaps=None if self.gaps is None else self.gaps.among(members),
            rounding=self.rounding,
        )

    def fingerprint(self) -> str:
        """SHA-256, in hex, of the (size, lower, upper) rows as little-endian int64.

        Where there are gaps, ``gaps`` follows in ASCII, and their rows (buffer, lower,
        upper, begin, end), by buffer and time.
        """
        rows = np.stack([self.size, self.lower, self.upper], axis=1).astype("<i8")
        digest = hashlib.sha256(rows.tobytes())
        if self.gaps is not None:
            gaps = np.stack(self.gaps.columns, axis=1).astype("<i8")
            digest.update(b"gaps" + gaps.tobytes())
        return digest.hexdigest()

    def _check(self) -> None:
        self._refuse(self.size < 1, "size is {size}, and must be at least 1 byte")
        self._refuse(self.lower < 0, "lower is {lower}, and must not be negative")
        self._refuse(
            self.lower == self.upper, "lower and upper are both {lower}: it never lives"
        )
        if self.length is None:
            self._refuse(
                self.lower > self.upper, "lower {lower} comes after upper {upper}"
            )
        else:
            if not 1 <= self.length <= MAX_LENGTH:
                raise InputError(f"a period of {self.length} is not 1 to 2^62 ticks")
            self._refuse(self.upper < 0, "upper is {upper}, and must not be negative")
            outside = np.maximum(self.lower, self.upper) > self.length
            self._refuse(outside, f"lifespan leaves the period of {self.length}")
            self._refuse(
                (self.lower == self.length), "lower {lower} is the end of the clock"
            )
        self._refuse(self.alignment < 1, "alignment {alignment} is not at least 1")
        if self.rounding < 1:
            raise InputError(f"a rounding of {self.rounding} bytes is not at least 1")
        self._refuse(
            self.alignment % self.rounding != 0,
            f"alignment {{alignment}} is no multiple of the rounding, {self.rounding}",
        )
        self._refuse(self.fixed < FREE, "fixed offset {fixed} is negative")
        self._refuse(
            (self.fixed >= 0) & (self.fixed % self.alignment != 0),
            "fixed offset {fixed} is not a multiple of its alignment {alignment}",
        )
        worst = float(
            self.size.astype(float).sum() + self.alignment.astype(float).sum()
        )
        top = float(self.fixed.max(initial=0))
        if worst + top > MAX_TOTAL_BYTES:
            raise InputError(f"the sizes add up to {worst:.3g} bytes, more than 2^62")

    def _refuse(self, bad: BoolArray, problem: str) -> None:
        if not bad.any():
            return
        i = int(np.argmax(bad))
        columns = ("lower", "upper", "size", "alignment", "fixed")
        values = {name: int(getattr(self, name)[i]) for name in columns}
        raise InputError(f"buffer {self.label(i)}: " + problem.format(**values))


def _rounded_up(size: Int64Array, unit: int) -> Int64Array:
    return size if unit == 1 else (size + unit - 1) // unit * unit


def _check_gaps(problem: Problem, gaps: Gaps) -> None:
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
            raise InputError(_gap_named(problem, gaps, int(np.argmax(bad)), why))


def _gap_named(problem: Problem, gaps: Gaps, k: int, why: str) -> str:
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

    @property
    def table(self) -> Int64Array:
        """owner, lower, upper, begin and end, shape (5, m)."""
        columns = (self.owner, self.lower, self.upper, self.begin, self.end)
        return np.stack(columns)


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
