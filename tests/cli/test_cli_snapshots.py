"""memplan stats, check, diff and report of snapshots, as a user sees them."""

from __future__ import annotations

import json
import pickle
import shlex
from pathlib import Path

import pytest

import memplan as package
from tests.conftest import Run
from tests.reporting.asking import asking
from tests.snapshot_samples import FRAMES, Device, segment, snapshot

MIB = 1 << 20
BASE = 0x7F_0000_0000
NATIVE = [
    {"filename": "??", "line": 0, "name": "torch::unwind::unwind()"},
    {"filename": "??", "line": 0, "name": "at::_ops::empty_memory_format::call(int)"},
    {"filename": "", "line": 0, "name": "torch::autograd::THPVariable_zeros(_object*)"},
    *FRAMES,
]
BACKWARD = [
    {"filename": "??", "line": 0, "name": "at::_ops::mm::call(at::Tensor const&)"},
    {"filename": "x.cpp", "line": 1, "name": "a::generated::MmBackward0::apply(int)"},
]


def fragmented() -> Device:
    """Two blocks of one segment with a hole between, and an empty segment; then a
    request fails."""
    device = Device()
    device.other("segment_alloc", addr=BASE, size=20 * MIB)
    for i in range(3):
        device.allocate(BASE + 4 * i * MIB, 4 * MIB, frames=NATIVE)
    device.other("segment_alloc", addr=BASE + 64 * MIB, size=2 * MIB)
    device.free(BASE + 4 * MIB)
    device.allocate(BASE + 12 * MIB, MIB, frames=BACKWARD)
    device.other("oom", size=6 * MIB, device_free=MIB, frames=FRAMES)
    return device


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    """A folder with a snapshot of one GPU, one of two, and a CPU's trace."""
    other = Device()
    other.allocate(BASE, 3 * MIB)
    segments = (segment(BASE, 20 * MIB), segment(BASE + 64 * MIB, 2 * MIB))
    one = snapshot(fragmented(), segments=segments)
    two = snapshot(fragmented(), other, segments=segments)
    (tmp_path / "one.pickle").write_bytes(pickle.dumps(one, protocol=4))
    (tmp_path / "two.pickle").write_bytes(pickle.dumps(two, protocol=4))
    package.write_trace(asking(steps=3), tmp_path / "cpu.parquet")
    return tmp_path


def test_a_plan_knows_what_the_recorded_run_took_of_its_gpu(
    memplan: Run, snapshots: Path
) -> None:
    done = memplan("solve", "one.pickle", "--step", "all", "-o", "p.json")
    assert done.returncode == 0, done.stderr
    found = package.read_plan(snapshots / "p.json").provenance.recorded_device
    assert (found.reserved_bytes, found.allocated_bytes) == (22 * MIB, 12 * MIB)
    assert (found.mallocs, found.frees) == (2, 0)


def test_stats_tells_of_fragmentation(memplan: Run, snapshots: Path) -> None:
    done = memplan("stats", "one.pickle")
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "reserved       22.0 MiB at most" in said
    assert "allocated      12.0 MiB of 20.0 MiB reserved" in said
    assert "fragmented     8.0 MiB lost between blocks, largest hole 8.0 MiB" in said
    assert "1.0 MiB free on the device" in said
    assert "22.0 MiB reserved then" in said
    assert "11.0 MiB lost between blocks, largest hole 7.0 MiB" in said
    assert "2.0 MiB in segments without a block" in said
    assert "model.py:12 forward" in said and "zeros" in said
    found = json.loads(memplan("stats", "one.pickle", "--json").stdout)
    assert found["reserved"]["peak_bytes"] == 22 * MIB
    assert found["oom"]["reserved"]["split_bytes"] == 11 * MIB
    assert found["oom"]["device_free_bytes"] == MIB


def test_operators_of_native_frames_are_pytorchs(memplan: Run, snapshots: Path) -> None:
    found = json.loads(
        memplan("stats", "one.pickle", "--at", "1s", "--json").stdout or "{}"
    )
    assert not found  # it ends before
    done = memplan("stats", "one.pickle", "--at", "0", "--by", "op")
    assert "zeros" in done.stdout
    trace = package.read_trace(snapshots / "one.pickle")
    sites = package.buffers_of(trace).sites
    assert ("", "MmBackward0") in [(site.file, site.operator) for site in sites]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("stats two.pickle", 3, "devices 0, 1; choose one with --device N"),
        ("stats two.pickle --device 1", 0, "3.0 MiB at the peak"),
        ("stats cpu.parquet --device 1", 2, "is of device 0"),
        ("diff two.pickle two.pickle --device 1", 0, "no change"),
        ("check two.pickle --device 1 --max 3MiB", 0, "passed"),
        ("check two.pickle --device 0 --max 1GiB", 1, "failed while"),
        ("report two.pickle --device 1 -o r.html", 0, "wrote r.html"),
        ("report two.pickle -o r.html", 3, "choose one with --device"),
        (
            "check cpu.parquet --max 1GiB --of reserved",
            2,
            "nothing is reserved on the CPU",
        ),
        (
            "check two.pickle --device=1 --max=1GiB --of=reserved",
            2,
            "tells of no segments",
        ),
    ],
)
def test_devices_and_what_is_reserved(
    arguments: str, code: int, said: str, memplan: Run, snapshots: Path
) -> None:
    done = memplan(*arguments.split())
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr


def test_what_stats_says_comes_next_runs(memplan: Run, tmp_path: Path) -> None:
    """Of a snapshot of two GPUs it names the one that was looked at."""
    other = Device()
    other.other("segment_alloc", addr=BASE, size=40 * MIB)
    for _ in range(8):
        other.allocate(BASE, 3 * MIB)
        other.free(BASE)
    value = snapshot(fragmented(), other)
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(value, protocol=4))
    last = memplan("stats", "s.pickle", "--device", "1").stdout.splitlines()[-1]
    command, _, saved = last.partition(" may save up to ")
    assert saved == "37.0 MiB of 40.0 MiB reserved"
    words = shlex.split(command.removeprefix("  next: memplan "))
    assert words == ["solve", "s.pickle", "--device", "1"]
    done = memplan(*words)
    assert done.returncode == 0, done.stderr


def test_check_holds_what_was_reserved(memplan: Run, tmp_path: Path) -> None:
    device = fragmented()
    device.entries = [each for each in device.entries if each["action"] != "oom"]
    value = snapshot(device, segments=(segment(BASE, 22 * MIB),))
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(value, protocol=4))
    done = memplan("check", "s.pickle", "--max", "22MiB", "--of", "reserved")
    assert "check passed: reserved 22.0 MiB" in done.stdout
    done = memplan("check", "s.pickle", "--max", "21MiB", "--of", "reserved")
    assert done.returncode == 1
    assert "reserved 22.0 MiB is 1.0 MiB, 4.8 %, above 21.0 MiB" in done.stderr
    base = ("--baseline", "s.pickle", "--of", "reserved")
    assert memplan("check", "s.pickle", *base).returncode == 0
    plan = package.solve(([0, 1], [2, 3], [64, 64]))
    package.write_plan(plan, tmp_path / "p.plan.json")
    done = memplan("check", "p.plan.json", "--max", "1", "--of", "reserved")
    assert (done.returncode, "needs a trace" in done.stderr) == (2, True)
