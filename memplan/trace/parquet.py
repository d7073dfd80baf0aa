"""The trace as Parquet, its default form: compressed columns, and one metadata entry.

Column `index` counts the events; `action` and `mark` are dictionary-encoded names;
the others are the columns of a Trace. The file-level entry `memplan` holds the
metadata and the stack table as JSON. Both ways a group of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from memplan.errors import EnvironmentUnfitError, FormatError
from memplan.files import PathLike, atomic_write
from memplan.formats.parquet import as_format_errors
from memplan.formats.sniff import Input, opened
from memplan.formats.strictjson import parse, shown
from memplan.trace.check import (
    EventCheck,
    check_count,
    check_events,
    check_index,
)
from memplan.trace.info import MAX_METADATA_BYTES, encode_metadata, from_metadata
from memplan.trace.trace import Action, Columns, Mark, Trace

_KEY = b"memplan"
_NAMES = {"action": Action, "mark": Mark}
_TYPES = {
    "index": pa.int64(),
    **{
        name: pa.from_numpy_dtype(np.dtype(dtype))
        for name, dtype in Columns.DTYPES.items()
    },
    **{name: pa.dictionary(pa.int8(), pa.string()) for name in _NAMES},
}
GROUP_ROWS = 1 << 18  # of a row group: a few dozen MiB while it is written
_READ_ROWS = 1 << 16  # at a time
# The `index` column alone takes about a byte per row in any honest file.
_ROWS_PER_BYTE = 1
_ROWS_ANYWAY = 1_000_000
_WIDEST_ROW = 128  # bytes, decoded, of all the columns together
_MOST_NAMES = 64  # in a dictionary
# What the events may take up in memory: bytes for each of the file's, and anyway.
_BYTES_PER_BYTE = 10
_BYTES_ANYWAY = 100 << 20
_LIMITS = {
    "thrift_string_size_limit": MAX_METADATA_BYTES + (1 << 20),
    "thrift_container_size_limit": 1_000_000,
}


def write_parquet(trace: Trace, path: PathLike) -> None:
    """Write `trace` to `path`, atomically.

    The same trace and the same pyarrow give the same bytes. Raises FormatError for a
    trace no reader would take, EnvironmentUnfitError if the file cannot be written.
    """
    check_events(path, trace.events, len(trace.stacks))
    metadata = encode_metadata(path, trace)
    write_pieces(path, [trace.events], lambda: metadata)


def write_pieces(
    path: PathLike, pieces: Iterable[Columns], metadata: Callable[[], bytes]
) -> None:
    """Write a trace whose events come in sound pieces, atomically.

    metadata: asked for after the last of them. The pieces make no difference to the
    file. Raises EnvironmentUnfitError if it cannot be written, and what `pieces` does.
    """
    fields = [pa.field(name, kind, nullable=False) for name, kind in _TYPES.items()]
    schema = pa.schema(fields)
    try:
        with (
            atomic_write(path) as stream,
            pq.ParquetWriter(
                stream,
                schema,
                compression="zstd",
                use_dictionary=[n for n in _TYPES if n not in ("index", "time_ns")],
                column_encoding={"time_ns": "DELTA_BINARY_PACKED"},
                write_page_checksum=True,
                store_schema=False,  # it would hide the metadata from pq.read_table
            ) as writer,
        ):
            row = 0
            for events in regrouped(pieces, GROUP_ROWS):
                writer.write_table(_table(events, row, schema))
                row += len(events)
                del events  # before the next ones are gathered
            writer.add_key_value_metadata({_KEY: metadata()})
    except pa.ArrowException as error:
        raise EnvironmentUnfitError(
            f"{path}: cannot be written ({error}); write elsewhere"
        ) from error


def regrouped(pieces: Iterable[Columns], rows: int) -> Iterator[Columns]:
    """The same events in pieces of `rows` each, the last one shorter.

    At least one piece, though it may be empty.
    """
    waiting: list[Columns] = []
    count, given = 0, False
    for piece in pieces:
        begin = 0
        while count + len(piece) - begin >= rows:
            end = begin + rows - count
            waiting.append(piece.take(slice(begin, end)))
            group, waiting = Columns.joined(waiting), []
            yield group
            del group  # before the next one is gathered
            begin, count, given = end, 0, True
        waiting.append(piece.take(slice(begin, None)))
        count += len(piece) - begin
    if count or not given:
        yield Columns.joined(waiting or [Columns.of()])


def read_parquet(source: Input, columns: Collection[str] | None = None) -> Trace:
    """The Trace in a Parquet file, by its path or opened.

    columns: keep these only, and leave out the others as `Columns.of` does; all are
    checked. Columns this version does not know are ignored. Row count, types and the
    size of the metadata are checked before the data is read. Raises FormatError for
    whatever is not a trace, InputError if the file cannot be read.
    """
    with (
        opened(source) as input_,
        as_format_errors(path := input_.path, pa.ArrowException),
        pq.ParquetFile(stream := input_.stream, **_LIMITS) as file,
    ):
        about = from_metadata(path, _metadata(path, file))
        rows = _check_shape(path, file, input_.size)
        wanted = Columns.DTYPES.keys() if columns is None else columns
        kept = {
            name: _Kept(Columns.DTYPES[name], rows)
            for name in Columns.DTYPES
            if name in wanted
        }
        check = EventCheck(len(about.stacks))
        for events in _pieces(path, _read(stream, file.metadata)):
            begin = check.rows
            if fault := check.fault(events):
                raise FormatError(path, str(fault), "record or convert the trace again")
            for name, column in kept.items():
                column.put(begin, getattr(events, name))
            taken = sum(column.nbytes for column in kept.values())
            if taken > _BYTES_ANYWAY + _BYTES_PER_BYTE * input_.size:
                problem = f"{taken} bytes of events in a file of {input_.size}"
                raise FormatError(path, problem, "no trace is packed like this")
        if check.rows != rows:
            raise FormatError(path, f"it claims {rows} rows, and holds {check.rows}")
    arrays = {name: column.values() for name, column in kept.items()}
    return replace(about, events=Columns.of(**arrays))


class _Kept:
    """One column as it is read: one value only, as long as it has no other."""

    def __init__(self, dtype: Any, rows: int) -> None:
        self._first = np.zeros(1, dtype=dtype)
        self._rows = rows
        self._array: npt.NDArray[Any] | None = None

    def put(self, begin: int, values: npt.NDArray[Any]) -> None:
        """The values from row `begin` on."""
        if self._array is None:
            if begin == 0:
                self._first = values[:1].copy()
            if (values == self._first).all():
                return
            self._array = np.empty(self._rows, dtype=values.dtype)
            self._array[:begin] = self._first
        self._array[begin : begin + len(values)] = values

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return 0 if self._array is None else self._array.nbytes

    def values(self) -> npt.NDArray[Any]:
        """All rows; read-only where they are all the same."""
        if self._array is None:
            return np.broadcast_to(self._first[:1], (self._rows,))
        return self._array


def _table(events: Columns, row: int, schema: pa.Schema) -> pa.Table:
    """A row group, from the trace's `row` on."""
    index = np.arange(row, row + len(events), dtype=np.int64)
    columns = {}
    for name, kind in _TYPES.items():
        values = index if name == "index" else getattr(events, name)
        if name in _NAMES:
            names = pa.array([code.name.lower() for code in _NAMES[name]])
            codes = pa.array(values.astype(np.int8))
            columns[name] = pa.DictionaryArray.from_arrays(codes, names)
        else:
            columns[name] = pa.array(values, type=kind)
    return pa.table(columns, schema=schema)


def _metadata(path: PathLike, file: pq.ParquetFile) -> object:
    data = (file.metadata.metadata or {}).get(_KEY)
    if data is None:
        problem = "a Parquet file without a memplan entry in its metadata"
        remedy = "name a trace recorded or imported by memplan"
        raise FormatError(path, problem, remedy)
    if len(data) > MAX_METADATA_BYTES:
        problem = f"{len(data)} bytes of metadata, limit {MAX_METADATA_BYTES}"
        raise FormatError(path, problem)
    return parse(data, path)


def _check_shape(path: PathLike, file: pq.ParquetFile, size: int) -> int:
    """Refuse, before reading them, columns that are not a trace's, and bombs.

    The number of rows.
    """
    schema = file.schema_arrow
    missing = [name for name in _TYPES if name not in schema.names]
    if missing:
        raise FormatError(path, f"columns are missing: {', '.join(missing)}")
    for name, kind in _TYPES.items():
        if schema.names.count(name) > 1:
            raise FormatError(path, f"the column {name} appears twice")
        found = schema.field(name).type
        text = name in _NAMES and _is_text(found)
        if not text and found != kind:
            raise FormatError(path, f"column {name} is {found}, not {kind}")
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    rows: int = max(file.metadata.num_rows, sum(group.num_rows for group in groups))
    check_count(path, rows)
    if rows > _ROWS_ANYWAY + _ROWS_PER_BYTE * size:
        raise FormatError(path, f"it claims {rows} rows in {size} bytes")
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    decoded = sum(
        c.total_uncompressed_size for c in chunks if c.path_in_schema in _TYPES
    )
    if decoded > _WIDEST_ROW * rows + (1 << 20):
        raise FormatError(path, f"it claims {decoded} bytes for {rows} rows")
    return rows


def _read(stream: IO[bytes], metadata: pq.FileMetaData) -> Iterator[pa.RecordBatch]:
    # Names stay in their dictionaries: a long one, repeated, would fill the memory.
    with pq.ParquetFile(
        stream,
        metadata=metadata,
        read_dictionary=list(_NAMES),
        page_checksum_verification=True,
        **_LIMITS,
    ) as file:
        yield from file.iter_batches(_READ_ROWS, columns=list(_TYPES))


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _pieces(path: PathLike, batches: Iterator[pa.RecordBatch]) -> Iterator[Columns]:
    """The events of each batch, their rows counted up, their names known."""
    row, last = 0, -1
    for batch in batches:
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name in _TYPES:
            column = batch.column(name)
            if column.null_count:
                at = row + int(np.argmax(column.is_null().to_numpy(False)))
                raise FormatError(path, f"row {at}, column {name}: no value")
            arrays[name] = (
                _codes(path, name, column, row)
                if name in _NAMES
                else column.to_numpy(zero_copy_only=False)
            )
        index = arrays.pop("index")
        check_index(path, index, row, last)
        row, last = row + len(index), int(index[-1]) if len(index) else last
        yield Columns.of(**arrays)


def _codes(path: PathLike, name: str, column: Any, row: int) -> npt.NDArray[np.uint8]:
    """The codes of a column of names, from `row` on; each batch has its dictionary."""
    if len(column.dictionary) > _MOST_NAMES:
        raise FormatError(path, f"column {name} has {len(column.dictionary)} names")
    known = {code.name.lower(): int(code) for code in _NAMES[name]}
    unknown = len(known)
    names = column.dictionary.to_pylist()
    codes = np.array([known.get(n, unknown) for n in names], dtype=np.uint8)
    indices = column.indices.to_numpy()
    found: npt.NDArray[np.uint8] = codes[indices]
    if (found == unknown).any():
        at = int(np.argmax(found == unknown))
        value = shown(names[indices[at]])
        problem = f"row {row + at}, column {name}: {value} is not known"
        raise FormatError(path, problem, f"known are {', '.join(known)}")
    return found
