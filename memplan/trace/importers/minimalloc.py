"""MiniMalloc's CSV: the packing problems of its benchmark, and whoever speaks it.

A header row in any order: `id lower upper size`, and optionally `alignment hint gaps
offset`. `buffer` and `buffer_id` stand for id; `start` and `begin` for lower; `end`
for an upper that is inclusive, as then are the ends of gaps. There is no quoting.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.problem import FREE, Gaps, Problem
from memplan.errors import FormatError, InputError
from memplan.files import PathLike
from memplan.formats.sniff import Input, opened
from memplan.formats.strictjson import Budget, shown
from memplan.limits import MAX_INTEGER, MAX_TEXT
from memplan.trace.importers.minimalloc_gaps import gap_columns, parse_gaps

LEAST_BYTES = 1 << 20  # of a file that is worth loading pyarrow for

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
_PIECE_BYTES = 1 << 20
_ROW_BYTES = 170  # that a row takes up, with all that is made of it
_GAP_BYTES = 130
_DIGITS = re.compile(r"[-+0-9,]*")
_INTEGER = re.compile(r"[+-]?[0-9]+")


def read_minimalloc(source: Input) -> Problem:
    """The Problem in a MiniMalloc CSV file; its ids become labels.

    source: its path, or the file as `sniff` opened it. An `offset` is a fixed position
    (-1: anywhere), a `hint` is ignored. Raises FormatError naming line and column, or
    the buffer.
    """
    with opened(source) as file:
        path, data = file.path, file.read()
        _check_weight(path, data)
        if len(data) >= LEAST_BYTES and (problem := _at_once(path, data)) is not None:
            return problem
        table, blank = None, 0  # the number of the first blank line
        for first, lines in _pieces(path, data):
            if table is None:
                table = _Table(path, lines.pop(0).removesuffix("\r"))
                first += 1  # noqa: PLW2901 - the header is no row
            end = 0 if blank else _first(lines, blank=True)
            stray = end + _first(lines[end:], blank=False)
            blank = blank or (first + end if end < len(lines) else 0)
            if stray < len(lines):
                raise FormatError(
                    path,
                    f"line {first + stray} comes after a blank line, where MiniMalloc "
                    "stops",
                    f"delete line {blank}",
                )
            if end:
                table.add(first, lines[:end])
        assert table is not None  # no file that is open is empty
        return table.problem()


def _at_once(path: PathLike, data: bytes) -> Problem | None:
    """The Problem in a large file, or None where it must be read line by line."""
    from memplan.trace.importers.minimalloc_fast import read_columns, within

    try:
        header = data[: data.index(b"\n")].decode("utf-8-sig").removesuffix("\r")
    except ValueError:  # no second line, or no UTF-8
        return None
    table = _Table(path, header)
    found = read_columns(data, table.columns)
    if found is None or not within(found[1], _LEAST):
        return None
    table.ids, columns = found
    if table.inclusive:
        if (columns["upper"] == MAX_INTEGER).any():
            return None
        columns["upper"] += 1
    columns.pop("hint", None)
    table.parts = {name: [values] for name, values in columns.items()}
    return table.problem()


def _check_weight(path: PathLike, data: bytes) -> None:
    """Refuse more rows or gaps than so few bytes hold in any honest file."""
    rows, gaps = data.count(b"\n"), data.count(b"-")
    weight = _ROW_BYTES * rows + _GAP_BYTES * gaps
    if weight > Budget(len(data)).limit:
        raise FormatError(
            path,
            f"too large: {rows} rows with up to {gaps} gaps would take up "
            f"{weight >> 20} MiB, too much for a file of {len(data)} bytes",
        )


def _pieces(path: PathLike, data: bytes) -> Iterator[tuple[int, list[str]]]:
    """The lines, some at a time, each with the first one's number (header: 1)."""
    begin, number = len(BOM_UTF8) if data.startswith(BOM_UTF8) else 0, 1
    while begin < len(data) or number == 1:
        end = data.find(b"\n", begin + _PIECE_BYTES)
        end = len(data) if end < 0 else end
        try:
            lines = data[begin:end].decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            line = number + data.count(b"\n", begin, begin + error.start)
            raise FormatError(path, f"line {line}: not UTF-8 text") from None
        next_number = number + len(lines)
        yield number, lines
        number = next_number
        begin = end + 1


def _first(lines: list[str], blank: bool) -> int:
    """The place of the first line that is blank, or is not; their number if none."""
    places = (i for i, line in enumerate(lines) if (not line.strip()) is blank)
    return next(places, len(lines))


class _Table:
    """The columns of a file, filled slice by slice."""

    def __init__(self, path: PathLike, header: str) -> None:
        self.path = path
        # One more than there are names: what follows would not be known either.
        names = header.split(",", len(_SYNONYMS))
        self.names = [name.strip() for name in names]
        self.columns = [_SYNONYMS.get(name, "") for name in self.names]
        self._check_header()
        self.inclusive = "end" in self.names
        self.ids: list[str] = []
        self.gaps: list[Int64Array] = []  # each of shape (5, k)
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
            name: parts[0]
            if len(parts) == 1
            else np.concatenate([np.empty(0, dtype=np.int64), *parts])
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
                gaps=self._all_gaps(),
            )
        except InputError as error:
            raise FormatError(self.path, str(error)) from None

    def _all_gaps(self) -> Gaps | None:
        if not self.gaps:
            return None
        gaps = np.concatenate(self.gaps, axis=1)
        self.gaps.clear()
        return Gaps.of(*gaps)

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
            long = next((i for i, x in enumerate(fields) if len(x) > MAX_TEXT), None)
            if long is not None:
                self._fail(first + long, name, f"more than {MAX_TEXT} characters")
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
        if not _DIGITS.fullmatch(",".join(fields)):
            fields = [field.strip() for field in fields]
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

    def _add_gaps(self, first: int, fields: list[str]) -> None:
        if sum(map(len, fields)) <= 2 * _PIECE_BYTES:
            self._take_gaps(first, fields)
            return
        for line, field in enumerate(fields, first):
            begin = 0
            while begin < len(field):
                end = field.find(" ", begin + _PIECE_BYTES)
                end = len(field) if end < 0 else end
                self._take_gaps(line, [field[begin:end]])
                begin = end

    def _take_gaps(self, first: int, fields: list[str]) -> None:
        """Add the gaps in the fields of as many rows, the first on line `first`."""
        counts = [len(field.split()) for field in fields]
        columns = gap_columns(" ".join(fields), sum(counts), self.inclusive)
        if columns is None:
            columns = self._careful_gaps(first, fields)
        # Line 2 holds the first buffer.
        owners = np.repeat(np.arange(first - 2, first - 2 + len(fields)), counts)
        self.gaps.append(np.stack([owners, *columns]))

    def _careful_gaps(self, first: int, fields: list[str]) -> list[Int64Array]:
        """The gaps one by one; FormatError at the first that is not allowed."""
        rows = []
        for line, field in enumerate(fields, first):
            try:
                gaps = parse_gaps(field, self.inclusive)
            except InputError as error:
                self._fail(line, "gaps", str(error))
            rows += [(gap.lower, gap.upper, *(gap.window or (0, 0))) for gap in gaps]
        return list(np.array(rows, dtype=np.int64).reshape(-1, 4).T)

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
