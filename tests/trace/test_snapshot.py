"""CUDA memory snapshots as traces."""

from __future__ import annotations

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import FormatError, UsageError
from memplan.trace.importers.snapshot import (
    HistoryMark,
    Imported,
    devices_of,
    from_snapshot,
)
from memplan.trace.liveness import step_problem
from memplan.trace.read import read_trace
from memplan.trace.reserved import most_reserved, ran_out, reserved_bytes
from memplan.trace.streams import one_stream, streams_of
from memplan.trace.trace import Action, Columns, Mark
from memplan.trace.write import write_trace
from tests.conftest import Run
from tests.partners import match_frees
from tests.snapshot_samples import FRAMES, Device, segment, snapshot, step

BASE = 0x7F_0000_0000


def rows(found: Imported) -> list[tuple[str, int, int, int]]:
    """Action, address beyond BASE, size and stream of each event."""
    events = found.trace.events
    return [
        (Action(action).name, max(int(address) - BASE, 0), int(size), int(stream))
        for action, address, size, stream in zip(
            events.action, events.address, events.size, events.stream, strict=True
        )
    ]


def save(value: object, path: Path, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


def test_a_life_ends_when_its_free_completed() -> None:
    device = Device()
    device.allocate(BASE, 1000, stream=5)
    device.free(BASE, complete=False)
    device.allocate(BASE + 4096, 512)
    device.complete(BASE)
    found = from_snapshot(snapshot(device))
    assert rows(found) == [
        ("ALLOC", 0, 1024, 5),
        ("FREE_REQUESTED", 0, 1024, 5),
        ("ALLOC", 4096, 512, 0),
        ("FREE_COMPLETED", 0, 1024, 5),
    ]
    partner = match_frees(found.trace.events)
    assert partner[0] == 3
    assert partner[2] == -1


def test_blocks_older_than_the_history_are_restored_and_counted() -> None:
    device = Device()
    device.recording = False
    device.allocate(BASE, 500)
    device.allocate(BASE + 512, 512)
    device.recording = True
    device.free(BASE)
    device.allocate(BASE, 1024)
    found = from_snapshot(snapshot(device))
    assert rows(found) == [
        ("ALLOC", 0, 512, 0),
        ("FREE_REQUESTED", 0, 512, 0),
        ("FREE_COMPLETED", 0, 512, 0),
        ("ALLOC", 0, 1024, 0),
    ]
    assert (found.unmatched_frees, found.older_blocks, found.entries) == (1, 1, 3)


def test_what_is_live_to_the_end_is_restored_from_the_segments(tmp_path: Path) -> None:
    device = Device()
    device.allocate(BASE, 512)
    segments = (
        segment(
            BASE,
            2 << 20,
            (BASE, 512, "active_allocated"),
            (BASE + 512, 1000, "active_pending_free"),
            (BASE + 2048, 4096, "inactive"),
        ),
        {**segment(1 << 50, 1 << 20), "device": 1},
    )
    value = snapshot(device, segments=segments)
    trace = read_trace(save(value, tmp_path / "s.pickle"))
    names = [Action(code).name for code in trace.events.action]
    assert names == ["SEGMENT_ALLOC", "ALLOC", "ALLOC"]
    assert trace.events.size.tolist() == [2 << 20, 1024, 512]
    assert trace.stacks[int(trace.events.stack[1])][0].name == "forward"
    assert not trace.info.complete
    assert rows(from_snapshot(value))[1:] == [
        ("ALLOC", 512, 1024, 0),
        ("ALLOC", 0, 512, 0),
    ]


def test_segments_and_failed_requests_are_kept(tmp_path: Path) -> None:
    device = Device()
    device.other("segment_alloc", addr=BASE, size=2 << 20)
    device.allocate(BASE, 512, frames=FRAMES)
    device.other("oom", size=1 << 30, device_free=77, frames=FRAMES)
    device.other("segment_free", addr=BASE, size=2 << 20)
    trace = read_trace(save(snapshot(device), tmp_path / "s.pickle"))
    assert most_reserved(trace.events) == 2 << 20
    assert reserved_bytes(trace.events).tolist()[-1] == 0
    assert ran_out(trace.events)
    assert trace.events.address[2] == 77
    assert trace.events.size[2] == 1 << 30
    assert trace.events.stack[2] >= 0
    assert trace.info.complete


def test_one_device_is_chosen_of_several(tmp_path: Path) -> None:
    first, second = Device(), Device()
    first.allocate(BASE, 512)
    second.allocate(BASE, 1024)
    path = save(snapshot(first, second), tmp_path / "s.pickle")
    with pytest.raises(FormatError, match="devices 0, 1; choose one with --device N"):
        read_trace(path)
    assert read_trace(path, device=1).events.size.tolist() == [1024]
    assert devices_of(snapshot(Device(), first, second)) == [1, 2]
    with pytest.raises(UsageError, match=r"device 2: .* holds device 0, 1 only"):
        read_trace(path, device=2)


def test_a_trace_of_memplans_own_has_no_devices_to_choose_from(tmp_path: Path) -> None:
    device = Device()
    device.allocate(BASE, 512)
    trace = from_snapshot(snapshot(device)).trace
    write_trace(trace, tmp_path / "t.json")
    assert len(read_trace(tmp_path / "t.json", device=0)) == 1
    with pytest.raises(UsageError, match=r"device 3: .* is of device 0"):
        read_trace(tmp_path / "t.json", device=3)


@given(st.data(), st.sampled_from(["pickle-2", "pickle-5", "json"]))
def test_a_pickle_reads_as_the_objects_it_stands_for(
    data: st.DataObject, form: str
) -> None:
    device, live, places = Device(), [], iter(range(1000))
    device.recording = data.draw(st.booleans())
    for _ in range(data.draw(st.integers(0, 30))):
        if live and data.draw(st.booleans()):
            device.free(live.pop(data.draw(st.integers(0, len(live) - 1))))
        else:
            live.append(BASE + 4096 * next(places))
            frames = FRAMES if data.draw(st.booleans()) else []
            size = data.draw(st.integers(1, 4096))
            device.allocate(live[-1], size, data.draw(st.integers(0, 2)), frames=frames)
        device.recording = True
    device.recording = True
    device.allocate(BASE - 4096, 1)
    states = [(place, 512, "active_allocated") for place in live]
    value = snapshot(device, segments=(segment(BASE, 1 << 23, *states),))
    expected = from_snapshot(value).trace
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        if form == "json":
            path.write_text(json.dumps(value))
        else:
            save(value, path, int(form[-1]))
        found = read_trace(path)
    for name in Columns.DTYPES:
        left, right = getattr(found.events, name), getattr(expected.events, name)
        assert left.tolist() == right.tolist(), name
    assert list(found.stacks) == list(expected.stacks)


def test_a_history_that_was_full_is_never_called_complete(tmp_path: Path) -> None:
    device = Device(limit=10)
    for i in range(6):
        device.allocate(BASE + 4096 * i, 512)
    for i in range(6):
        device.free(BASE + 4096 * i, complete=i > 2)
    path = save(snapshot(device), tmp_path / "s.pickle")
    trace = read_trace(path)
    assert trace.info.dropped_events > 0
    assert not trace.info.complete


def test_times_count_from_the_first_event_and_do_not_decrease() -> None:
    device = Device()
    for i in range(4):
        device.allocate(BASE + 4096 * i, 512)
    device.entries[2]["time_us"] -= 60
    found = from_snapshot(snapshot(device)).trace.events
    assert found.time_ns.tolist() == [0, 50_000, 50_000, 150_000]


def marked(tagged: bool) -> tuple[dict[str, Any], list[HistoryMark]]:
    """Four steps after a weight's allocation, a mark before each."""
    device, marks = Device(), []
    device.allocate(BASE, 100_000)
    for i in range(4):
        # Where tags tell the truth, a clock that is some microseconds off does not.
        marks.append(HistoryMark(Mark.OPTIMIZER, device.now + (170 if tagged else 1)))
        if tagged:
            device.metadata = f"memplan:{i + 1}"
        step(device, BASE)
    return snapshot(device), marks


@pytest.mark.parametrize("tagged", [True, False])
def test_marks_stand_where_they_were_seen(tagged: bool) -> None:
    value, marks = marked(tagged)
    trace = from_snapshot(value, marks=marks).trace
    actions = trace.events.action
    where = np.flatnonzero(actions == Action.STEP).tolist()
    assert where == [1, 11, 21, 31]
    assert set(trace.events.mark[where].tolist()) == {Mark.OPTIMIZER}
    assert trace.info.program.marks == "optimizer"
    found = step_problem(trace)
    assert found.hot is not None
    assert set(found.problem.size.tolist()) == {1024, 2048, 3072}
    assert found.persistent_bytes == 100_352


@pytest.mark.parametrize("tag", ["memplan:1", "memplan:x", "memplan:99", "mine", None])
def test_tags_that_contradict_the_clock_do_not_count(tag: str | None) -> None:
    value, marks = marked(tagged=False)
    for entry in value["device_traces"][0]:
        entry["user_metadata"] = tag
    far_apart = [
        HistoryMark(mark.mark, mark.time_us + 10_000 * i)
        for i, mark in enumerate(marks)
    ]
    for i, entry in enumerate(value["device_traces"][0]):
        entry["time_us"] += 10_000 * ((i - 1) // 9) + (500 if i else 0)
    actions = from_snapshot(value, marks=far_apart).trace.events.action
    assert np.flatnonzero(actions == Action.STEP).tolist() == [1, 11, 21, 31]


def test_marks_after_the_last_event_are_kept() -> None:
    device = Device()
    device.allocate(BASE, 512)
    marks = [HistoryMark(Mark.EXPLICIT, device.now + 10**9)] * 2
    actions = from_snapshot(snapshot(device), marks=marks).trace.events.action
    assert actions.tolist() == [Action.ALLOC, Action.STEP, Action.STEP]


def test_the_streams_of_a_trace_can_be_told_apart() -> None:
    device = Device()
    device.allocate(BASE, 512)
    device.allocate(BASE + 4096, 8192, stream=77)
    device.free(BASE + 4096)
    device.free(BASE)
    mark = HistoryMark(Mark.EXPLICIT, device.now + 1)
    trace = from_snapshot(snapshot(device), marks=[mark]).trace
    assert list(streams_of(trace).items()) == [(77, 8192), (0, 512)]
    side = one_stream(trace)  # the default one
    assert side.events.size.tolist()[:1] == [512]
    assert side.events.action.tolist()[-1] == Action.STEP


def test_a_snapshot_that_would_run_code_is_refused(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "evil.pickle").write_bytes(b"\x80\x04cos\nsystem\n(X\x02\0\0\0lstR.")
    done = memplan("solve", "evil.pickle")
    assert done.returncode == 3
    assert "contains opcode GLOBAL at byte 2; plain data expected" in done.stderr


def broken(**changes: object) -> dict[str, Any]:
    """A snapshot whose only entry has these fields instead; ... takes one away."""
    device = Device()
    device.allocate(BASE, 512)
    entry = device.entries[0]
    for name, value in changes.items():
        if value is ...:
            del entry[name]
        else:
            entry[name] = value
    return snapshot(device)


def in_segments(segments: object) -> dict[str, Any]:
    return {**broken(), "segments": segments}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "not a memory snapshot"),
        ({}, "not a memory snapshot"),
        ([{"device": 0, "blocks": []}], "total_size is null, not a number of bytes"),
        ([], "neither memory history nor segments"),
        ({"device_traces": 5}, "device_traces is 5, not a list"),
        ({"device_traces": [{}]}, r"device_traces\[0\] is an object, not a list"),
        ({"device_traces": []}, "neither memory history nor segments"),
        ({"device_traces": [[], []]}, "neither memory history nor segments"),
        ({"device_traces": [[{"action": "snapshot"}]]}, "neither memory history"),
        ({"device_traces": [[5]]}, r"device_traces\[0\]\[0\]: 5 has no action"),
        ({"device_traces": [[{}]]}, "has no action"),
        (broken(action=3), "has no action"),
        (broken(addr=-1), r"device_traces\[0\]\[0\].addr: -1 is not an integer"),
        (broken(addr=1 << 64), "addr"),
        (broken(addr="x"), "addr: 'x' is not an integer"),
        (broken(addr=True), "addr: true is not an integer"),
        (broken(addr=...), "addr: null is not an integer"),
        (broken(size=-1), "size: -1 is not an integer"),
        (broken(size=1 << 63), "size"),
        (broken(size=1.5), "1.5 is not an integer"),
        (broken(stream=-1), "stream"),
        (broken(stream=1 << 63), "stream"),
        (broken(time_us=-1), "time_us"),
        (broken(time_us=1 << 62), "time_us"),
        (broken(frames=5), "frames: 5 is not a list"),
        (broken(frames=[5]), "frames: 5 is not"),
        (broken(frames=[{"filename": "a", "line": 1}]), "frames: an object is not"),
        (broken(frames=[{"filename": "a", "line": True, "name": "b"}]), "frames"),
        (broken(frames=[{"filename": "a", "line": 1 << 63, "name": "b"}]), "frames"),
        (in_segments(3), "segments is 3, not a list"),
        (in_segments([3]), r"segments\[0\] is 3, not a dict"),
        (in_segments([{"device": "x"}]), "device is 'x', not a device's index"),
        (in_segments([{"device": -1}]), "device is -1, not a device's index"),
        (in_segments([{"device": 0}]), "total_size is null, not a number of bytes"),
        (in_segments([segment(0, 5, (-1, 512, "inactive"))]), "address is -1"),
        (in_segments([segment(0, 5, (0, -1, "inactive"))]), "size is -1, not a num"),
        (in_segments([segment(0, 5, (0, 1, "inactive"))] * 2), "another segment's"),
    ],
)
def test_every_field_is_checked(value: object, message: str, tmp_path: Path) -> None:
    forms = [save(value, tmp_path / "s.pickle")]
    if isinstance(value, dict) and value and "another" not in message:
        forms.append(tmp_path / "s.json")
        forms[1].write_text(json.dumps(value))
    for path in forms:
        with pytest.raises(FormatError, match=message):
            read_trace(path)


def test_a_line_that_is_not_known_becomes_0_and_a_long_name_is_cut() -> None:
    frames = [{"filename": "a" * 70_000, "line": -1, "name": "f"}]
    trace = from_snapshot(broken(frames=frames)).trace
    assert trace.stacks[0][0].line == 0
    assert len(trace.stacks[0][0].filename) == 65536


ENTRY = st.fixed_dictionaries(
    {
        "action": st.sampled_from(
            ["alloc", "free_requested", "free_completed", "segment_alloc", "oom"]
        ),
        "addr": st.integers(0, 5).map(lambda i: BASE + 4096 * i),
        "size": st.integers(0, 5000),
        "stream": st.integers(0, 2),
        "time_us": st.integers(0, 100),
    }
)


@given(entries=st.lists(ENTRY, min_size=1, max_size=60), marks=st.integers(0, 5))
def test_any_history_becomes_a_sound_trace(
    entries: list[dict[str, Any]], marks: int
) -> None:
    seen = [HistoryMark(Mark.FORWARD, 20 * i) for i in range(marks)]
    found = from_snapshot({"device_traces": [entries]}, marks=seen)
    events = found.trace.events
    assert (np.diff(events.time_ns) >= 0).all()
    assert int((events.action == Action.STEP).sum()) == marks
    frees = events.action == Action.FREE_COMPLETED
    assert (match_frees(events)[frees] >= 0).all()
    completed = sum(entry["action"] == "free_completed" for entry in entries)
    left_out = completed - int(frees.sum())
    assert 0 <= left_out <= found.unmatched_frees
