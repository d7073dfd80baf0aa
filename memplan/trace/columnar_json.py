"""The trace as JSON: the Parquet form's columns as arrays, the same metadata.

    {"schema": "memplan.trace", "version": 1, ..., "stacks_table": {...},
     "columns": {"index": [...], "time_ns": [...], "action": ["alloc", ...], ...}}

Plain or gzip-compressed. Parquet is smaller and faster; this form needs no library.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from memplan.errors import FormatError
from memplan.files import PathLike, atomic_write
from memplan.formats.scan import LongList
from memplan.formats.sniff import Input, Kind, Opened, opened
from memplan.formats.strictjson import Budget, parse, shown
from memplan.trace.check import check_count, check_events, check_index
from memplan.trace.info import encode_metadata, from_metadata
from memplan.trace.trace import Action, Columns, Mark, Trace

_REMEDY = "the file may be cut off"
_ROWS_AT_A_TIME = 1 << 16
_NAMES: dict[str, type[Action] | type[Mark]] = {"action": Action, "mark": Mark}


def write_json(trace: Trace, path: PathLike) -> None:
    """Write `trace` to `path`, atomically; compressed if it ends in ``.gz``.

    The same trace gives the same bytes. Raises FormatError for a trace no reader
    would take, EnvironmentUnfitError if the file cannot be written.
    """
    check_events(path, trace.events, len(trace.stacks))
    metadata = encode_metadata(path, trace)
    with atomic_write(path) as stream:
        if str(path).endswith(".gz"):
            # No name and no time in the header: they would change the bytes.
            with gzip.GzipFile("", "wb", 6, stream, mtime=0) as packed:
                _write_text(packed, trace.events, metadata)
        else:
            _write_text(stream, trace.events, metadata)


def read_json(source: Input) -> Trace:
    """The Trace in a plain or compressed JSON file.

    Raises FormatError naming column and row for whatever is not a trace.
    """
    with opened(source) as file:
        if file.kind is Kind.GZIP:
            budget = Budget(file.size)
            data = _decompress(file, budget.limit)
            value = parse(data, file.path, _REMEDY, budget)
            del data
        else:
            value = file.json()
        return _trace(file.path, value)


def _trace(path: PathLike, value: object) -> Trace:
    about = from_metadata(path, value)
    assert isinstance(value, dict)  # from_metadata refuses anything else
    columns = value.get("columns")
    if not isinstance(columns, dict):
        raise FormatError(path, "there is no object named columns")
    events = _events(path, columns)
    check_events(path, events, len(about.stacks))
    return replace(about, events=events)


def _write_text(
    stream: IO[bytes] | gzip.GzipFile, events: Columns, metadata: bytes
) -> None:
    stream.write(metadata[:-1] + b',"columns":{')
    index = np.arange(len(events), dtype=np.int64)
    before = b'\n"'
    for name in ("index", *Columns.DTYPES):
        values = index if name == "index" else getattr(events, name)
        stream.write(before + name.encode() + b'":[')
        for piece in _pieces(values, _NAMES.get(name)):
            stream.write(piece)
        stream.write(b"]")
        before = b',\n"'
    stream.write(b"\n}}\n")


def _pieces(
    values: npt.NDArray[Any], names: type[Action] | type[Mark] | None
) -> Iterator[bytes]:
    words = [f'"{code.name.lower()}"' for code in names] if names else None
    for start in range(0, len(values), _ROWS_AT_A_TIME):
        part = values[start : start + _ROWS_AT_A_TIME].tolist()
        texts = map(str, part) if words is None else (words[code] for code in part)
        yield (b"," if start else b"") + ",".join(texts).encode()


def _decompress(file: Opened, limit: int) -> bytes:
    """What the gzip file holds, given up as soon as that is more than `limit` bytes."""
    try:
        with gzip.GzipFile(fileobj=file.stream) as packed:
            data = packed.read(limit + 1)
    except EOFError:
        problem = "the compressed data is cut off"
        raise FormatError(file.path, problem, "record it again") from None
    except (OSError, zlib.error) as error:
        raise FormatError(file.path, f"damaged gzip data ({error})") from None
    if len(data) > limit:
        problem = f"it decompresses to more than {limit} bytes"
        remedy = "use Parquet for a trace of this size"
        raise FormatError(file.path, problem, remedy)
    return data


def _events(path: PathLike, columns: dict[str, Any]) -> Columns:
    missing = [n for n in ("index", *Columns.DTYPES) if n not in columns]
    if missing:
        raise FormatError(path, f"columns are missing: {', '.join(missing)}")
    count = None
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, dtype in {"index": np.int64, **Columns.DTYPES}.items():
        values = columns.pop(name)  # dropped as soon as it is an array
        if not isinstance(values, list | LongList):
            raise FormatError(path, f"column {name} is {shown(values)}, not a list")
        count = len(values) if count is None else count
        if len(values) != count:
            problem = f"column {name} has {len(values)} rows, index has {count}"
            raise FormatError(path, problem)
        check_count(path, count)
        array, row = np.empty(count, dtype), 0
        for piece in values.pieces() if isinstance(values, LongList) else [values]:
            read = _codes if name in _NAMES else _integers
            array[row : row + len(piece)] = read(path, name, row, piece)
            row += len(piece)
        arrays[name] = array
    check_index(path, arrays.pop("index"))
    return Columns.of(**arrays)


def _codes(path: PathLike, name: str, first: int, values: list[Any]) -> list[int]:
    """The codes of names; `first` is the row of the first."""
    codes = {code.name.lower(): int(code) for code in _NAMES[name]}
    if set(map(type, values)) <= {str} and set(values) <= set(codes):
        return [codes[value] for value in values]
    row, value = next(
        (row, value)
        for row, value in enumerate(values, first)
        if not isinstance(value, str) or value not in codes
    )
    problem = f"row {row}, column {name}: {shown(value)} is not known"
    raise FormatError(path, problem, f"known are {', '.join(codes)}")


def _integers(path: PathLike, name: str, first: int, values: list[Any]) -> list[int]:
    """The values, if they are integers of the column's type."""
    limits: Any = np.iinfo(np.dtype(Columns.DTYPES.get(name, np.int64)).name)
    low, high = int(limits.min), int(limits.max)
    if set(map(type, values)) <= {int} and (
        not values or (low <= min(values) and max(values) <= high)
    ):
        return values
    row, value = next(
        (row, value)
        for row, value in enumerate(values, first)
        if type(value) is not int or not low <= value <= high
    )
    raise FormatError(
        path,
        f"row {row}, column {name}: {shown(value)} is not an integer "
        f"from {low} to {high}",
    )
