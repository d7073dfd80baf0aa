"""Recording from within torch's CUDA allocator: a fake one, on the fake runtime."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from memplan.cli import cli
from memplan.errors import EnvironmentUnfitError, RecordError
from memplan.recording import cuda_history as cuda_room
from memplan.recording import cuda_library, cuda_observer
from memplan.recording import record as record_room
from memplan.recording.boundary import step as mark_step
from memplan.recording.boundary import unplanned
from memplan.recording.options import RecordOptions
from memplan.recording.record import Recording
from memplan.trace.journal import Journal
from memplan.trace.read import read_trace
from memplan.trace.recovery import path_of
from memplan.trace.streams import streams_of
from memplan.trace.trace import Action, Trace
from tests.cuda.cuda_world import FakeTorch, World

pytest.importorskip("torch")

ALLOC, FREE, STEP = Action.ALLOC, Action.FREE_COMPLETED, Action.STEP
ASKED = Action.FREE_REQUESTED
SEGMENTS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE)


class RecorderTorch(FakeTorch):
    """With what a recording asks of torch.cuda; `use` is CUDA's first use."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.queued: list[Callable[[], None]] = []
        self.initialized = False
        self.segments: list[dict[str, Any]] = []

    def memory_snapshot(self) -> list[dict[str, Any]]:
        return self.segments

    def _lazy_call(self, call: Callable[[], None]) -> None:
        if self.initialized:
            call()
        else:
            self.queued.append(call)

    def use(self) -> None:
        self.initialized = True
        for call in self.queued:
            call()


@pytest.fixture
def torch_of(
    world_of: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RecorderTorch]:
    """Makes the recorder see a fake torch, built with some flags."""

    def make(*flags: str) -> RecorderTorch:
        world = world_of(*flags, taken=False)
        made = RecorderTorch(world)
        for room in (cuda_room, record_room):
            monkeypatch.setattr(room, "require_torch", lambda purpose: made)
        monkeypatch.setattr(cuda_observer, "library_path", lambda: world.native.path)
        return made

    return make


@pytest.fixture
def fake_torch(torch_of: Callable[..., RecorderTorch]) -> Iterator[RecorderTorch]:
    """One whose allocator can be observed."""
    made = torch_of()
    yield made
    made.world.assert_sound()


def begun(path: Path, **options: Any) -> Recording:
    recording = Recording(path, RecordOptions(device="cuda", **options))
    recording.start()
    return recording


def rows(trace: Trace, *left_out: int) -> list[tuple[int, int, int]]:
    """Action, bytes and stream of each event but segments."""
    events = trace.events
    kept = ~np.isin(events.action, (*SEGMENTS, *left_out))
    columns = (events.action, events.size, events.stream)
    found = [column[kept].tolist() for column in columns]
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("layout", [1, 2])
def test_all_that_the_allocator_does_is_recorded(
    torch_of: Callable[..., RecorderTorch], tmp_path: Path, layout: int
) -> None:
    fake_torch = torch_of(f"-DLAYOUT={layout}")
    world = fake_torch.world
    recording = begun(tmp_path / "t.parquet")
    assert world.torch_counts()["requests"] == 0  # CUDA is not used before it is
    fake_torch.use()
    side = world.stream()
    weight = world.take(1000)
    mark_step()
    other = world.take(5000, side)
    world.begin_pool()
    pooled = world.take(300)
    world.release(pooled)
    world.end_pool()
    world.record_stream(weight, side)
    world.release(weight, other)
    assert world.allocate(1 << 45) == "CUDA out of memory."
    world.empty()  # by now the side stream is done with the weight
    recording.finish()
    trace = read_trace(recording.path)
    assert rows(trace) == [
        (ALLOC, 1024, 0),
        (STEP, 0, 0),
        (ALLOC, 5120, side),
        (ALLOC, 512, 0),
        (ASKED, 512, 0),
        (FREE, 512, 0),
        (ASKED, 1024, 0),
        (ASKED, 5120, side),
        (FREE, 5120, side),
        (Action.OOM, 1 << 45, 0),
        (FREE, 1024, 0),
    ]
    events = trace.events
    segments = events.size[events.action == Action.SEGMENT_ALLOC]
    assert segments.tolist() == [5120]  # the trial's blocks were there for the others
    assert events.address[events.action == Action.OOM].tolist() == [4096]
    assert (trace.info.device, trace.info.complete) == ("cuda", True)
    assert trace.info.alignment == 512
    assert recording.observed
    assert recording.notes == []
    assert not Path(f"{recording.path}.journal").exists()
    asked = trace.stacks[int(events.stack[events.action == ALLOC][0])]
    assert [Path(frame.filename).name for frame in asked] == ["cuda_world.py"]
    world.assert_sound()


def test_frees_of_what_was_not_recorded_are_no_events(
    fake_torch: RecorderTorch, tmp_path: Path
) -> None:
    world = fake_torch.world
    fake_torch.use()
    old = world.take(700)
    fake_torch.segments = [
        {
            **{"device": 0, "stream": 0, "address": old, "total_size": 4096},
            "blocks": [
                {"address": old, "size": 1024, "state": "active_allocated"},
                {"address": old + 1024, "size": 3072, "state": "inactive"},
            ],
        }
    ]
    unknown = world.take(800)
    recording = begun(tmp_path / "t.json", stacks="none")
    with unplanned():
        inner = world.take(900)
    world.release(inner, unknown, old)
    recording.finish()
    world.release(world.take(1))  # and after it nothing is
    expected = [(ALLOC, 1024, 0), (ASKED, 1024, 0), (FREE, 1024, 0)]
    assert rows(recording.trace) == expected
    assert len(recording.trace.stacks) == 0


def test_every_gpu_gets_a_trace_of_the_same_clock(
    fake_torch: RecorderTorch, tmp_path: Path
) -> None:
    world = fake_torch.world
    recording = Recording(tmp_path / "t.parquet", RecordOptions())
    recording.start()
    fake_torch.use()
    world.release(world.take(512, device=1))
    mark_step()
    world.release(world.take(1024))
    recording.finish()
    assert list(recording.paths) == [0, 1]
    assert recording.paths[1] == path_of(recording.path, 1)
    first, second = recording.traces.values()
    assert rows(first) == [
        (STEP, 0, 0),
        (ALLOC, 1024, 0),
        (ASKED, 1024, 0),
        (FREE, 1024, 0),
    ]
    assert rows(second)[0] == (ALLOC, 512, 0)
    assert set(second.events.device[second.events.action == ALLOC]) == {1}
    step = [int(t.events.time_ns[t.events.action == STEP][0]) for t in (first, second)]
    assert step[0] == step[1]
    assert first.info.program.marks == "explicit"


def test_a_gpu_that_is_only_made_ready_is_not_used(
    fake_torch: RecorderTorch, tmp_path: Path
) -> None:
    """What was tried of its allocator left a segment; the memory is the CPU's."""
    empty = {"address": 1 << 20, "size": 4096, "state": "inactive"}
    fake_torch.segments = [
        {
            **{"device": 0, "stream": 0, "address": 1 << 20, "total_size": 4096},
            "blocks": [empty],
        }
    ]
    recording = Recording(tmp_path / "t.parquet", RecordOptions())
    recording.start()
    fake_torch.use()
    mark_step()
    recording.finish()
    trace = read_trace(recording.path)
    assert (recording.paths, trace.info.device) == ({}, "cpu")
    assert trace.events.action.tolist() == [STEP]
    recording = begun(tmp_path / "u.parquet")
    with pytest.raises(RecordError, match="allocated no CUDA memory"):
        recording.finish()


def test_one_gpu_can_be_chosen(fake_torch: RecorderTorch, tmp_path: Path) -> None:
    world = fake_torch.world
    fake_torch.use()
    for chosen, name in ((1, "a.json"), (7, "b.json")):
        recording = begun(tmp_path / name, gpu=chosen)
        world.release(world.take(512, device=1))
        world.release(world.take(512))
        if chosen == 1:
            recording.finish()
            assert list(recording.paths) == [1]
        else:
            with pytest.raises(
                RecordError, match="device 7 has no events; these have: 0, 1"
            ):
                recording.finish()


def test_many_events_of_many_threads_do_not_overflow(
    fake_torch: RecorderTorch, tmp_path: Path
) -> None:
    count, threads = 12_000, 4  # more events than the journal's ring has room for
    world = fake_torch.world
    recording = begun(tmp_path / "t.parquet", stacks="none", steps="all")
    fake_torch.use()
    streams = [world.stream() for _ in range(threads)]

    def work(stream: int) -> None:
        for i in range(count):
            world.release(world.take(512 * (1 + i % 7), stream))

    running = [threading.Thread(target=work, args=(each,)) for each in streams]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    recording.finish()
    trace = read_trace(recording.path)
    made = trace.events.action == ALLOC
    assert int(made.sum()) == count * threads
    assert int((trace.events.action == FREE).sum()) == count * threads
    assert sorted(streams_of(trace)) == sorted(streams)
    assert len(np.unique(trace.events.thread[made])) == threads
    assert trace.info.dropped_events == 0


def test_what_a_killed_process_wrote_is_recovered(
    fake_torch: RecorderTorch, tmp_path: Path
) -> None:
    world = fake_torch.world
    recording = begun(tmp_path / "t.parquet")
    fake_torch.use()
    world.take(512, device=1)
    world.take(1024)
    recording.finish()  # the writer's thread is done
    journal = tmp_path / "t.parquet.journal"
    assert not journal.exists()
    recording = begun(tmp_path / "u.parquet", stacks="none")
    world.take(2048)
    world.take(512, device=1)
    kept = tmp_path / "k.parquet.journal"
    shutil.copy(tmp_path / "u.parquet.journal", kept)
    while Journal(kept).devices != [0, 1]:  # written four times a second
        time.sleep(0.05)
        shutil.copy(tmp_path / "u.parquet.journal", kept)
    recording.finish()
    done = CliRunner().invoke(cli, ["recover", str(kept)])
    assert done.exit_code == 0, done.output
    assert "device 1 is in" in " ".join(done.output.split())
    trace = read_trace(tmp_path / "k.parquet")
    assert rows(trace) == [(ALLOC, 2048, 0)]
    assert (trace.info.device, trace.info.complete) == ("cuda", False)
    assert rows(read_trace(tmp_path / "k.cuda1.parquet")) == [(ALLOC, 512, 0)]


def test_a_forked_child_writes_nothing(
    fake_torch: RecorderTorch, tmp_path: Path
) -> None:
    world = fake_torch.world
    recording = begun(tmp_path / "t.json", stacks="none")
    fake_torch.use()
    block = world.take(512)
    child = os.fork()
    if child == 0:
        world.release(block)
        world.release(world.take(4096))
        os._exit(0)
    os.waitpid(child, 0)
    world.release(block)
    recording.finish()
    expected = [(ALLOC, 512, 0), (ASKED, 512, 0), (FREE, 512, 0)]
    assert rows(recording.trace) == expected


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (("-DLAYOUT=6",), "what it tells of its events is not as expected"),
        (("-DNAMELESS",), "has no allocator whose functions have names"),
        (("-DLAYOUT=3",), "does not pass through the first function"),
    ],
)
def test_an_allocator_that_is_not_known_is_not_observed(
    torch_of: Callable[..., RecorderTorch],
    tmp_path: Path,
    flags: tuple[str, ...],
    fault: str,
) -> None:
    fake_torch = torch_of(*flags)
    world = fake_torch.world
    recording = begun(tmp_path / "t.json", history="slot")
    fake_torch.use()
    world.release(world.take(512))
    with pytest.raises(RecordError, match=f"nothing of CUDA was recorded.*{fault}"):
        recording.finish()
    assert list(tmp_path.glob("t.json*")) == []
    world.assert_sound()


def test_a_release_that_was_not_looked_at_is_tried_elsewhere(
    fake_torch: RecorderTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def tried(*, events: bool = False) -> str:
        asked.append(events)
        return "a trial of it failed" if events else ""

    monkeypatch.setattr(cuda_library, "try_elsewhere", tried)
    native = fake_torch.world.native
    cuda_library.require_known(native, fake_torch, events=True)
    fake_torch.__version__ = "2.99.0"
    cuda_library.require_known(native, fake_torch)
    with pytest.raises(EnvironmentUnfitError, match="a trial of it failed"):
        cuda_library.require_known(native, fake_torch, events=True)
    assert asked == [False, True]


def test_a_program_that_uses_no_gpu_is_told(
    fake_torch: RecorderTorch, tmp_path: Path
) -> None:
    recording = begun(tmp_path / "t.json")
    with pytest.raises(RecordError, match="did not use CUDA"):
        recording.finish()
    recording = begun(tmp_path / "t.json")
    fake_torch.use()
    with pytest.raises(RecordError, match="allocated no CUDA memory"):
        recording.finish()
    assert list(tmp_path.glob("t.json*")) == []
