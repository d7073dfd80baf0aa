"""MiniMalloc's CSV: the packing problems of its benchmark, and whoever speaks it.

A header row in any order: `id lower upper size`, and optionally `alignment hint gaps
offset`. `buffer` and `buffer_id` stand for id; `start` and `begin` for lower; `end`
for an upper that is inclusive, as then are the ends of gaps. There is no quoting.
"""

from __future__ import annotations

import io
import re
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.problem import FREE, Gaps, Problem
from memplan.errors import FormatError, InputError
from memplan.files import PathLike
from memplan.formats.sniff import Input, Kind, Opened, opened
from memplan.formats.strictjson import Budget, shown
from memplan.limits import MAX_INTEGER, MAX_TEXT

_SYNONYMS = {
    **dict.fromkeys(("id", "buffer", "buffer_id"), "id"),
    **dict.fromkeys(("lower", "start", "begin"), "lower"),
    **dict.fromkeys(("upper", "end"), "upper"),
    **{name: name for name in ("size", "alignment", "hint", "gaps", "offset")},
}
_REQUIRED = ("id", "lower", "upper", "size")
_LEAST = {"lower": 0, "upper": 0, "size": 1, "alignment": 1, "hint": -1, "offset": FREE}
_ROW_BYTES = 170  # that a row takes up, with all that is made of it
_GAP_BYTES = 130
_SAFE_DIGITS = 19  # fewer are below MAX_INTEGER
_WORD = re.compile(r"\S+")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_GAP = re.compile(r"(\d{1,19})-(\d{1,19})(?:@(\d{1,19}):(\d{1,19}))?", re.ASCII)


def takes(file: Opened) -> bool:
    """Whether the first line names columns; a `.csv` file's may be the damaged one."""
    line = file.head.partition(b"\n")[0].removeprefix(BOM_UTF8)
    names = [name.strip() for name in line.decode("latin-1").split(",")]
    named = Path(file.path).suffix == ".csv"
    known = sum(name in _SYNONYMS for name in names)
    return file.kind is Kind.UNKNOWN and (named or known > 1)


def read(file: Opened, device: int | None = None) -> Problem:
    """`read_minimalloc`; there is no device to choose."""
    return read_minimalloc(file)


def read_minimalloc(source: Input) -> Problem:
    """The Problem in a MiniMalloc CSV file; its ids become labels.

    source: its path, or the file as `sniff` opened it. An `offset` is a fixed position
    (-1: anywhere), a `hint` is ignored. Raises FormatError naming line and column, or
    the buffer.
    """
    with opened(source) as file:
        path, data = file.path, file.read()
    _check_weight(path, data)
    lines = _lines(path, data)
    table = _Table(path, next(lines, ""))
    table.read(lines)
    return table.problem()


def _check_weight(path: PathLike, data: bytes) -> None:
    """Refuse more rows or gaps than so few bytes hold in any honest file."""
    rows, gaps = data.count(b"\n"), data.count(b"-")
    weight = _ROW_BYTES * rows + _GAP_BYTES * gaps
    if weight > Budget(len(data)).limit:
        problem = f"too large: {rows} rows with up to {gaps} gaps would take up "
        problem += f"{weight >> 20} MiB, too much for a file of {len(data)} bytes"
        raise FormatError(path, problem)


def _lines(path: PathLike, data: bytes) -> Iterator[str]:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(path, f"line {line}: not UTF-8 text") from None
    for text in io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="\n"):
        yield text.removesuffix("\n").removesuffix("\r")


class _Table:
    """The columns of a file. gaps: five integers of each, as `Gaps.of` takes them."""

    def __init__(self, path: PathLike, header: str) -> None:
        self.path = path
        # One more than there are names: what follows would not be known either.
        names = header.split(",", len(_SYNONYMS))
        self.names = [name.strip() for name in names]
        self.columns = [_SYNONYMS.get(name, "") for name in self.names]
        self._check_header()
        self.inclusive = "end" in self.names
        self.ids: list[str] = []
        self.gaps = array("q")
        self.values = {name: array("q") for name in self.columns if name in _LEAST}

    def read(self, lines: Iterator[str]) -> None:
        """Read the rows."""
        blank, width = 0, len(self.columns)
        for number, line in enumerate(lines, 2):
            fields = line.split(",")
            if not line.strip():
                blank = blank or number
                continue
            if blank:
                problem = f"line {number} comes after a blank line, where MiniMalloc"
                raise FormatError(self.path, f"{problem} stops", f"delete line {blank}")
            if len(fields) != width:
                problem = f"{len(fields)} fields, the header has {width}"
                raise FormatError(self.path, f"line {number}: {problem}")
            for name, column, field in zip(
                self.names, self.columns, fields, strict=True
            ):
                if column == "gaps":
                    try:
                        for gap in parse_gaps(field, self.inclusive):
                            self.gaps.extend((number - 2, *gap))  # line 2 has row 0
                    except InputError as error:
                        self._fail(number, name, str(error))
                elif column != "id":
                    value = self._integer(number, name, column, field)
                    self.values[column].append(value)
                elif len(field) > MAX_TEXT:
                    self._fail(number, name, f"more than {MAX_TEXT} characters")
                else:
                    self.ids.append(field)

    def problem(self) -> Problem:
        """All the rows as a Problem."""
        columns = {
            name: np.frombuffer(values, dtype=np.int64)
            for name, values in self.values.items()
        }
        self._check_rows(columns["lower"], columns["upper"])
        gaps = np.frombuffer(self.gaps, dtype=np.int64).reshape(-1, 5).T
        try:
            return Problem.of(
                columns["lower"],
                columns["upper"],
                columns["size"],
                alignment=columns.get("alignment", 1),
                fixed=columns.get("offset", FREE),
                labels=self.ids,
                gaps=Gaps.of(*gaps) if self.gaps else None,
            )
        except InputError as error:
            raise FormatError(self.path, str(error)) from None

    def _check_header(self) -> None:
        for i, (name, column) in enumerate(zip(self.names, self.columns, strict=True)):
            if not column:
                problem = f"line 1: unknown column {shown(name)}"
                remedy = f"known are {', '.join(_SYNONYMS)}"
                raise FormatError(self.path, problem, remedy)
            if column in self.columns[:i]:
                twice = self.names[self.columns.index(column)]
                problem = f"line 1: columns {twice} and {name} mean the same"
                raise FormatError(self.path, problem, "remove one")
        missing = [name for name in _REQUIRED if name not in self.columns]
        if missing:
            problem = f"line 1: no column {', '.join(missing)}"
            raise FormatError(self.path, problem, "name the columns in the first line")

    def _integer(self, line: int, name: str, column: str, field: str) -> int:
        if len(field) < _SAFE_DIGITS and field.isascii() and field.isdecimal():
            value = int(field)
            if value >= _LEAST[column]:
                return value + (name == "end")
        text = field.strip()
        # int() takes more than MiniMalloc does: 1_000, other scripts' digits.
        if not _INTEGER.fullmatch(text):
            self._fail(line, name, f"{shown(field)} is not an integer")
        # int() would raise an error of its own for thousands of digits.
        value = int(text.lstrip("+-0")[:20] or "0") * (-1 if text[0] == "-" else 1)
        inclusive = name == "end"
        least, most = _LEAST[column], MAX_INTEGER - inclusive
        if not least <= value <= most:
            limits = f"{least} to {most}"
            self._fail(line, name, f"{shown(text)} is not from {limits}")
        return value + inclusive

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


def parse_gaps(
    text: str, inclusive: bool = False
) -> Iterator[tuple[int, int, int, int]]:
    """The gaps in a `gaps` field: ``lower-upper`` or ``lower-upper@begin:end``.

    Of each lower, upper, begin and end: in ticks [lower, upper) of the buffer only the
    bytes [begin, end) are in use, none if both are 0. inclusive: ends are the last tick
    of a gap, as in files with an `end` column. Raises InputError for what is not a gap,
    and for an empty one.
    """
    for found in _WORD.finditer(text):
        word = found[0]
        match = _GAP.fullmatch(word)
        if match is None:
            raise InputError(f"{shown(word)} is not a gap; write lower-upper")
        lower, upper, begin, end = map(int, match.groups("0"))
        upper += inclusive
        if lower >= upper or (match[3] is not None and begin >= end):
            raise InputError(f"the gap {shown(word)} is empty")
        if max(upper, end) > MAX_INTEGER:
            raise InputError(f"the gap {shown(word)} goes beyond 2^63 - 1")
        yield lower, upper, begin, end
