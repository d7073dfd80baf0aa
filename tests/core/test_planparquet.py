"""Plan files as Parquet: the same plans as in JSON, and nothing believed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plan_samples import assert_same, plans, sample

from memplan.core.plan import Plan
from memplan.core.planfile import dump_plan, read_plan, write_plan
from memplan.core.problem import Gaps, Problem
from memplan.core.verify import verify
from memplan.errors import FormatError, InputError, UsageError
from memplan.formats.sniff import Kind, sniff
from memplan.trace.read import read_trace
from tests.strategies import examples


def gapped() -> Plan:
    gaps = Gaps.of([0, 0, 1], [2, 5, 3], [3, 7, 6], [0, 8, 0], [0, 24, 0])
    problem = Problem.of(
        [0, 1, 2],
        [9, 8, 7],
        [64, 32, 8],
        alignment=[8, 4, 8],
        fixed=[-1, 64, -1],
        labels=["a", "é", "c\n"],
        gaps=gaps,
    )
    return Plan.of(problem, np.array([0, 64, 96]), "bestfit")


@examples(30, plans())
def test_what_is_written_is_read(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        write_plan(plan, path)
        assert_same(plan, read_plan(path))


@pytest.mark.parametrize("plan", [sample(), gapped()], ids=["sample", "gapped"])
def test_both_forms_say_the_same(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "x.plan.parquet"
    write_plan(plan, path)
    found = read_plan(path)
    assert verify(found) == []
    assert dump_plan(found) == dump_plan(plan)
    again = tmp_path / "again.parquet"
    write_plan(found, again)
    assert again.read_bytes() == path.read_bytes()
    with sniff(path) as file:
        assert file.kind is Kind.PLAN
    with pytest.raises(FormatError, match="a plan, not a trace; name the trace"):
        read_trace(path)
    with pytest.raises(UsageError, match="--force"):
        write_plan(plan, path)


def test_no_buffers(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_plan(
        Plan.of(Problem.of([], [], []), np.empty(0, dtype=np.int64), "bestfit"), path
    )
    assert len(read_plan(path).problem) == 0


def written(path: Path) -> tuple[pa.Table, bytes]:
    write_plan(gapped(), path, force=True)
    metadata = pq.read_metadata(path).metadata[b"memplan"]
    return pq.read_table(path), metadata


def rewritten(path: Path, table: pa.Table, metadata: bytes, **options: Any) -> None:
    options = {"compression": "none", "use_dictionary": False} | options
    fields = [pa.field(f.name, f.type, nullable=False) for f in table.schema]
    table = table.cast(pa.schema(fields)) if not options.pop("nulls", 0) else table
    with pq.ParquetWriter(path, table.schema, store_schema=False, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({b"memplan": metadata})


def with_column(table: pa.Table, name: str, values: object) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.array(values))


Edit = Callable[[pa.Table, bytes], tuple[pa.Table, bytes]]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t, m: (with_column(t, "offset", [0, 64, 88]), m), "checksum does not"),
        (lambda t, m: (with_column(t, "id", ["a", "b", "c"]), m), "checksum does not"),
        (lambda t, m: (t.slice(0, 2), m), "checksum does not match"),
        (lambda t, m: (t, m.replace(b"bestfit", b"exact")), "checksum does not match"),
        (lambda t, m: (t, m.replace(b'"checksum"', b'"check"')), "line of its own"),
        (lambda t, m: (t.drop_columns(["size"]), m), "not the columns of a plan: al"),
        (lambda t, m: (t.append_column("more", t["size"]), m), "not the columns of a"),
        (
            lambda t, m: (with_column(t, "size", [1.0, 2.0, 3.0]), m),
            "column size is double, not int64",
        ),
        (
            lambda t, m: (with_column(t, "gaps", [[1], [2], [3]]), m),
            "column gaps is list<element: int64>, not string",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, edit: Edit, message: str) -> None:
    path = tmp_path / "x.parquet"
    rewritten(path, *edit(*written(path)))
    with pytest.raises(FormatError, match=message):
        read_plan(path)


@pytest.mark.parametrize(
    "options", [{"compression": "zstd"}, {"use_dictionary": ["size"]}]
)
def test_what_is_packed_could_be_a_bomb(
    tmp_path: Path, options: dict[str, object]
) -> None:
    path = tmp_path / "x.parquet"
    rewritten(path, *written(path), **options)
    with pytest.raises(FormatError, match=r"3 rows in .* bytes, packed as no plan is"):
        read_plan(path)


def test_rows_without_a_value(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table, metadata = written(path)
    table = with_column(table, "size", [1, None, 3])
    rewritten(path, table, metadata, nulls=True)
    with pytest.raises(FormatError, match="column size has rows without a value"):
        read_plan(path)


def test_every_truncation_and_many_flipped_bytes_are_refused(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.parquet", tmp_path / "x.parquet"
    write_plan(gapped(), whole)
    data, plan = whole.read_bytes(), dump_plan(gapped())
    for length in range(1, len(data), 17):
        path.write_bytes(data[:length])
        with pytest.raises(InputError):
            read_plan(path)
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            found = read_plan(path)
        except InputError:
            continue
        assert dump_plan(found) == plan  # what the byte said does not matter
