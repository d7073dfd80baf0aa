"""What is written for other programs says what the trace says."""

from __future__ import annotations

import dataclasses
import json
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memplan
from memplan.errors import InputError
from memplan.trace.exporters.memory_viz import to_snapshot, write_memory_viz
from memplan.trace.exporters.perfetto import write_perfetto
from memplan.trace.exporters.speedscope import write_speedscope
from memplan.trace.lives import lives_of, pairs
from memplan.trace.read import read_trace
from memplan.trace.trace import Action, Columns, Mark, Trace
from memplan.trace.write import write_trace
from tests.conftest import ROOT, Command
from tests.reporting.pages import HOSTILE, loop, stacks, traced

TRACES = {
    "loop": loop(steps=3),
    "oom": loop(steps=2, oom=1 << 33),
    "empty": Trace(Columns.of()),
    "one event": traced([(0, 64, 64, 0, 2)], stacks()),
    "hostile": traced([(0, 64, 64, 0, 1)], stacks(HOSTILE), HOSTILE),
    "no stacks": memplan.read_trace(ROOT / "traces/infer_resnet50.parquet"),
    "two devices": dataclasses.replace(
        loop(steps=1),
        events=dataclasses.replace(
            loop(steps=1).events,
            device=(np.arange(len(loop(steps=1))) * 0 + 1).astype(np.int16),
        ),
    ),
}


def live_of(trace: Trace) -> tuple[int, int]:
    """The peak, and what is live at the end."""
    line = lives_of(trace)
    change = np.zeros(line.ticks + 1, dtype=np.int64)
    np.add.at(change, line.lower, line.size)
    np.add.at(change, np.minimum(line.freed, line.ticks), -line.size)
    live = np.cumsum(change[:-1])
    return int(live.max(initial=0)), int(live[-1]) if len(live) else 0


@pytest.mark.parametrize("name", TRACES)
def test_a_snapshot_is_plain_data_of_protocol_4(name: str, tmp_path: Path) -> None:
    path = tmp_path / "out.pickle"
    write_memory_viz(TRACES[name], path)
    names = {code.name for code, _, _ in pickletools.genops(path.read_bytes())}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ"}
    assert next(pickletools.genops(path.read_bytes()))[1] == 4


@pytest.mark.parametrize("name", [n for n in TRACES if n not in ("empty",)])
def test_a_snapshot_reads_back_as_the_same_run(name: str, tmp_path: Path) -> None:
    trace = TRACES[name]
    write_memory_viz(trace, tmp_path / "out.pickle")
    back = read_trace(tmp_path / "out.pickle")
    events = trace.events
    kept = np.isin(events.action, [Action.ALLOC, Action.FREE_COMPLETED])
    again = np.isin(back.events.action, [Action.ALLOC, Action.FREE_COMPLETED])
    freed = pairs(events)[1]
    kept[np.setdiff1d(np.flatnonzero(events.action == 1), freed)] = False
    kept &= events.size > 0
    assert back.events.action[again].tolist() == events.action[kept].tolist()
    assert back.events.address[again].tolist() == events.address[kept].tolist()
    assert set(back.events.device.tolist()) <= {int(events.device.max())}
    rounded = -(-events.size[kept] // 512) * 512
    assert back.events.size[again].tolist() == rounded.tolist()
    asked = back.events.requested_size[again].tolist()
    assert asked == events.requested_size[kept].tolist()
    assert live_of(back)[0] == live_of(trace)[0]
    made = events.action[kept] == Action.ALLOC
    told = [back.stacks[k] for k in back.events.stack[again][made].tolist()]
    assert told == [trace.stacks[k] for k in events.stack[kept][made].tolist()]


def test_segments_hold_what_is_live_at_the_end_and_nothing_overlaps() -> None:
    trace = TRACES["loop"]
    snapshot = to_snapshot(trace)
    active = 0
    ends: list[int] = []
    for segment in snapshot["segments"]:
        at = segment["address"]
        assert not ends or at > ends[-1]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
            active += block["requested_size"]
        assert at == segment["address"] + segment["total_size"]
        ends.append(at)
    assert active == live_of(trace)[1]
    assert [a["name"] for a in snapshot["external_annotations"]] == [
        "step 1",
        "step 2",
        "step 3",
    ]


def test_a_failed_request_is_in_the_snapshot() -> None:
    (history,) = to_snapshot(TRACES["oom"])["device_traces"]
    assert history[-1]["action"] == "oom"
    assert history[-1]["size"] == 1 << 33
    assert "device_free" in history[-1] and "addr" not in history[-1]


@pytest.mark.parametrize("announced", [True, False])
def test_each_free_is_announced_once(announced: bool) -> None:
    rows = [(action, 64, 64, 0, -1) for action in ((0, 3, 1) if announced else (0, 1))]
    (history,) = to_snapshot(traced(rows, stacks()))["device_traces"]
    names = [entry["action"] for entry in history]
    assert names == ["alloc", "free_requested", "free_completed"]


def test_a_negative_device_is_refused() -> None:
    with pytest.raises(InputError, match="device is negative"):
        to_snapshot(Trace(Columns.of(action=[0], size=[1], device=[-1])))


@pytest.mark.torch
def test_torchs_own_viewer_takes_the_snapshot(tmp_path: Path) -> None:
    viewer: Any = pytest.importorskip("torch.cuda._memory_viz")
    path = tmp_path / "out.pickle"
    for name in ("loop", "no stacks", "two devices"):
        write_memory_viz(TRACES[name], path)
        snapshot = pickle.loads(path.read_bytes())
        assert "entries" in viewer.trace(snapshot)
        assert "Summary of segments" in viewer.segsum(snapshot)
        assert "snapshot.pickle" in viewer.trace_plot(snapshot)


@pytest.mark.parametrize("name", TRACES)
def test_perfetto_counts_what_is_live(name: str, tmp_path: Path) -> None:
    trace = TRACES[name]
    write_perfetto(trace, tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    counted = [e["args"]["bytes"] for e in events if e["ph"] == "C"]
    peak, left = live_of(trace)
    assert max(counted, default=0) == peak
    assert (counted[-1] if counted else 0) == left
    begun = [e["id"] for e in events if e["ph"] == "b"]
    ended = [e["id"] for e in events if e["ph"] == "e"]
    assert len(set(begun)) == len(begun) == len(lives_of(trace).size)
    assert set(ended) <= set(begun)
    times = [e["ts"] for e in events if e["ph"] in "beCi"]
    assert times == sorted(times)
    steps = [e for e in events if e["ph"] == "X"]
    assert len(steps) == int((trace.events.mark == lives_of(trace).mark).sum()) * (
        lives_of(trace).mark != Mark.NONE
    )
    assert sum(e["ph"] == "i" for e in events) == (name == "oom")


@pytest.mark.parametrize("name", TRACES)
def test_speedscope_weighs_stacks_by_bytes(name: str, tmp_path: Path) -> None:
    trace = TRACES[name]
    write_speedscope(trace, tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    frames = document["shared"]["frames"]
    peak, everything = document["profiles"]
    assert sum(peak["weights"]) == peak["endValue"] == live_of(trace)[0]
    assert sum(everything["weights"]) == int(lives_of(trace).size.sum())
    for profile in (peak, everything):
        assert profile["type"] == "sampled" and profile["unit"] == "bytes"
        assert len(profile["samples"]) == len(profile["weights"])
        for sample in profile["samples"]:
            assert all(0 <= k < len(frames) for k in sample)
    if name == "loop":
        outermost = everything["samples"][0][0]
        assert frames[outermost]["name"] == "main"


@pytest.mark.parametrize(
    ("end", "reads"),
    [
        ("parquet", True),
        ("json.gz", True),
        ("pickle", True),
        ("csv", False),
        ("perfetto.json", False),
        ("speedscope.json", False),
    ],
)
def test_convert_goes_by_the_name(
    command: Command, tmp_path: Path, end: str, reads: bool
) -> None:
    write_trace(TRACES["loop"], tmp_path / "t.json")
    step = "--step=all" if end == "csv" else "-q"
    said = command("convert", "t.json", f"out.{end}", step)
    assert (said.code, said.out) == (0, "")
    assert ("wrote" in said.err) == (end == "csv")
    assert (command("plot", f"out.{end}", "-o", "x.png").code == 0) == reads


def test_convert_writes_to_standard_output(command: Command, tmp_path: Path) -> None:
    write_trace(TRACES["loop"], tmp_path / "t.json")
    said = command("convert", "t.json", "-", "--to", "speedscope")
    assert json.loads(said.out)["exporter"].startswith("memplan")
