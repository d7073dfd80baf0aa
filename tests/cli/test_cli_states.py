"""Snapshots without a history: what holds memory when they are taken."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import memplan as package
from memplan.errors import NoPlanError, UsageError
from memplan.trace.trace import Trace
from tests.conftest import Command
from tests.reporting.pages import Page
from tests.snapshot_samples import Device, segment, snapshot

MIB = 1 << 20
BASE = 0x7F_0000_0000
FRAMES = [{"filename": "train.py", "line": 40, "name": "main"}]


def held(device: int = 0) -> tuple[dict[str, Any], ...]:
    """12 MiB in two blocks of a segment of 20 MiB, and an empty segment of 2 MiB."""
    first = segment(
        BASE,
        20 * MIB,
        (BASE, 4 * MIB, "active_allocated"),
        (BASE + 4 * MIB, 6 * MIB, "inactive"),
        (BASE + 10 * MIB, 8 * MIB, "active_pending_free"),
        (BASE + 18 * MIB, 2 * MIB, "inactive"),
    )
    first["blocks"][2] |= {"frames": FRAMES, "requested_size": 8 * MIB - 100}
    empty = segment(BASE + 64 * MIB, 2 * MIB, (BASE + 64 * MIB, 2 * MIB, "inactive"))
    return {**first, "device": device}, {**empty, "device": device}


def of_state() -> dict[str, Any]:
    """As torch leaves it with enabled="state": one entry, of the snapshot itself."""
    device = Device()
    device.other("snapshot")
    return snapshot(device, segments=held())


STATES = {
    "state": of_state(),
    "cleared": snapshot(Device(), Device(), segments=held()),
    "of memory_snapshot()": list(held()),
}


def save(value: object, path: Path) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=4))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with snapshots: one without a history, one of two GPUs, and traces."""
    save(of_state(), tmp_path / "s.pickle")
    trace = package.read_trace(tmp_path / "s.pickle")
    package.write_trace(trace, tmp_path / "s.parquet")
    package.write_trace(trace, tmp_path / "s.json")
    both = snapshot(Device(), segments=(*held(), *held(device=1)[:1]))
    save(both, tmp_path / "two.pickle")
    return tmp_path


@pytest.mark.parametrize("name", STATES)
def test_its_blocks_are_live_at_one_moment(name: str, tmp_path: Path) -> None:
    trace = package.read_trace(save(STATES[name], tmp_path / "s.pickle"))
    assert not trace.info.history
    assert trace.info.complete and not trace.info.dropped_events
    assert trace.events.time_ns.tolist() == [0] * 4
    stats = package.summarize(trace)
    assert stats.at.bytes == 12 * MIB
    assert stats.reserved is not None
    assert stats.reserved.at.split == 8 * MIB
    assert (stats.reserved.at.empty, stats.reserved.bytes) == (2 * MIB, 22 * MIB)
    assert [site.line for site in stats.at.sites()] == [40, 12]


def test_a_json_file_may_have_none_either(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(STATES["cleared"]))
    assert not package.read_trace(tmp_path / "s.json").info.history


@pytest.mark.parametrize("source", ["s.pickle", "s.parquet", "s.json"])
def test_stats_tells_what_holds_memory_and_no_times(
    source: str, command: Command, folder: Path
) -> None:
    done = command("stats", source)
    assert done.code == 0, done.err
    for said in (
        "live        12.0 MiB in 2 blocks",
        "allocated   12.0 MiB of 22.0 MiB reserved",
        "fragmented  8.0 MiB lost between blocks, largest hole 6.0 MiB",
        "2.0 MiB in segments without a block",
        "history     none",
        "live when the snapshot was taken, 12.0 MiB, by line",
        "train.py:40 main",
        f"next: memplan report {source}",
    ):
        assert said in done.out
    assert " after " not in done.out and " step" not in done.out
    found = json.loads(command("stats", source, "--json").out)
    assert found["history"] is False and found["peak_bytes"] == 12 * MIB
    times = found["peak_time"], found["at"]["seconds"], found["reserved"]["peak_time"]
    assert times == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("stats s.pickle --at 1s", 2, "--at 1s: the snapshot has no history"),
        ("stats s.pickle --at oom", 2, "the snapshot has no history"),
        ("stats s.pickle --by step", 2, "--by step: the snapshot has no history"),
        ("stats s.pickle s.parquet --by op", 0, "2 traces"),
        ("check s.pickle --max 12MiB", 0, "check passed: live 12.0 MiB"),
        ("check s.pickle --max 22MiB --of reserved", 0, "passed: reserved 22.0 MiB"),
        ("check s.pickle --max 8MiB", 1, "most at train.py:40 in main"),
        ("check s.pickle --no-leak", 2, "--no-leak needs a history"),
        ("check s.pickle --max 1GiB --of planned", 4, "a plan needs the requests"),
        ("solve s.pickle", 4, "the snapshot has no history"),
        ("solve s.pickle --step all", 4, "_record_memory_history() before them"),
        ("solve s.parquet --capacity 1GiB", 4, "the snapshot has no history"),
        ("plot s.pickle -o p.png", 3, "nothing to draw over time: the snapshot has no"),
        ("diff s.pickle s.parquet", 0, "no change"),
        ("stats two.pickle", 3, "holds the memory of devices 0, 1; choose one"),
        ("stats two.pickle --device 1", 0, "12.0 MiB of 20.0 MiB reserved"),
        ("stats two.pickle --device 2", 2, "holds device 0, 1 only"),
    ],
)
def test_what_needs_a_history_says_that_there_is_none(
    arguments: str, code: int, said: str, command: Command, folder: Path
) -> None:
    done = command(*arguments.split())
    assert said in done.out + done.err
    assert done.code == code, done.err


def test_nothing_live_and_no_frames_are_told(command: Command, tmp_path: Path) -> None:
    save(list(held()[1:]), tmp_path / "idle.pickle")
    done = command("stats", "idle.pickle")
    assert "live        0 B in 0 blocks" in done.out and "next:" not in done.out
    assert done.err == ""
    first = held()[0]
    for block in first["blocks"]:
        block["frames"] = []
    save([first], tmp_path / "bare.pickle")
    done = command("stats", "bare.pickle")
    assert '_record_memory_history(enabled="state")' in done.err
    assert command("stats", "bare.pickle", "--by", "size").err == ""


def test_the_page_shows_no_times(command: Command, folder: Path) -> None:
    assert command("report", "s.pickle", "-o", "s.html").code == 0
    page = Page((folder / "s.html").read_text())
    assert page.figures() == {
        "live": ("12.0 MiB", ""),
        "reserved": ("22.0 MiB", "by torch"),
    }
    assert "a snapshot without a history" in page.words
    assert "Memory over the run" not in page.words
    assert page.scene["history"] is False
    columns = page.columns()
    assert columns["lower"].tolist() == [0, 0]
    assert len(columns["moment"]) == 1 and columns["seconds"].tolist() == [0]
    assert [entry["name"] for entry in page.scene["categories"]] == ["live"]


def test_what_is_converted_back_has_none_either(command: Command, folder: Path) -> None:
    assert command("convert", "s.parquet", "out.pickle").code == 0
    trace = package.read_trace(folder / "out.pickle")
    assert not trace.info.history
    assert package.summarize(trace).at.bytes == 12 * MIB


def test_a_device_without_a_history_may_stand_beside_one_with(tmp_path: Path) -> None:
    device = Device()
    device.allocate(BASE, MIB)
    value = snapshot(device, segments=held(device=1))
    path = save(value, tmp_path / "s.pickle")
    assert package.read_trace(path).info.history
    assert not package.read_trace(path, device=1).info.history


def test_python_is_told_as_well(tmp_path: Path) -> None:
    trace: Trace = package.read_trace(save(of_state(), tmp_path / "s.pickle"))
    with pytest.raises(NoPlanError, match="no history"):
        package.solve(trace)
    with pytest.raises(UsageError, match="no history"):
        package.summarize(trace, "end")
