"""Plan files as Parquet, for very many buffers: a tenth of the time that JSON takes.

The file's own metadata has one entry, `memplan`: the plan as JSON, where `buffers` is
null. Their fields are the columns instead, one row a buffer: int64, but for `id`, which
is text where the plan is of a bare problem with labels, and `gaps`, the text that they
are in JSON. In `fixed`, -1 is anywhere. (No lists: a damaged one makes pyarrow abort.)

The checksum is the SHA-256 of that JSON, as it stands but for the line that holds it;
then of all columns by their names: integers little-endian, texts as UTF-8 with a
newline after each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from memplan.arrays import Int64Array
from memplan.core.planrows import REMEDY, Buffers, Columns, as_object, split_checksum
from memplan.errors import EnvironmentUnfitError, FormatError
from memplan.files import PathLike, atomic_write
from memplan.formats.parquet import as_format_errors
from memplan.formats.sniff import Opened
from memplan.formats.strictjson import parse

_KEY = b"memplan"
_INTEGERS = frozenset({"alignment", "fixed", "lower", "offset", "size", "upper"})
_REQUIRED = frozenset({"id", "lower", "offset", "size", "upper"})
_INTEGER_BYTES = 8
_GROUP_ROWS = 1 << 20


def write_parquet(fields: Mapping[str, str], columns: Buffers, path: PathLike) -> None:
    """Write a plan, atomically; the same plan and pyarrow give the same bytes.

    fields: as JSON, without the hot buffers; columns: those. Raises
    EnvironmentUnfitError if the file cannot be written.
    """
    arrays = {name: _array(name, columns[name]) for name in sorted(columns)}
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
                write_page_checksum=True,
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
        as_format_errors(file.path, pa.ArrowException),
        pq.ParquetFile(
            file.stream, page_checksum_verification=True, pre_buffer=False, **limits
        ) as parquet,
    ):
        data = (parquet.metadata.metadata or {}).get(_KEY, b"")
        if len(data) > limit:
            problem = f"{len(data)} bytes of metadata, more than the limit of {limit}"
            raise FormatError(file.path, problem, REMEDY)
        _check_shape(file, parquet)
        table = parquet.read(use_threads=False).combine_chunks()
    arrays = {name: _whole(file.path, name, table) for name in table.column_names}
    stated, rest = split_checksum(data)
    if not stated:
        problem = "checksum does not stand on a line of its own"
        raise FormatError(file.path, problem, REMEDY)
    if _digest(rest, arrays) != stated:
        problem = (
            "checksum does not match: the file was damaged or edited since written"
        )
        raise FormatError(file.path, problem, REMEDY)
    value = parse(data, file.path, REMEDY)
    if not isinstance(value, dict) or value.get("buffers") is not None:
        raise FormatError(file.path, "buffers must be null beside columns", REMEDY)
    uniform = value.get("alignment") is not None
    if uniform is ("alignment" in arrays):
        problem = "alignment must be in the metadata or a column, and is not in one"
        raise FormatError(file.path, problem, REMEDY)
    return value, _columns(file.path, arrays)


def _columns(path: PathLike, arrays: dict[str, pa.Array]) -> Columns:
    gaps: list[object] = []
    if "gaps" in arrays:
        texts = arrays.pop("gaps").to_pylist()
        gaps = [[] if text == "[]" else parse(text.encode(), path) for text in texts]
    ids = arrays.pop("id")
    names = ids.to_pylist() if pa.types.is_string(ids.type) else np.array(ids)
    integers = {name: np.array(array.to_numpy()) for name, array in arrays.items()}
    return integers, names, gaps


def _array(name: str, column: Int64Array | list[Any]) -> pa.Array:
    if not isinstance(column, list):
        return pa.array(column, type=pa.int64())
    texts = map(str, column) if name == "gaps" else column
    return pa.array(texts, type=pa.string())


def _digest(text: bytes, arrays: Mapping[str, pa.Array]) -> str:
    digest = hashlib.sha256(text)
    for name in sorted(arrays):
        array = arrays[name]
        if pa.types.is_string(array.type):
            digest.update("\n".join([*array.to_pylist(), ""]).encode())
            continue
        digest.update(np.asarray(array.to_numpy(), dtype="<i8").tobytes())
    return digest.hexdigest()


def _text(fields: Mapping[str, str]) -> bytes:
    return f"{as_object(fields)}\n".encode("ascii")


def _check_shape(file: Opened, parquet: pq.ParquetFile) -> None:
    """Refuse, before reading them, columns that are not a plan's, and bombs."""
    schema, rows = parquet.schema_arrow, parquet.metadata.num_rows
    names = set(schema.names)
    odd = sorted(names - _INTEGERS - {"id", "gaps"})
    if odd or len(names) < len(schema.names) or not names >= _REQUIRED:
        listed = ", ".join(sorted(schema.names))
        raise FormatError(file.path, f"not the columns of a plan: {listed}", REMEDY)
    for field in schema:
        kinds = [pa.int64(), pa.string()]
        if field.name != "id":
            kinds = [pa.string() if field.name == "gaps" else pa.int64()]
        if field.type not in kinds:
            problem = f"column {field.name} is {field.type}, not {kinds[-1]}"
            raise FormatError(file.path, problem, REMEDY)
    groups = [parquet.metadata.row_group(i) for i in range(parquet.num_row_groups)]
    chunks = [group.column(k) for group in groups for k in range(group.num_columns)]
    # pyarrow aborts where there are more values than rows.
    counts = [group.num_rows for group in groups for _ in range(group.num_columns)]
    if sum(group.num_rows for group in groups) != rows or counts != [
        chunk.num_values for chunk in chunks
    ]:
        problem = "damaged Parquet data (its parts do not agree on the number of rows)"
        raise FormatError(file.path, problem, REMEDY)
    least = rows * _INTEGER_BYTES * len(names & _INTEGERS)
    plain = {"PLAIN", "RLE"}  # levels are RLE, and bring no bytes of their own
    if least > file.size or any(
        # Not asked for its compression: pyarrow aborts where that is unknown.
        chunk.total_compressed_size != chunk.total_uncompressed_size
        or not plain.issuperset(chunk.encodings)
        for chunk in chunks
    ):
        problem = f"{rows} rows in {file.size} bytes, packed as no plan is"
        raise FormatError(file.path, problem, REMEDY)


def _whole(path: PathLike, name: str, table: pa.Table) -> pa.Array:
    chunks = table.column(name)
    if chunks.null_count:
        raise FormatError(path, f"column {name} has rows without a value", REMEDY)
    if chunks.num_chunks == 1:
        return chunks.chunk(0)
    return pa.array([], type=chunks.type)  # of a table that is combined: no rows
