"""memplan stats: the failed request, the end, and many traces at any moment."""

from __future__ import annotations

import json
import pickle
import shlex
from pathlib import Path
from typing import get_args

import pytest

import memplan as package
from memplan.reporting.live import By
from tests.conftest import Run
from tests.reporting.asking import ASKED, asking
from tests.snapshot_samples import FRAMES, Device, segment, snapshot

MIB = 1 << 20
BASE = 0x7F_0000_0000


def failing() -> Device:
    """A peak of 90 MiB; then 60 MiB are live and a request fails, and another one."""
    device = Device()
    device.other("segment_alloc", addr=BASE, size=100 * MIB)
    for i in range(3):
        device.allocate(BASE + 30 * i * MIB, 30 * MIB, frames=FRAMES)
    device.free(BASE + 60 * MIB)
    device.other("oom", size=50 * MIB, device_free=7 * MIB, frames=FRAMES)
    device.free(BASE + 30 * MIB)
    device.other("oom", size=80 * MIB, device_free=6 * MIB, frames=FRAMES)
    return device


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a snapshot of a GPU that ran out, and traces: one with a leak, one
    with a failed request."""
    value = snapshot(failing(), segments=(segment(BASE, 100 * MIB),))
    (tmp_path / "oom.pickle").write_bytes(pickle.dumps(value, protocol=4))
    package.write_trace(asking(12), tmp_path / "grows.parquet")
    package.write_trace(asking(3, asked=ASKED), tmp_path / "failed.parquet")
    return tmp_path


def next_of(output: str) -> list[str]:
    """The words of the command that the last line names."""
    words = shlex.split(output.splitlines()[-1].removeprefix("  next: memplan "))
    return words[: words.index("shows")]


def test_at_oom_is_the_first_request_that_failed(memplan: Run, folder: Path) -> None:
    done = memplan("stats", "oom.pickle")
    assert "peak live      90.0 MiB" in done.stdout
    assert next_of(done.stdout) == ["stats", "oom.pickle", "--at", "oom"]
    done = memplan(*next_of(done.stdout))
    assert done.returncode == 0, done.stderr
    for said in (
        "live at the first failed request, after 300 µs, 60.0 MiB, by line",
        "out of memory  50.0 MiB could not be had after 300 µs, 60.0 MiB live; 1 more "
        "failed later",
        "7.0 MiB free on the device",
        "100.0 MiB reserved then",
        "allocated      60.0 MiB of 100.0 MiB reserved",
    ):
        assert said in done.stdout
    assert "--at oom" not in done.stdout
    found = json.loads(memplan("stats", "oom.pickle", "--at=oom", "--json").stdout)
    assert found["at"]["bytes"] == found["oom"]["live_bytes"] == 60 * MIB
    assert found["oom"]["requested_bytes"] == 50 * MIB and found["oom"]["count"] == 2
    done = memplan("check", "oom.pickle", "--max", "1GiB")
    assert "a request for 50.0 MiB failed while 60.0 MiB were live" in done.stderr
    done = memplan("stats", "grows.parquet", "--at", "oom")
    assert done.returncode == 2
    assert "--at oom: no request failed in this recording" in done.stderr


def test_a_leak_leads_to_the_end_and_from_there_to_the_report(
    memplan: Run, folder: Path
) -> None:
    done = memplan("stats", "grows.parquet")
    assert next_of(done.stdout) == ["stats", "grows.parquet", "--at", "end"]
    done = memplan(*next_of(done.stdout))
    assert "live at the end of step 11, after 49 ms, 7.0 KiB, by line" in done.stdout
    assert next_of(done.stdout) == ["report", "grows.parquet"]
    assert memplan(*next_of(done.stdout)).returncode == 0


def test_of_a_run_without_steps_the_end_is_the_last_event(
    memplan: Run, folder: Path
) -> None:
    done = memplan("stats", "oom.pickle", "--at", "end")
    assert "live at the end, after 450 µs, 30.0 MiB, by line" in done.stdout


MOST = {
    "line": "/code/train.py:20 main",
    "function": "main",
    "module": "unknown",
    "op": "clone",
    "category": "inputs",
    "size": "512 B",
    "step": "0",
}


@pytest.mark.parametrize("kind", get_args(By))
def test_many_traces_by_each_property(kind: By, memplan: Run, folder: Path) -> None:
    done = memplan("stats", "grows.parquet", "failed.parquet", "--by", kind)
    if kind not in MOST:  # a reason, and which of them lacks it
        assert done.returncode == 2
        assert f"grows.parquet: --by {kind}: " in done.stderr
        return
    assert done.returncode == 0, done.stderr
    title, head, *rows = done.stdout.splitlines()
    assert title == "2 traces, median peak 8.7 KiB"
    assert ("most at" if kind == "line" else f"most, by {kind}") in head
    (row,) = (row for row in rows if row.startswith("grows.parquet"))
    assert f" {MOST[kind]} " in row


@pytest.mark.parametrize(
    ("at", "said", "sizes"),
    [
        ("2", "2 traces, median live 6.5 KiB in step 2", ["6.5 KiB", "6.5 KiB"]),
        ("4ms", "2 traces, median live 1.5 KiB at 4ms", []),
        ("end", "2 traces, median live 4.7 KiB at the end", ["7.0 KiB", "2.5 KiB"]),
    ],
)
def test_many_traces_at_a_moment(
    at: str, said: str, sizes: list[str], memplan: Run, folder: Path
) -> None:
    names = ("grows.parquet", "failed.parquet")
    done = memplan("stats", *names, "--at", at)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == said
    for name, size in zip(names, sizes, strict=False):
        (row,) = (r for r in done.stdout.splitlines() if r.startswith(name))
        assert f" {size} " in row
    found = json.loads(memplan("stats", *names, "--at", at, "--json").stdout)
    assert found["median_at_bytes"] == sum(
        each["at"]["bytes"] for each in found["traces"]
    ) / len(names)


def test_a_moment_that_one_of_many_lacks_is_told_with_its_name(
    memplan: Run, folder: Path
) -> None:
    done = memplan("stats", "grows.parquet", "failed.parquet", "--at", "oom")
    assert done.returncode == 2
    assert "grows.parquet: --at oom: no request failed" in done.stderr
    done = memplan("stats", "grows.parquet", "failed.parquet", "--at", "9")
    assert "failed.parquet: --at 9: the trace has steps 0 to 3 only" in done.stderr
    done = memplan("stats", "oom.pickle", "failed.parquet", "--at", "oom")
    assert "median live 30.0 MiB at the first failed request" in done.stdout
