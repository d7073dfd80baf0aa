"""MiniMalloc's CSV: the packing problems of its benchmark, and whoever speaks it.

A header row in any order: `id lower upper size`, and optionally `alignment hint gaps
offset`. `buffer` and `buffer_id` stand for id; `start` and `begin` for lower; `end`
for an upper that is inclusive, as then are the ends of gaps. There is no quoting.
"""

from __future__ import annotations

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

_SAFE_DIGITS = 19  # fewer are always in the range of an integer
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
_ROW_BYTES = 170  # that a row takes up, with all that is made of it
_GAP_BYTES = 130
_WORD = re.compile(r"\S+")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_GAP = re.compile(r"(\d{1,19})-(\d{1,19})(?:@(\d{1,19}):(\d{1,19}))?", re.ASCII)
# pyarrow takes 0x10 for an integer, a tab for a blank, and a NUL for whatever follows.
_DOUBTFUL = (b"0x", b"0X", b"\t", b"\v", b"\f", b"\0")


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
    table = _Table(path, next(lines))
    if len(data) < LEAST_BYTES or not table.read_at_once(data):
        table.read(lines)
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


def _lines(path: PathLike, data: bytes) -> Iterator[str]:
    begin, number = len(BOM_UTF8) if data.startswith(BOM_UTF8) else 0, 1
    while begin < len(data) or number == 1:
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        try:
            line = data[begin:end].decode("utf-8")
        except UnicodeDecodeError:
            raise FormatError(path, f"line {number}: not UTF-8 text") from None
        yield line.removesuffix("\r")
        begin, number = end + 1, number + 1


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
        self.values: dict[str, array[int] | Int64Array] = {}

    def read_at_once(self, data: bytes) -> bool:
        """Read all rows of `data` by pyarrow; False where there is any doubt about what
        it says. Then they are read one by one, which takes longer and tells what is
        wrong, and where."""
        import pyarrow as pa
        from pyarrow import compute, csv

        # A lone \r would end a line, too.
        doubtful = any(text in data for text in _DOUBTFUL)
        if doubtful or data.count(b"\r") != data.count(b"\r\n"):
            return False
        types = {n: pa.int64() if n in _LEAST else pa.string() for n in self.columns}
        try:
            table = csv.read_csv(
                pa.BufferReader(data),
                csv.ReadOptions(
                    column_names=self.columns, skip_rows=1, use_threads=False
                ),
                csv.ParseOptions(
                    quote_char=False,
                    double_quote=False,
                    escape_char=False,
                    ignore_empty_lines=False,
                ),
                csv.ConvertOptions(
                    column_types=types, null_values=[], strings_can_be_null=False
                ),
            )
            if "gaps" in self.columns:
                for row, field in enumerate(table.column("gaps").to_pylist()):
                    self._add_gaps(row, field)
        except (pa.ArrowException, ValueError, InputError):
            return False
        ids = table.column("id")
        longest = compute.max(compute.utf8_length(ids)).as_py() or 0
        if longest > MAX_TEXT or any(column.null_count for column in table.columns):
            return False
        values = {
            name: np.array(table.column(name).to_numpy(), dtype=np.int64)
            for name in self.columns
            if name in _LEAST
        }
        if any((column < _LEAST[name]).any() for name, column in values.items()):
            return False
        if self.inclusive and (values["upper"] == MAX_INTEGER).any():
            return False
        values["upper"] += self.inclusive
        self.ids, self.values = ids.to_pylist(), dict(values)
        del table, ids
        pa.default_memory_pool().release_unused()
        return True

    def read(self, lines: Iterator[str]) -> None:
        """Read the rows one by one."""
        values = {name: array("q") for name in self.columns if name in _LEAST}
        self.values, self.gaps = dict(values), array("q")
        blank, width = 0, len(self.columns)
        for number, line in enumerate(lines, 2):
            if not line.strip():
                blank = blank or number
                continue
            if blank:
                problem = f"line {number} comes after a blank line, where MiniMalloc"
                raise FormatError(self.path, f"{problem} stops", f"delete line {blank}")
            fields = line.split(",")
            if len(fields) != width:
                problem = f"{len(fields)} fields, the header has {width}"
                raise FormatError(self.path, f"line {number}: {problem}")
            for name, column, field in zip(
                self.names, self.columns, fields, strict=True
            ):
                if column == "gaps":
                    try:
                        self._add_gaps(number - 2, field)  # line 2 holds the first row
                    except InputError as error:
                        self._fail(number, name, str(error))
                elif column != "id":
                    values[column].append(self._integer(number, name, column, field))
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

    def _integer(self, line: int, name: str, column: str, field: str) -> int:
        if len(field) < _SAFE_DIGITS and field.isascii() and field.isdigit():
            value = int(field)
            if value >= _LEAST[column]:
                return value + (name == "end")
        # int() takes more than MiniMalloc does: 1_000, other scripts' digits.
        text = field.strip()
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

    def _add_gaps(self, row: int, field: str) -> None:
        for gap in parse_gaps(field, self.inclusive):
            self.gaps.extend((row, *gap))

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
