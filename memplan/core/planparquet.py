"""Plan files as Parquet, for very many buffers: a tenth of the time that JSON takes.

The file's own metadata has one entry, `memplan`: the plan as JSON, where `buffers` is
null. Their fields are the columns instead, one row a buffer: int64, but for `id`, which
is text where the plan is of a bare problem with labels, and `gaps`, lists of int64. In
`fixed`, -1 is anywhere; in `gaps` there are four numbers a gap: lower, upper, begin and
end, both of these 0 where no bytes are in use.

The checksum is the SHA-256 of that JSON, as it stands but for the line that holds it;
then of all columns by their names: integers little-endian, texts as UTF-8 with a
newline after each, lists one after the other behind their lengths.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from memplan.arrays import Int64Array
from memplan.core.gaps import Gaps
from memplan.core.planrows import Columns
from memplan.errors import EnvironmentUnfitError, FormatError
from memplan.files import PathLike, atomic_write
from memplan.formats.sniff import Opened
from memplan.formats.strictjson import parse

Buffers: TypeAlias = "Mapping[str, Int64Array | list[Any]]"

_REMEDY = "make the plan anew with memplan solve"
_KEY = b"memplan"
_INTEGERS = frozenset({"alignment", "fixed", "lower", "offset", "size", "upper"})
_REQUIRED = frozenset({"id", "lower", "offset", "size", "upper"})
_LIST = pa.list_(pa.field("item", pa.int64(), nullable=False))
_CHECKSUM = re.compile(rb'^"checksum": "([0-9a-f]{64})",\n', re.MULTILINE)
_INTEGER_BYTES = 8
_GROUP_ROWS = 1 << 20


def write_parquet(fields: Mapping[str, str], columns: Buffers, path: PathLike) -> None:
    """Write a plan, atomically; the same plan and pyarrow give the same bytes.

    fields: as JSON, without the hot buffers; columns: those. Raises
    EnvironmentUnfitError if the file cannot be written.
    """
    arrays = {name: _array(columns[name]) for name in sorted(columns)}
    schema = pa.schema(
        [pa.field(name, array.type, nullable=False) for name, array in arrays.items()]
    )
    plain = dict(fields) | {"buffers": "null"}
    digest = _digest(_text(plain), arrays)
    metadata = _text(plain | {"checksum": f'"{digest}"'})
    try:
        # Plain: no file is smaller than what it holds, and readers rely on that.
        with (
            atomic_write(path) as stream,
            pq.ParquetWriter(
                stream,
                schema,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
                store_schema=False,
            ) as writer,
        ):
            writer.write_table(pa.table(arrays, schema=schema), _GROUP_ROWS)
            writer.add_key_value_metadata({_KEY: metadata})
    except pa.ArrowException as error:
        raise EnvironmentUnfitError(
            f"{path}: cannot be written ({error}); write elsewhere"
        ) from error


def read_parquet(file: Opened, limit: int) -> tuple[object, Columns]:
    """The JSON of a plan, and its hot buffers. limit: bytes of the JSON.

    Sizes, types and the checksum are checked, the sizes before any data is read. Raises
    FormatError for what is not such a file.
    """
    limits = {
        "thrift_string_size_limit": limit + (1 << 20),
        "thrift_container_size_limit": 1_000_000,
    }
    with (
        _as_format_errors(file.path),
        pq.ParquetFile(file.stream, **limits) as parquet,
    ):
        data = (parquet.metadata.metadata or {}).get(_KEY, b"")
        if len(data) > limit:
            problem = f"{len(data)} bytes of metadata, more than the limit of {limit}"
            raise FormatError(file.path, problem, _REMEDY)
        _check_shape(file, parquet)
        table = parquet.read().combine_chunks()
    arrays = {name: _whole(file.path, name, table) for name in table.column_names}
    line = _CHECKSUM.search(data)
    if line is None:
        problem = "checksum does not stand on a line of its own"
        raise FormatError(file.path, problem, _REMEDY)
    if _digest(data[: line.start()] + data[line.end() :], arrays) != line[1].decode():
        problem = (
            "checksum does not match: the file was damaged or edited since written"
        )
        raise FormatError(file.path, problem, _REMEDY)
    value = parse(data, file.path, _REMEDY)
    if not isinstance(value, dict) or value.get("buffers") is not None:
        raise FormatError(file.path, "buffers must be null beside columns", _REMEDY)
    uniform = value.get("alignment") is not None
    if uniform is ("alignment" in arrays):
        problem = "alignment must be in the metadata or a column, and is not in one"
        raise FormatError(file.path, problem, _REMEDY)
    return value, _columns(file.path, arrays)


def _columns(path: PathLike, arrays: dict[str, pa.Array]) -> Columns:
    gaps = _gaps(path, arrays.pop("gaps")) if "gaps" in arrays else None
    ids = arrays.pop("id")
    names = ids.to_pylist() if pa.types.is_string(ids.type) else np.array(ids)
    return {name: np.array(array) for name, array in arrays.items()}, names, gaps


def _gaps(path: PathLike, lists: pa.Array) -> Gaps | None:
    lengths = np.diff(np.array(lists.offsets, dtype=np.int64))
    if (lengths % 4).any():
        i = int(np.argmax(lengths % 4 != 0))
        problem = f"row {i}, column gaps: {lengths[i]} numbers, and a gap has four"
        raise FormatError(path, problem, _REMEDY)
    if not lengths.any():
        return None
    numbers = np.array(lists.flatten(), dtype=np.int64).reshape(-1, 4)
    owners = np.repeat(np.arange(len(lengths)), lengths // 4)
    return Gaps.of(owners, *numbers.T)


def _array(column: Int64Array | list[Any]) -> pa.Array:
    if not isinstance(column, list):
        return pa.array(column, type=pa.int64())
    if column and isinstance(column[0], str):
        return pa.array(column, type=pa.string())
    flat = [[number for gap in gaps for number in (*gap, 0, 0)[:4]] for gaps in column]
    return pa.array(flat, type=_LIST)


def _digest(text: bytes, arrays: Mapping[str, pa.Array]) -> str:
    digest = hashlib.sha256(text)
    for name in sorted(arrays):
        array = arrays[name]
        if pa.types.is_string(array.type):
            digest.update("".join(f"{one}\n" for one in array.to_pylist()).encode())
            continue
        if pa.types.is_list(array.type):
            digest.update(np.diff(np.array(array.offsets)).astype("<i8").tobytes())
            array = array.flatten()
        digest.update(np.ascontiguousarray(array, dtype="<i8"))
    return digest.hexdigest()


def _text(fields: Mapping[str, str]) -> bytes:
    lines = ",\n".join(f'"{key}": {fields[key]}' for key in sorted(fields))
    return f"{{\n{lines}\n}}\n".encode("ascii")


def _check_shape(file: Opened, parquet: pq.ParquetFile) -> None:
    """Refuse, before reading them, columns that are not a plan's, and bombs."""
    schema, rows = parquet.schema_arrow, parquet.metadata.num_rows
    names = set(schema.names)
    odd = sorted(names - _INTEGERS - {"id", "gaps"})
    if odd or len(names) < len(schema.names) or not names >= _REQUIRED:
        listed = ", ".join(sorted(schema.names))
        raise FormatError(file.path, f"not the columns of a plan: {listed}", _REMEDY)
    for field in schema:
        kinds = [pa.int64()]
        if field.name == "id":
            kinds += [pa.string()]
        elif field.name == "gaps":
            kinds = [_LIST]
        if field.type not in kinds:
            problem = f"column {field.name} is {field.type}, not {kinds[-1]}"
            raise FormatError(file.path, problem, _REMEDY)
    groups = parquet.metadata
    chunks = [
        groups.row_group(i).column(k)
        for i in range(groups.num_row_groups)
        for k in range(groups.num_columns)
    ]
    least = rows * _INTEGER_BYTES * len(names & _INTEGERS)
    plain = {"PLAIN", "RLE"}  # levels of lists are RLE, and bring no bytes of their own
    if least > file.size or any(
        chunk.compression != "UNCOMPRESSED" or not plain.issuperset(chunk.encodings)
        for chunk in chunks
    ):
        problem = f"{rows} rows in {file.size} bytes, packed as no plan is"
        raise FormatError(file.path, problem, _REMEDY)


def _whole(path: PathLike, name: str, table: pa.Table) -> pa.Array:
    chunks = table.column(name)
    if chunks.null_count:
        raise FormatError(path, f"column {name} has rows without a value", _REMEDY)
    if chunks.num_chunks == 1:
        return chunks.chunk(0)
    return pa.array([], type=chunks.type)  # of a table that is combined: no rows


@contextlib.contextmanager
def _as_format_errors(path: PathLike) -> Iterator[None]:
    """pyarrow's many exceptions as one."""
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
        problem = f"damaged Parquet data ({reason})"
        raise FormatError(path, problem, "the file may be cut off") from error
