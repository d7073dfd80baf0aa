"""Parquet files that are not what write_parquet writes: foreign, damaged, hostile."""

import base64
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_samples import assert_same, sample

from memplan.errors import EnvironmentUnfitError, FormatError
from memplan.trace import parquet
from memplan.trace.parquet import read_parquet, write_parquet
from memplan.trace.trace import Columns

NAMES = ["index", *Columns.DTYPES]


def table_of(path: Path) -> pa.Table:
    """The sample as pyarrow reads it, for tests to spoil."""
    write_parquet(sample(), path)
    return pq.read_table(path)


def put(table: pa.Table, name: str, values: Any, nullable: bool = False) -> pa.Table:
    column = pa.field(name, values.type, nullable=nullable)
    return table.set_column(table.schema.get_field_index(name), column, values)


def refusal(path: Path, table: pa.Table, **options: Any) -> str:
    pq.write_table(table, path, **options)
    with pytest.raises(FormatError) as caught:
        read_parquet(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


def with_metadata(path: Path, change: Callable[[dict[str, Any]], Any]) -> str:
    table = table_of(path)
    entries = json.loads(table.schema.metadata[b"memplan"])
    change(entries)
    text = json.dumps(entries)
    return refusal(path, table.replace_schema_metadata({b"memplan": text}))


def test_what_pyarrow_cannot_write_is_an_error_of_ours(tmp_path, monkeypatch):
    def fail(self, table):
        raise pa.ArrowInvalid("no")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail)
    with pytest.raises(EnvironmentUnfitError, match=r"t\.parquet: cannot be written"):
        write_parquet(sample(), tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def test_pandas_can_filter_a_trace_and_save_it(tmp_path):
    path = tmp_path / "t.parquet"
    table = table_of(path)
    frame = table.to_pandas()
    frame["note"] = "an unknown column"
    part = pa.Table.from_pandas(frame[frame["size"] > 0], preserve_index=False)
    metadata = {**part.schema.metadata, **table.schema.metadata}
    part = part.select(sorted(part.column_names))  # names count, not their order
    pq.write_table(part.replace_schema_metadata(metadata), path)
    kept, events = read_parquet(path), sample().events
    assert_same(kept, replace(sample(), events=events.take(events.size > 0)))


def test_wider_and_plainer_text_will_do(tmp_path):
    path = tmp_path / "t.parquet"
    table = table_of(path)
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.large_string())):
        for name in ("action", "mark"):
            table = put(table, name, table[name].cast(pa.string()).cast(kind))
        for options in ({}, {"use_dictionary": False}):
            pq.write_table(table, path, **options)
            assert_same(read_parquet(path), sample())


@pytest.mark.parametrize("name", NAMES)
def test_a_column_that_is_missing_of_another_type_or_has_holes_is_named(tmp_path, name):
    path = tmp_path / "t.parquet"
    table = table_of(path)
    assert f"columns are missing: {name}" in refusal(path, table.drop_columns([name]))
    floats = put(table, name, pa.array(np.zeros(len(table))))
    assert f"column {name} is double, not " in refusal(path, floats)
    values = table[name].to_pylist()
    values[3] = None
    holed = put(table, name, pa.array(values, table[name].type), nullable=True)
    assert f"row 3, column {name}: no value" in refusal(path, holed)


def test_a_column_twice_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    table = table_of(path)
    assert "the column size appears twice" in refusal(
        path, table.append_column("size", table["size"])
    )


@pytest.mark.parametrize(
    ("name", "row", "value", "problem"),
    [
        ("action", 2, "malloc", "row 2, column action: 'malloc' is not known; known"),
        ("mark", 2, "", "row 2, column mark: '' is not known; known are none, forward"),
        ("size", 0, -1, "row 0, column size: -1 bytes, a negative size"),
        ("stack", 0, 3, "row 0, column stack: no stack 3 in the table of 3 stacks"),
        ("index", 0, -1, "row 0, column index: -1 is negative"),
        ("index", 5, 4, "row 5, column index: 4 follows 4; sort the rows by index"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(tmp_path, name, row, value, problem):
    path = tmp_path / "t.parquet"
    table = table_of(path)
    values = table[name].to_pylist()
    values[row] = value
    kind = pa.string() if isinstance(value, str) else table[name].type
    assert problem in refusal(path, put(table, name, pa.array(values, kind)))


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("version", 2, "version 2 of the trace format is newer than 1; upgrade: pip"),
        ("version", True, "version is true, and must be"),
        ("schema", "memplan.plan", "this is a plan, not a trace; name a trace"),
        ("schema", "x", "the schema is 'x', not 'memplan.trace'"),
        ("device", 3, "device is 3, and must be text"),
        ("alignment", 0, "alignment is 0, less than 1"),
        ("alignment", 1 << 63, "alignment is 9223372036854775808, and must"),
        ("run", {"step_seconds": -1.0}, "-1.0, and must be a finite number"),
        ("stacks_table", 3, "stacks_table is 3, and must be an object"),
        ("stacks_table", {"files": {}}, "stacks_table.files is an object, and must"),
        ("stacks_table", {"stacks": [[0]]}, "stacks_table.frames has no 0"),
        ("stacks_table", {"stacks": [0]}, "stacks_table.stacks[0] is 0, and must be"),
        ("stacks_table", {"frames": [[0, 1, 0]]}, "stacks_table.files has no 0"),
        ("stacks_table", {"frames": [[0, 1]]}, "is not three indexes"),
        ("stacks_table", {"frames": [[0, -1, 0]]}, "is not three indexes"),
        (
            "stacks_table",
            {"frames": [[0, 1, 0]], "files": [1], "names": ["f"]},
            "stacks_table.files[0] is 1, and must be text",
        ),
    ],
)
def test_an_entry_that_is_not_allowed_is_named(tmp_path, key, value, problem):
    path = tmp_path / "t.parquet"
    message = with_metadata(path, lambda entries: entries.update({key: value}))
    assert problem in message


def test_entries_of_later_writers_are_ignored_and_older_may_lack_some(tmp_path):
    path = tmp_path / "t.parquet"
    table = table_of(path)
    entries = json.loads(table.schema.metadata[b"memplan"])
    entries["weather"] = {"wind": [1.5, None]}
    entries["run"]["page_faults_per_step"] = 3
    del entries["started"], entries["run"]["step_seconds"], entries["argv"]
    metadata = {b"memplan": json.dumps(entries)}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    info = read_parquet(path).info
    assert (info.started, info.argv, info.run.step_seconds) == ("", (), 0.0)
    assert repr(info.run.page_faults_per_step) == "3.0"
    assert info.run.peak_rss_bytes == sample().info.run.peak_rss_bytes


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (b"", "not whole JSON"),
        (b"[]", "the metadata is a list, not a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_metadata_that_is_no_object_is_refused(tmp_path, metadata, problem):
    path = tmp_path / "t.parquet"
    table = table_of(path).replace_schema_metadata({b"memplan": metadata})
    assert problem in refusal(path, table)


def test_a_parquet_file_of_somebody_elses_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    assert "without a memplan entry" in refusal(path, pa.table({"a": [1]}))


def test_more_metadata_than_the_limit_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    write_parquet(sample(), path)
    monkeypatch.setattr(parquet, "MAX_METADATA_BYTES", 100)
    with pytest.raises(FormatError, match=r"\d+ bytes of metadata, limit 100"):
        read_parquet(path)


def test_a_small_file_of_very_many_rows_is_refused_unread(tmp_path):
    rows = 2_500_000
    path = tmp_path / "t.parquet"
    table = table_of(path)
    chunk = np.zeros(rows, dtype=np.int8)
    columns = {}
    for name in NAMES:
        kind = table.schema.field(name).type
        if pa.types.is_dictionary(kind):
            columns[name] = pa.DictionaryArray.from_arrays(chunk, pa.array(["step"]))
        else:
            columns[name] = pa.array(chunk).cast(kind)
    bomb = pa.table(columns).replace_schema_metadata(table.schema.metadata)
    message = refusal(path, bomb, compression="zstd")
    assert path.stat().st_size < rows / 16
    assert f"it claims {rows} rows in" in message


def test_a_column_that_decodes_to_very_much_is_refused_unread(tmp_path):
    path = tmp_path / "t.parquet"
    table = table_of(path)
    word = pa.array(["x" * 3_000_000] * len(table))
    message = refusal(path, put(table, "action", word), compression="zstd")
    assert "bytes for 18 rows" in message


def test_a_long_name_repeated_very_often_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "t.parquet"
    table = table_of(path)
    rows = 100_000
    word = pa.DictionaryArray.from_arrays(
        np.zeros(rows, dtype=np.int8),
        pa.array(["x" * 900_000]),  # 90 GB as strings
    )
    columns = {
        name: pa.array(np.arange(rows)).cast(table.schema.field(name).type)
        for name in NAMES
        if name not in ("action", "mark", "device")
    }
    columns["device"] = pa.array(np.zeros(rows, dtype=np.int16))
    bomb = pa.table({**columns, "action": word, "mark": word})
    message = refusal(path, bomb.replace_schema_metadata(table.schema.metadata))
    assert "row 0, column action: 'xxxx" in message
    assert len(message) < 400


def test_an_extension_type_runs_no_code(tmp_path):
    canary = tmp_path / "canary"

    class Attack:
        def __reduce__(self):
            return (Path.touch, (canary,))

    path = tmp_path / "t.parquet"
    table = table_of(path)
    field = table.schema.field("size").with_metadata(
        {
            b"ARROW:extension:name": b"arrow.py_extension_type",
            b"ARROW:extension:metadata": pickle.dumps(Attack()),
        }
    )
    index = table.schema.get_field_index("size")
    schema = table.schema.set(index, field)
    pq.write_table(pa.table(table.columns, schema=schema), path)
    stored = base64.b64decode(pq.read_metadata(path).metadata[b"ARROW:schema"])
    assert b"py_extension_type" in stored
    assert_same(read_parquet(path), sample())
    assert not canary.exists()


def grouped(path: Path, rows: int, **columns: Any) -> None:
    """The sample in row groups of so many rows, with these columns put in."""
    table = table_of(path)
    for name, values in columns.items():
        kind = table.schema.field(name).type
        table = put(table, name, pa.array(values).cast(kind))
    pq.write_table(table, path, row_group_size=rows)


def test_groups_of_rows_are_read_as_one(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    monkeypatch.setattr(parquet, "_READ_ROWS", 4)
    grouped(path, 7)
    assert_same(read_parquet(path), sample())
    monkeypatch.setattr(parquet, "GROUP_ROWS", 5)
    write_parquet(sample(), path)
    assert pq.read_metadata(path).num_row_groups == 4
    assert_same(read_parquet(path), sample())


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"index": [*range(8), 7, *range(9, 18)]}, "row 8, column index: 7 follows 7"),
        (
            {"time_ns": [*range(8), 3, *range(9, 18)]},
            "row 8, column time_ns: 3 is earlier than the event before it",
        ),
        ({"size": [1] * 8 + [-1] + [1] * 9}, "row 8, column size: -1 bytes"),
        ({"action": ["step"] * 8 + ["x"] * 10}, "row 8, column action: 'x' is not"),
    ],
)
def test_what_is_wrong_is_found_in_any_group(tmp_path, monkeypatch, columns, problem):
    path = tmp_path / "t.parquet"
    monkeypatch.setattr(parquet, "_READ_ROWS", 4)
    grouped(path, 8, **columns)
    with pytest.raises(FormatError) as caught:
        read_parquet(path)
    assert problem in str(caught.value)


def test_only_the_columns_asked_for_are_kept_and_all_are_checked(tmp_path):
    path = tmp_path / "t.parquet"
    write_parquet(sample(), path)
    found, events = read_parquet(path, ["action", "address"]).events, sample().events
    assert found.action.tolist() == events.action.tolist()
    assert found.address.tolist() == events.address.tolist()
    assert set(found.size.tolist()) == {0}
    assert set(found.stack.tolist()) == {-1}
    table = table_of(path)
    bad = put(table, "size", pa.array([-1] * len(table)))
    pq.write_table(bad, path)
    with pytest.raises(FormatError, match="column size: -1 bytes"):
        read_parquet(path, ["action"])


def test_a_column_of_very_many_names_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    rows = 1000
    table = table_of(path)
    columns = {}
    for name in NAMES:
        kind = table.schema.field(name).type
        values = np.arange(rows)
        columns[name] = pa.array(map(str, values)) if name == "mark" else values
        if name == "action":
            columns[name] = pa.array(["step"] * rows)
        elif name != "mark":
            columns[name] = pa.array(values).cast(kind)
    bomb = pa.table(columns).replace_schema_metadata(table.schema.metadata)
    assert "column mark has 1000 names" in refusal(path, bomb)


def test_events_that_fill_the_memory_from_a_small_file_are_refused(
    tmp_path, monkeypatch
):
    path = tmp_path / "t.parquet"
    write_parquet(sample(), path)
    monkeypatch.setattr(parquet, "_BYTES_ANYWAY", 0)
    monkeypatch.setattr(parquet, "_BYTES_PER_BYTE", 0)
    with pytest.raises(FormatError, match="bytes of events in a file of"):
        read_parquet(path)


def test_events_of_a_large_honest_file_are_read(monkeypatch):
    monkeypatch.setattr(parquet, "_BYTES_ANYWAY", 0)
    for path in (Path(__file__).parents[2] / "traces").glob("*.parquet"):
        assert len(read_parquet(path).events)
