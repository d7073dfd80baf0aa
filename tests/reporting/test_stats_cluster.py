"""Many traces read on a real Ray cluster of two processes, on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memplan.trace.write import write_trace
from tests.conftest import RAYS_OWN_WARNINGS, Run
from tests.reporting.asking import asking

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = RAYS_OWN_WARNINGS


def test_a_cluster_tells_what_one_machine_does(
    ray_address: str, memplan: Run, tmp_path: Path
) -> None:
    for number in range(12):
        write_trace(asking(3 + number), tmp_path / f"trace.{number:02}.parquet")
    here = memplan("stats", "trace.*.parquet", "--json")
    there = memplan("stats", "trace.*.parquet", "--json", "--ray", ray_address)
    assert there.returncode == 0, there.stderr
    expected, found = json.loads(here.stdout), json.loads(there.stdout)
    assert found["median_peak_bytes"] == expected["median_peak_bytes"]
    for one, other in zip(expected["traces"], found["traces"], strict=True):
        assert one.pop("path") == Path(other.pop("path")).name
        assert one == other
    whole = (tmp_path / "trace.02.parquet").read_bytes()
    (tmp_path / "trace.02.parquet").write_bytes(whole[:-100])
    failed = memplan("stats", "trace.*.parquet", "--ray", ray_address)
    assert failed.returncode == 3
    assert "trace.02.parquet: damaged" in failed.stderr


def test_a_cluster_that_is_not_there(memplan: Run, tmp_path: Path) -> None:
    for number in range(2):
        write_trace(asking(3), tmp_path / f"trace.{number}.parquet")
    done = memplan("stats", "trace.*.parquet", "--ray", "127.0.0.1:1")
    assert done.returncode == 5
    assert "no Ray cluster answers at" in done.stderr
