"""MiniMalloc's CSV: the packing problems of its benchmark, and whoever speaks it.

A header row in any order: `id lower upper size`, and optionally `alignment hint gaps
offset`. `buffer` and `buffer_id` stand for id; `start` and `begin` for lower; `end`
for an upper that is inclusive, as then are the ends of gaps. There is no quoting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.gaps import Gaps
from memplan.core.problem import FREE, Problem
from memplan.errors import FormatError, InputError
from memplan.files import PathLike, open_input
from memplan.formats.strictjson import shown
from memplan.limits import MAX_INTEGER

_SYNONYMS = {
    "id": "id",
    "buffer": "id",
    "buffer_id": "id",
    "lower": "lower",
    "start": "lower",
    "begin": "lower",
    "upper": "upper",
    "end": "upper",
    "size": "size",
    "alignment": "alignment",
    "hint": "hint",
    "gaps": "gaps",
    "offset": "offset",
}
_REQUIRED = ("id", "lower", "upper", "size")
_LEAST = {"lower": 0, "upper": 0, "size": 1, "alignment": 1, "hint": -1, "offset": FREE}
_LINES_AT_A_TIME = 1 << 15
_DIGITS = re.compile(r"[0-9,]*")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_GAP = re.compile(r"(\d{1,19})-(\d{1,19})(?:@(\d{1,19}):(\d{1,19}))?", re.ASCII)


@dataclass(frozen=True)
class Gap:
    """Ticks [lower, upper) in which a buffer is not used, or only in part.

    window: the bytes [begin, end) of the buffer still used; None for none of them.
    """

    lower: int
    upper: int
    window: tuple[int, int] | None


def read_minimalloc(path: PathLike) -> Problem:
    """The Problem in a MiniMalloc CSV file; its ids become labels.

    An `offset` is a fixed position (-1: anywhere), a `hint` is ignored. Raises
    FormatError naming line and column, or the buffer.
    """
    with open_input(path) as (stream, _):
        data = stream.read()
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(path, f"line {line}: not UTF-8 text") from None
    del data
    table = _Table(path, lines[0].removesuffix("\r"))
    for first, rows in _rows(path, lines):
        table.add(first, rows)
    return table.problem()


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


def _rows(path: PathLike, lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """The data lines in slices, each with its first line's number (header: 1)."""
    blank = next((i for i, line in enumerate(lines) if i and not line.strip()), None)
    end = len(lines) if blank is None else blank
    stray = next((i for i in range(end, len(lines)) if lines[i].strip()), None)
    if stray is not None:
        raise FormatError(
            path,
            f"line {stray + 1} comes after a blank line, where MiniMalloc stops",
            f"delete line {end + 1}",
        )
    for begin in range(1, end, _LINES_AT_A_TIME):
        yield begin + 1, lines[begin : min(begin + _LINES_AT_A_TIME, end)]


class _Table:
    """The columns of a file, filled slice by slice."""

    def __init__(self, path: PathLike, header: str) -> None:
        self.path = path
        self.names = [name.strip() for name in header.split(",")]
        self.columns = [_SYNONYMS.get(name, "") for name in self.names]
        self._check_header()
        self.inclusive = "end" in self.names
        self.ids: list[str] = []
        self.gaps: list[tuple[int, int, int, int, int]] = []
        self.parts: dict[str, list[Int64Array]] = {
            name: [] for name in self.columns if name in _LEAST
        }

    def add(self, first: int, lines: list[str]) -> None:
        """Add data lines, the first of which has the number `first`."""
        lines = [line.removesuffix("\r") for line in lines]
        width = len(self.columns)
        commas = [line.count(",") for line in lines]
        if set(commas) - {width - 1}:
            i = next(i for i, count in enumerate(commas) if count != width - 1)
            problem = f"{commas[i] + 1} fields, the header has {width}"
            raise FormatError(self.path, f"line {first + i}: {problem}")
        # One flat list: a list per row would keep the garbage collector busy.
        fields = ",".join(lines).split(",")
        for i, (name, column) in enumerate(zip(self.names, self.columns, strict=True)):
            self._add_column(first, name, column, fields[i::width])

    def problem(self) -> Problem:
        """All the rows as a Problem."""
        columns = {
            name: np.concatenate([np.empty(0, dtype=np.int64), *parts])
            for name, parts in self.parts.items()
        }
        self._check_rows(columns["lower"], columns["upper"])
        fixed, alignment = columns.get("offset", FREE), columns.get("alignment", 1)
        try:
            return Problem.of(
                columns["lower"],
                columns["upper"],
                columns["size"],
                alignment=alignment,
                fixed=fixed,
                labels=self.ids,
                gaps=Gaps.of(*zip(*self.gaps, strict=True)) if self.gaps else None,
            )
        except InputError as error:
            raise FormatError(self.path, str(error)) from None

    def _check_header(self) -> None:
        for i, (name, column) in enumerate(zip(self.names, self.columns, strict=True)):
            if not column:
                problem = f"line 1: unknown column {shown(name)}"
                raise FormatError(
                    self.path, problem, f"known are {', '.join(_SYNONYMS)}"
                )
            if column in self.columns[:i]:
                twice = self.names[self.columns.index(column)]
                problem = f"line 1: columns {twice} and {name} mean the same"
                raise FormatError(self.path, problem, "remove one")
        missing = [name for name in _REQUIRED if name not in self.columns]
        if missing:
            problem = f"line 1: no column {', '.join(missing)}"
            raise FormatError(self.path, problem, "name the columns in the first line")

    def _add_column(
        self, first: int, name: str, column: str, fields: list[str]
    ) -> None:
        if column == "id":
            self.ids += fields
        elif column == "gaps":
            self._add_gaps(first, fields)
        else:
            self.parts[column].append(self._integers(first, name, column, fields))

    def _integers(
        self, first: int, name: str, column: str, fields: Sequence[str]
    ) -> Int64Array:
        least = _LEAST[column]
        most = MAX_INTEGER - 1 if name == "end" else MAX_INTEGER
        values: Int64Array | None = None
        # int() takes more than MiniMalloc does: 1_000, other scripts' digits.
        if _DIGITS.fullmatch(",".join(fields)):
            try:
                values = np.fromiter(map(int, fields), np.int64, len(fields))
            except (ValueError, OverflowError):
                values = None
        if values is None or int(values.min()) < least or int(values.max()) > most:
            values = self._careful(first, name, fields, least, most)
        return values + 1 if name == "end" else values

    def _careful(
        self, first: int, name: str, fields: Sequence[str], least: int, most: int
    ) -> Int64Array:
        """The values one by one; FormatError at the first that is not allowed."""
        values = np.empty(len(fields), dtype=np.int64)
        for i, field in enumerate(fields):
            text = field.strip()
            if not _INTEGER.fullmatch(text):
                self._fail(first + i, name, f"{shown(field)} is not an integer")
            # int() would raise an error of its own for thousands of digits.
            value = int(text.lstrip("+-0")[:20] or "0") * (-1 if text[0] == "-" else 1)
            if not least <= value <= most:
                limits = f"{least} to {most}"
                self._fail(first + i, name, f"{shown(text)} is not from {limits}")
            values[i] = value
        return values

    def _add_gaps(self, first: int, fields: Sequence[str]) -> None:
        for line, field in enumerate(fields, first):
            if not field.strip():
                continue
            try:
                gaps = parse_gaps(field, self.inclusive)
            except InputError as error:
                self._fail(line, "gaps", str(error))
            # Line 2 holds the first buffer.
            for gap in gaps:
                begin, end = gap.window or (0, 0)
                self.gaps.append((line - 2, gap.lower, gap.upper, begin, end))

    def _check_rows(self, lower: Int64Array, upper: Int64Array) -> None:
        empty: BoolArray = lower >= upper
        if empty.any():
            i = int(np.argmax(empty))
            problem = f"lower {lower[i]} is not before upper {upper[i]} (exclusive)"
            self._fail(i + 2, "upper" if "upper" in self.names else "end", problem)
        if len(set(self.ids)) < len(self.ids):
            seen: dict[str, int] = {}
            i = next(i for i, x in enumerate(self.ids) if seen.setdefault(x, i) != i)
            name = self.ids[i]
            problem = f"{shown(name)} is the id of line {seen[name] + 2} too"
            self._fail(i + 2, self.names[self.columns.index("id")], problem)

    def _fail(self, line: int, column: str, problem: str) -> NoReturn:
        raise FormatError(self.path, f"line {line}, column {column}: {problem}")
