"""Many traces read on a real Ray cluster of two processes, on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from asking import asking

from memplan.trace.write import write_trace

ray: Any = pytest.importorskip("ray", reason="Ray is not installed")

# What Ray itself leaves open and calls outdated.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two processes that lasts as long as this module."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 100 << 20}
    node |= {"include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    yield cluster.address
    cluster.shutdown()


def test_a_cluster_tells_what_one_machine_does(
    address: str, memplan: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    for number in range(12):
        write_trace(asking(3 + number), tmp_path / f"trace.{number:02}.parquet")
    here = memplan("stats", "trace.*.parquet", "--json")
    there = memplan("stats", "trace.*.parquet", "--json", "--ray", address)
    assert there.returncode == 0, there.stderr
    expected, found = json.loads(here.stdout), json.loads(there.stdout)
    assert found["median_peak_bytes"] == expected["median_peak_bytes"]
    for one, other in zip(expected["traces"], found["traces"], strict=True):
        assert one.pop("path") == Path(other.pop("path")).name
        assert one == other
    whole = (tmp_path / "trace.02.parquet").read_bytes()
    (tmp_path / "trace.02.parquet").write_bytes(whole[:-100])
    failed = memplan("stats", "trace.*.parquet", "--ray", address)
    assert failed.returncode == 3
    assert "trace.02.parquet: damaged" in failed.stderr


def test_a_cluster_that_is_not_there(
    memplan: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    for number in range(2):
        write_trace(asking(3), tmp_path / f"trace.{number}.parquet")
    done = memplan("stats", "trace.*.parquet", "--ray", "127.0.0.1:1")
    assert done.returncode == 5
    assert "no Ray cluster answers at" in done.stderr
