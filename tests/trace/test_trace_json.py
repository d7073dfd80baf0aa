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
@pytest.mark.parametrize("value", [1.0, True, None, "alloc ", {}, 1 << 64])
def test_a_value_of_the_wrong_kind_is_named(tmp_path, name, value):
    entries = entries_of(tmp_path / "t.json")
    entries["columns"][name][2] = value
    message = refusal(tmp_path / "t.json", entries)
    assert f"row 2, column {name}: " in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda columns: columns.pop("mark"), "columns are missing: mark"),
        (lambda columns: columns["size"].append(1), "size has 19 rows, index has 18"),
        (lambda columns: columns.update(size={"0": 1}), "column size is an object"),
        (lambda columns: columns["index"].__setitem__(4, 2), "index: 2 follows 3"),
        (lambda columns: columns["stack"].__setitem__(0, 1 << 31), "is not an integer"),
        (lambda columns: columns["size"].__setitem__(0, -1), "row 0, column size: -1"),
    ],
)
def test_columns_that_are_no_traces_are_refused(tmp_path, change, problem):
    entries = entries_of(tmp_path / "t.json")
    change(entries["columns"])
    assert problem in refusal(tmp_path / "t.json", entries)
    entries["columns"] = 3
    assert "no object named columns" in refusal(tmp_path / "t.json", entries)


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


def test_a_gzip_bomb_is_given_up_early(tmp_path):
    path = tmp_path / "t.json.gz"
    bomb = gzip.compress(b'{"a":[' + b" " * 130_000_000, mtime=0)
    assert len(bomb) < 500_000
    assert "it decompresses to more than" in refusal(path, bomb)


def test_what_follows_the_compressed_data_is_refused(tmp_path):
    path = tmp_path / "t.json.gz"
    write_json(sample(), path)
    data = path.read_bytes()
    assert "damaged gzip data (Not a gzipped file" in refusal(path, data + b"{}")
    assert "not whole JSON: Extra data" in refusal(path, data + data)
    assert "damaged gzip data" in refusal(path, data[:20] + b"\xff" * 20 + data[40:])


def test_a_file_above_the_limit_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    write_json(sample(), path)
    monkeypatch.setattr(sniff, "MAX_JSON_BYTES", 100)
    with pytest.raises(InputError, match="above the limit of 100"):
        read_json(path)
