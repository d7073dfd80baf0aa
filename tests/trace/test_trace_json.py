"""JSON files that are not what write_json writes: edited, damaged, hostile."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from trace_samples import assert_same, sample

from memplan.errors import FormatError, InputError
from memplan.formats import sniff
from memplan.trace.columnar_json import read_json, write_json
from memplan.trace.trace import Columns

NAMES = ["index", *Columns.DTYPES]


def entries_of(path: Path) -> dict[str, Any]:
    """The sample as Python's json reads it, for tests to spoil."""
    write_json(sample(), path)
    entries: dict[str, Any] = json.loads(path.read_text())
    return entries


def refusal(path: Path, data: bytes | dict[str, Any]) -> str:
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    with pytest.raises(FormatError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


def test_layout_and_order_do_not_matter(tmp_path):
    path = tmp_path / "t.json"
    entries = entries_of(path)
    entries["columns"]["note"] = ["ignored"]
    entries["weather"] = 1.5
    path.write_text(" \n" + json.dumps(entries, indent=1, sort_keys=True))
    assert_same(read_json(path), sample())


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_column_is_named(tmp_path, name):
    entries = entries_of(tmp_path / "t.json")
    del entries["columns"][name]
    assert f"columns are missing: {name}" in refusal(tmp_path / "t.json", entries)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1.0, True, None, "alloc ", [], {}, 1 << 64, 10**99])
def test_a_value_of_the_wrong_kind_is_named(tmp_path, name, value):
    entries = entries_of(tmp_path / "t.json")
    entries["columns"][name][2] = value
    message = refusal(tmp_path / "t.json", entries)
    assert f"row 2, column {name}: " in message
    assert len(message) < 300


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("action", "mark")])
def test_a_number_one_past_its_type_is_named(tmp_path, name):
    limits = {"address": 64, "thread": 31, "device": 15, "stack": 31}
    entries = entries_of(tmp_path / "t.json")
    entries["columns"][name][1] = 1 << limits.get(name, 63)
    message = refusal(tmp_path / "t.json", entries)
    assert f"row 1, column {name}: {entries['columns'][name][1]} is not an int" in (
        message
    )


@pytest.mark.parametrize("name", ["address", "size", "requested_size", "time_ns"])
def test_a_negative_value_is_named(tmp_path, name):
    entries = entries_of(tmp_path / "t.json")
    entries["columns"][name][0] = -1
    assert f"row 0, column {name}: -1 " in refusal(tmp_path / "t.json", entries)


def test_an_unknown_action_or_mark_is_named(tmp_path):
    entries = entries_of(tmp_path / "t.json")
    entries["columns"]["action"][1] = "malloc"
    assert "row 1, column action: 'malloc' is not known; known are alloc, free_com" in (
        refusal(tmp_path / "t.json", entries)
    )


def test_columns_of_different_lengths_are_refused(tmp_path):
    entries = entries_of(tmp_path / "t.json")
    entries["columns"]["size"].append(1)
    assert "column size has 19 rows, index has 18" in (
        refusal(tmp_path / "t.json", entries)
    )


@pytest.mark.parametrize("value", [3, "abc", None, {"0": 1}])
def test_a_column_that_is_no_list_is_named(tmp_path, value):
    entries = entries_of(tmp_path / "t.json")
    entries["columns"]["size"] = value
    assert "column size is " in refusal(tmp_path / "t.json", entries)


@pytest.mark.parametrize("columns", [None, [], 3])
def test_columns_that_are_no_object_are_refused(tmp_path, columns):
    entries = entries_of(tmp_path / "t.json")
    entries["columns"] = columns
    assert "there is no object named columns" in refusal(tmp_path / "t.json", entries)


def test_rows_out_of_order_are_refused(tmp_path):
    entries = entries_of(tmp_path / "t.json")
    entries["columns"]["index"][4] = 2
    assert "row 4, column index: 2 follows 3" in refusal(tmp_path / "t.json", entries)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("NaN", "row 0, column size: NaN is not an integer"),
        ("Infinity", "row 0, column size: Infinity is not an integer"),
        ("1e999", "row 0, column size: 1e999 is not an integer"),
        ("9" * 5000, "row 0, column size: 9999"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a": 1, "a": 2}', "has the key 'a' twice"),
        ("01", "not whole JSON"),
        ("0x10", "not whole JSON"),
    ],
)
def test_json_no_careful_writer_writes_is_refused(tmp_path, text, problem):
    path = tmp_path / "t.json"
    entries_of(path)
    data = path.read_bytes().replace(b'"size":[', b'"size":[' + text.encode() + b",")
    data = data.replace(b'"index":[', b'"index":[-1,')
    for name in NAMES[1:]:
        if name != "size":
            first = {"action": b'"step",', "mark": b'"none",'}.get(name, b"0,")
            data = data.replace(f'"{name}":['.encode(), f'"{name}":['.encode() + first)
    assert problem in refusal(path, data)


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (2, "version 2 of the trace format is newer than 1; upgrade: pip install"),
        (10**30, "version is 1000000000000000000000000000000, and must be an integer"),
    ],
)
def test_a_newer_version_is_refused_before_its_columns(tmp_path, version, problem):
    entries = entries_of(tmp_path / "t.json")
    entries["version"] = version
    entries["columns"] = "something new"
    assert problem in refusal(tmp_path / "t.json", entries)


@pytest.mark.parametrize("filler", [b" ", b"[", b"[],"])
def test_a_gzip_bomb_is_given_up_early(tmp_path, filler):
    path = tmp_path / "t.json.gz"
    bomb = gzip.compress(b'{"a":[' + filler * (150_000_000 // len(filler)), mtime=0)
    assert len(bomb) < 500_000
    assert "it decompresses to more than" in refusal(path, bomb)


def test_what_follows_the_compressed_data_is_refused(tmp_path):
    path = tmp_path / "t.json.gz"
    write_json(sample(), path)
    data = path.read_bytes()
    assert "2 bytes after the gzip data" in refusal(path, data + b"{}")
    assert "bytes after the gzip data" in refusal(path, data + data)


def test_a_compressed_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "t.json.gz"
    assert "not whole JSON" in refusal(path, gzip.compress(b"hello"))
    assert "not whole JSON" in refusal(path, gzip.compress(b""))


def test_a_file_above_the_limit_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    write_json(sample(), path)
    monkeypatch.setattr(sniff, "MAX_JSON_BYTES", 100)
    with pytest.raises(InputError, match="above the limit of 100"):
        read_json(path)
