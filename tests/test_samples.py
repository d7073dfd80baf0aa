"""The recorded samples in traces/: they are what the manifest says, and plan well."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

import memplan
from memplan.trace.lives import lives_of
from memplan.trace.steps import find_hot
from tests.conftest import ROOT

MANIFEST = json.loads((ROOT / "traces" / "manifest.json").read_text())
SAMPLES: list[dict[str, Any]] = MANIFEST["traces"]


@pytest.fixture(params=SAMPLES, ids=lambda entry: str(entry["file"]))
def sample(request: pytest.FixtureRequest) -> dict[str, Any]:
    entry: dict[str, Any] = request.param
    return entry


def test_a_sample_is_the_file_the_manifest_describes(sample: dict[str, Any]) -> None:
    path = ROOT / "traces" / sample["file"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sample["sha256"]
    info = memplan.read_trace(path).info
    assert info.complete
    assert info.program.script == sample["script"].removeprefix("scripts/")
    assert info.program.torch == sample["torch"]


def test_best_fit_comes_within_a_percent_of_the_bound(sample: dict[str, Any]) -> None:
    trace = memplan.read_trace(ROOT / "traces" / sample["file"])
    assert find_hot(lives_of(trace)) is not None
    plan = memplan.solve(trace, "bestfit")
    assert memplan.verify(plan) == []
    assert len(plan.problem) == sample["buffers"]
    assert plan.lower_bound == sample["lower_bound"]
    assert plan.peak <= 1.01 * plan.lower_bound
    assert plan.warmup is not None


def test_every_sample_is_in_the_manifest() -> None:
    there = {path.name for path in (ROOT / "traces").glob("*.parquet")}
    assert there == {entry["file"] for entry in SAMPLES}
