"""The trace as Parquet, its default form: compressed columns, and one metadata entry.

Column `index` counts the events; `action` and `mark` are dictionary-encoded names;
the others are the columns of a Trace. The file-level entry `memplan` holds the
metadata and the stack table as JSON.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from memplan.errors import EnvironmentUnfitError, FormatError
from memplan.files import PathLike, atomic_write
from memplan.formats.sniff import Input, opened
from memplan.formats.strictjson import parse, shown
from memplan.trace.check import check_count, check_events, check_index
from memplan.trace.info import MAX_METADATA_BYTES, encode_metadata, from_metadata
from memplan.trace.trace import Action, Columns, Mark, Trace

MAGIC = b"PAR1"

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
# The `index` column alone takes about a byte per row in any honest file.
_ROWS_PER_BYTE = 8
_ROWS_ANYWAY = 4_000_000
_WIDEST_ROW = 256  # bytes, decoded, of all the columns together
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
    table = _table(trace.events)
    try:
        with (
            atomic_write(path) as stream,
            pq.ParquetWriter(
                stream,
                table.schema,
                compression="zstd",
                use_dictionary=[n for n in _TYPES if n not in ("index", "time_ns")],
                column_encoding={"time_ns": "DELTA_BINARY_PACKED"},
                write_page_checksum=True,
                store_schema=False,  # it would hide the metadata from pq.read_table
            ) as writer,
        ):
            writer.add_key_value_metadata({_KEY: metadata})
            writer.write_table(table)
    except pa.ArrowException as error:
        raise EnvironmentUnfitError(
            f"{path}: cannot be written ({error}); write elsewhere"
        ) from error


def read_parquet(source: Input) -> Trace:
    """The Trace in a Parquet file, by its path or opened.

    Columns this version does not know are ignored. Row count, types and the size of
    the metadata are checked before the data is read. Raises FormatError for whatever
    is not a trace, InputError if the file cannot be read.
    """
    with (
        opened(source) as input_,
        _as_format_errors(path := input_.path),
        pq.ParquetFile(stream := input_.stream, **_LIMITS) as file,
    ):
        info, stacks = from_metadata(path, _metadata(path, file))
        _check_shape(path, file, input_.size)
        events = _events(path, _read(stream, file.metadata))
    check_events(path, events, len(stacks))
    return Trace(events, stacks, info)


def _table(events: Columns) -> pa.Table:
    index = np.arange(len(events), dtype=np.int64)
    columns = {}
    for name, kind in _TYPES.items():
        values = index if name == "index" else getattr(events, name)
        if name in _NAMES:
            names = pa.array([code.name.lower() for code in _NAMES[name]])
            codes = pa.array(values.astype(np.int8))
            columns[name] = pa.DictionaryArray.from_arrays(codes, names)
        else:
            columns[name] = pa.array(values, type=kind)
    fields = [pa.field(name, kind, nullable=False) for name, kind in _TYPES.items()]
    return pa.table(columns, schema=pa.schema(fields))


def _metadata(path: PathLike, file: pq.ParquetFile) -> object:
    data = (file.metadata.metadata or {}).get(_KEY)
    if data is None:
        raise FormatError(
            path,
            "a Parquet file without a memplan entry in its metadata",
            "name a trace recorded or imported by memplan",
        )
    if len(data) > MAX_METADATA_BYTES:
        raise FormatError(
            path, f"{len(data)} bytes of metadata, limit {MAX_METADATA_BYTES}"
        )
    return parse(data, path)


def _check_shape(path: PathLike, file: pq.ParquetFile, size: int) -> None:
    """Refuse, before reading them, columns that are not a trace's, and bombs."""
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
    rows = max(file.metadata.num_rows, sum(group.num_rows for group in groups))
    check_count(path, rows)
    if rows > _ROWS_ANYWAY + _ROWS_PER_BYTE * size:
        raise FormatError(path, f"it claims {rows} rows in {size} bytes")
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    decoded = sum(
        c.total_uncompressed_size for c in chunks if c.path_in_schema in _TYPES
    )
    if decoded > _WIDEST_ROW * rows + (1 << 20):
        raise FormatError(path, f"it claims {decoded} bytes for {rows} rows")


def _read(stream: IO[bytes], metadata: pq.FileMetaData) -> pa.Table:
    # Names stay in their dictionaries: a long one, repeated, would fill the memory.
    with pq.ParquetFile(
        stream,
        metadata=metadata,
        read_dictionary=list(_NAMES),
        page_checksum_verification=True,
        **_LIMITS,
    ) as file:
        return file.read(columns=list(_TYPES))


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _events(path: PathLike, table: pa.Table) -> Columns:
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name in _TYPES:
        column = table.column(name)
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy()))
            raise FormatError(path, f"row {row}, column {name}: no value")
        arrays[name] = (
            _codes(path, name, column) if name in _NAMES else column.to_numpy()
        )
    check_index(path, arrays.pop("index"))
    return Columns.of(**arrays)


def _codes(path: PathLike, name: str, column: Any) -> npt.NDArray[np.uint8]:
    """The codes of a column of names; each chunk may have a dictionary of its own."""
    known = {code.name.lower(): int(code) for code in _NAMES[name]}
    unknown = len(known)
    parts, row = [np.empty(0, dtype=np.uint8)], 0
    for chunk in column.chunks:
        names = chunk.dictionary.to_pylist()
        codes = np.array([known.get(n, unknown) for n in names], dtype=np.uint8)
        indices = chunk.indices.to_numpy()
        part = codes[indices]
        if (part == unknown).any():
            at = int(np.argmax(part == unknown))
            problem = f"row {row + at}, column {name}: {shown(names[indices[at]])}"
            raise FormatError(
                path, f"{problem} is not known", f"known are {', '.join(known)}"
            )
        parts.append(part)
        row += len(part)
    return np.concatenate(parts)


@contextlib.contextmanager
def _as_format_errors(path: PathLike) -> Iterator[None]:
    """pyarrow's many exceptions, its own and C++'s in Python's clothes, as one."""
    try:
        yield
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        LookupError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
    ) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        reason = ascii(reason)[1:-1]  # bytes of the file may be in it
        raise FormatError(
            path, f"damaged Parquet data ({reason})", "the file may be cut off"
        ) from error
