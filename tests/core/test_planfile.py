"""Plan files: what is written is read back, byte for byte the same."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plan_samples import (
    Fields,
    assert_same,
    edited,
    plans,
    put,
    recorded,
    sample,
    signed,
    with_gaps,
    with_kinds,
)

from memplan.core.plan import (
    DeviceRun,
    Plan,
    Provenance,
    Requests,
    RunStats,
    Source,
    Warmup,
)
from memplan.core.planfile import dump_plan, load_plan, read_plan, write_plan
from memplan.core.problem import Problem
from memplan.core.verify import Failure, verify
from memplan.errors import InputError, UsageError
from memplan.version import __version__
from tests.plans import changed
from tests.strategies import examples


@examples(80, plans())
def test_a_plan_is_read_back_as_it_was(plan: Plan) -> None:
    data = dump_plan(plan)
    again = load_plan(data)
    assert_same(plan, again)
    assert again.stated is not None
    assert again.stated.peak == plan.peak
    assert again.stated.fingerprint == plan.problem.fingerprint()
    if plan.hot.requests is None and len(plan.problem):
        assert again.problem.labels == plan.problem.labels
    assert dump_plan(again) == data
    assert (b'"gaps"' in data) == (plan.problem.gaps is not None)
    assert (b'\n"elastic": true' in data) == plan.elastic
    assert (b'\n"lifespan_bytes": ' in data) == (plan.lifespan_bytes > 0)
    assert (b'\n"kinds": [' in data) == bool(plan.kinds)
    assert [v.failure for v in verify(again)] == [v.failure for v in verify(plan)]


def test_the_file_is_this() -> None:
    problem = Problem.of([0, 5], [7, 2], [10, 20], alignment=[1, 2], length=10)
    plan = changed(
        Plan.of(problem, np.array([20, 0]), Provenance("exact", 3)),
        requests=recorded(problem, [7]),
        source=Source("net.parquet", "00ff", "hot"),
        recorded=RunStats(4096, 1.5, 2e-6),
        recorded_device=DeviceRun(reserved_bytes=7, frees=2),
    )
    assert load_plan(dump_plan(plan)).provenance == plan.provenance
    assert dump_plan(plan).decode() == (
        f"""\
{{
"alignment": null,
"bounds": {{"lower_bound": 30, "proved_optimal": true}},
"buffers": [
{{"alignment": 1, "id": 0, "lower": 0, "offset": 20, "size": 10, "upper": 7}},
{{"alignment": 2, "id": 2, "lower": 5, "offset": 0, "size": 20, "upper": 2}}
],
"checksum": "{re.findall('"checksum": "(.*)"', dump_plan(plan).decode())[0]}",
"device": {{"type": "cpu"}},
"length": 10,
"method": "exact",
"peak": 30,
"producer": "memplan {__version__}",
"program": {{"marks": "none", "script": "", "sha256": "", "threads": 0, "torch": ""}},
"recorded": {{"frees": 2, "milli_faults_per_step": 1500, "peak_rss_bytes": 4096, """
        f""""reserved_bytes": 7, "step_nanoseconds": 2000}},
"schema": "memplan.plan",
"seed": 3,
"starts": [0],
"trace": {{"buffers": 2, "fingerprint": "{problem.fingerprint()}", """
        """"name": "net.parquet", "sha256": "00ff", "step": "hot"},
"unplanned": [
{"id": 1, "size": 7}
],
"version": 1,
"warmup": null
}
"""
    )


def test_writing_and_reading_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(sample(), path)
    assert_same(sample(), read_plan(path))
    with pytest.raises(UsageError, match="--force"):
        write_plan(sample(), path)
    write_plan(sample(), path, force=True)
    assert path.read_bytes() == dump_plan(sample())
    with pytest.raises(InputError, match="no such file"):
        read_plan(tmp_path / "absent.json")


GAPPED, PLAN = with_gaps(), with_kinds()


def test_a_row_is_this() -> None:
    rows = dump_plan(GAPPED).decode().splitlines()
    assert [row for row in rows if '"lower"' in row] == [
        '{"gaps": [[2, 4], [5, 7, 1, 6]], "id": "a", "lower": 0, "offset": 0, '
        '"size": 8, "upper": 9},',
        '{"gaps": [], "id": "b", "lower": 2, "offset": 0, "size": 8, "upper": 4},',
        '{"gaps": [[3, 4]], "id": "c", "lower": 3, "offset": 8, "size": 5, "upper": 8}',
    ]
    assert verify(load_plan(dump_plan(GAPPED))) == []


def test_the_order_of_gaps_in_a_row_does_not_matter() -> None:
    swapped = put("buffers.0.gaps", [[5, 7, 1, 6], [2, 4]])
    assert dump_plan(load_plan(edited(GAPPED, swapped))) == dump_plan(GAPPED)


def test_a_file_whose_rows_all_have_no_gaps_has_none() -> None:
    value = json.loads(dump_plan(GAPPED))
    for row in value["buffers"]:
        row["gaps"] = []
    again = load_plan(signed(value))
    assert again.problem.gaps is None
    assert {v.failure for v in verify(again)} >= {Failure.FINGERPRINT, Failure.OVERLAP}


def test_the_arena_holds_the_kinds() -> None:
    assert verify(PLAN) == []
    assert PLAN.peak < PLAN.arena_bytes == 128 + 5056
    assert load_plan(dump_plan(PLAN)).arena_bytes == PLAN.arena_bytes


def test_fields_that_say_nothing_may_be_there() -> None:
    def change(value: Fields) -> None:
        value["kinds"], value["elastic"] = [], False

    again = load_plan(edited(sample(), change))
    assert_same(again, sample())
    assert dump_plan(again) == dump_plan(sample())


WIDE = Problem.of([0, 1], [2, 3], [8, 8])
BARE = Plan.of(WIDE, np.array([0, 8]), "x")


def asking(sizes: list[int], buffers: list[int]) -> Plan:
    requests = Requests((0,), np.array(sizes), np.array(buffers))
    return changed(BARE, requests=requests)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (changed(sample(), offsets=np.array([0])), "1 offsets for 4 buffers"),
        (changed(sample(), offsets=np.array([0, 128, 256, -64])), "offset -64"),
        (changed(sample(), seed=-1), "seed is -1"),
        (changed(sample(), method="\udc80"), "method is '.udc80'"),
        (changed(sample(), recorded=RunStats(0, float("nan"))), "is nan"),
        (changed(sample(), recorded=RunStats(0, 0.0, -1.0)), "nanoseconds is -1"),
        (
            Plan.of(replace(WIDE, labels=("a", "a")), np.array([0, 8]), "x"),
            "two buffers have the label 'a'",
        ),
        (asking([8, 8], [0, 0]), "do not serve one request each"),
        (asking([8, 8], [1, 0]), "request 0 is out of the order of the clock"),
        (asking([8, 9], [0, 1]), "request 1 asks for 9 bytes, its buffer holds 8"),
        (asking([8, 8, -1], [0, 1, -1]), "request 2 asks for -1 bytes"),
        (asking([8, 8], [0, 1, -1]), "2 request sizes for 3 requests"),
        (
            changed(
                sample(),
                warmup=Warmup(
                    sample().problem,
                    sample().offsets,
                    recorded(sample().problem, []),
                    99,
                ),
            ),
            "warm-up: its clock must be linear",
        ),
        (
            changed(sample(), elastic=True, lifespan_bytes=64),
            "lifespan_bytes is of CUDA memory",
        ),
        (
            changed(BARE, device="cuda", lifespan_bytes=64),
            "lifespan_bytes must list its requests",
        ),
        (changed(BARE, elastic=True), "elastic plan must list its requests"),
        (
            changed(GAPPED, requests=recorded(GAPPED.problem, [])),
            "buffer a has gaps, which a recorded pro",
        ),
    ],
)
def test_a_plan_that_could_not_be_read_back_is_not_written(
    plan: Plan, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        write_plan(plan, tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_a_file_beyond_the_cap_is_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    write_plan(sample(), path)
    monkeypatch.setattr("memplan.core.planfile.MAX_PLAN_BYTES", 1000)
    with pytest.raises(InputError, match="the limit of 1000"):
        dump_plan(sample())
    monkeypatch.setattr("memplan.core.planfile.MAX_PLAN_BYTES", 1000)
    with pytest.raises(InputError, match="the limit of 1000"):
        read_plan(path)
