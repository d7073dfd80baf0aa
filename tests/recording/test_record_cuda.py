"""Recording CUDA memory, from a stand-in for torch's own history of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import memplan
from memplan.cli import cli
from memplan.cli import record as record_command
from memplan.errors import (
    EnvironmentUnfitError,
    FormatError,
    RecordError,
    UsageError,
)
from memplan.recording import cuda_history as cuda_room
from memplan.recording import events as events_room
from memplan.recording import record as record_room
from memplan.recording import target
from memplan.recording.cuda_history import history_arguments
from memplan.recording.options import RecordOptions
from memplan.recording.record import Recording
from memplan.trace.liveness import step_problem
from memplan.trace.read import read_trace
from memplan.trace.recovery import path_of
from memplan.trace.reserved import most_reserved, ran_out
from memplan.trace.trace import Action
from tests.conftest import Command
from tests.snapshot_samples import FRAMES, Device, snapshot, step

torch = pytest.importorskip("torch")

BASE = 0x7F_0000_0000


class FakeMemory:
    """`torch.cuda.memory`: the history of some devices, off until it is asked for."""

    def __init__(self, devices: list[Device], tags: bool) -> None:
        self.devices = devices
        self.asked: list[dict[str, Any]] = []
        self.refuses = ""
        for device in devices:
            device.recording = False
        if tags:
            self._set_memory_metadata = self._set
            self._get_memory_metadata = lambda: self.devices[0].metadata or ""

    def _record_memory_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = 1 << 62,
        clear_history: bool = False,
        skip_actions: tuple[str, ...] | list[str] = (),
    ) -> None:
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.asked.append({"enabled": enabled, "context": context})
        for device in self.devices:
            device.recording = enabled is not None
            device.limit = max_entries if enabled else device.limit
            device.skipped = frozenset(skip_actions)
            if clear_history:
                device.entries = []

    def _snapshot(self) -> dict[str, Any]:
        return snapshot(*self.devices)

    def _set(self, text: str) -> None:
        for device in self.devices:
            device.metadata = text


class FakeTorch:
    """As much of torch as the recorder touches. `use` is the first use of CUDA."""

    __version__ = "2.13.0+cu130"
    __file__ = "/nowhere/torch/__init__.py"  # whose allocator cannot be observed

    def __init__(self, *devices: Device, tags: bool = True) -> None:
        self.memory = FakeMemory(list(devices), tags)
        self.version = SimpleNamespace(cuda="13.0")
        self.queued: list[Callable[[], None]] = []
        self.initialized = False
        self.cuda = SimpleNamespace(
            memory=self.memory,
            device_count=lambda: len(devices),
            _lazy_call=self._lazy_call,
        )

    def get_num_threads(self) -> int:
        return 3

    def use(self) -> None:
        self.initialized = True
        for call in self.queued:
            call()

    def _lazy_call(self, call: Callable[[], None]) -> None:
        if self.initialized:
            call()
        else:
            self.queued.append(call)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeTorch]:
    """Makes the recorder see a FakeTorch with these devices."""

    def make(*devices: Device, tags: bool = True) -> FakeTorch:
        made = FakeTorch(*devices, tags=tags)
        for room in (cuda_room, record_room):
            monkeypatch.setattr(room, "require_torch", lambda purpose: made)
        # The devices' clock must be near the recorder's for their marks to be placed.
        clock = SimpleNamespace(
            time_ns=lambda: devices[0].now * 1000, monotonic_ns=time.monotonic_ns
        )
        monkeypatch.setattr(cuda_room, "time", clock)
        return made

    return make


Started = Callable[..., Recording]


@pytest.fixture
def started(fake: Callable[..., FakeTorch], tmp_path: Path) -> Started:
    """Starts to record a program that uses CUDA at once, on these devices."""

    def start(
        *devices: Device, name: str = "t.json", device: str = "cuda", **options: Any
    ) -> Recording:
        fake_torch = fake(*devices)
        recording = Recording(tmp_path / name, RecordOptions(device=device, **options))  # type: ignore[arg-type]
        recording.start()
        fake_torch.use()
        return recording

    return start


def cuda(**options: Any) -> RecordOptions:
    return RecordOptions(device="cuda", **options)


def program(device: Device, steps: int = 5) -> None:
    device.allocate(BASE, 100_000)
    for _ in range(steps):
        memplan.step()
        step(device, BASE)


@pytest.mark.parametrize("tags", [True, False])
def test_a_program_is_recorded_from_its_first_use_of_cuda(
    fake: Callable[..., FakeTorch], tmp_path: Path, tags: bool
) -> None:
    device = Device()
    fake_torch = fake(device, tags=tags)
    device.allocate(1, 512)  # before CUDA is known to be in use: not seen
    recording = Recording(tmp_path / "t.parquet", cuda(argv=("p.py",)))
    recording.start()
    assert fake_torch.memory.asked == []
    fake_torch.use()
    program(device)
    recording.finish()
    device.allocate(2, 512)
    trace = read_trace(recording.path)
    assert len(trace) == len(recording.trace) == 1 + 5 * (1 + 9)
    assert (trace.info.device, trace.info.argv) == ("cuda", ("p.py",))
    assert (trace.info.program.marks, trace.info.program.threads) == ("explicit", 3)
    assert trace.info.complete
    assert trace.info.dropped_events == 0
    assert trace.info.run.step_seconds >= 0
    steps = np.flatnonzero(trace.events.action == Action.STEP)
    assert steps.tolist() == [1, 11, 21, 31, 41]
    found = step_problem(trace)
    assert found.hot is not None
    assert set(found.problem.size.tolist()) == {1024, 2048, 3072}
    if tags:
        assert device.metadata == ""


def test_what_was_reserved_and_what_failed_is_recorded(started: Started) -> None:
    device = Device()
    recording = started(device, name="t.parquet", stacks="python")
    device.other("segment_alloc", addr=BASE, size=2 << 20)
    device.allocate(BASE, 512)
    device.other("segment_alloc", addr=BASE + (4 << 20), size=20 << 20)
    device.other("segment_free", addr=BASE + (4 << 20), size=20 << 20)
    device.other("oom", size=1 << 40, device_free=7 << 20, frames=FRAMES)
    device.other("snapshot", size=512)
    device.free(BASE)
    recording.finish()
    trace = read_trace(recording.path)
    events = trace.events
    assert [
        (Action(action), size)
        for action, size in zip(
            events.action.tolist(), events.size.tolist(), strict=True
        )
    ] == [
        (Action.SEGMENT_ALLOC, 2 << 20),
        (Action.ALLOC, 512),
        (Action.SEGMENT_ALLOC, 20 << 20),
        (Action.SEGMENT_FREE, 20 << 20),
        (Action.OOM, 1 << 40),
        (Action.FREE_REQUESTED, 512),
        (Action.FREE_COMPLETED, 512),
    ]
    assert (most_reserved(events), ran_out(events)) == (22 << 20, True)
    assert int(events.address[4]) == 7 << 20  # what was free then
    assert len(trace.stacks[int(events.stack[4])]) == len(FRAMES)


def test_blocks_older_than_the_recording_are_no_loss(
    fake: Callable[..., FakeTorch], tmp_path: Path
) -> None:
    device = Device()
    fake_torch = fake(device)
    fake_torch.use()
    device.allocate(BASE, 512)
    recording = Recording(tmp_path / "t.json", cuda())
    recording.start()
    device.free(BASE)
    device.allocate(BASE, 1024)
    recording.finish()
    assert recording.trace.events.size.tolist() == [512, 512, 512, 1024]
    assert recording.trace.events.action[0] == Action.ALLOC
    assert recording.trace.info.dropped_events == 0


def test_a_history_that_fills_up_is_reported(started: Started) -> None:
    device = Device()
    recording = started(device, max_entries=20)
    program(device)
    recording.finish()
    info = read_trace(recording.path).info
    assert not info.complete
    assert info.dropped_events >= 1


def test_every_device_gets_a_trace(started: Started, tmp_path: Path) -> None:
    devices = Device(), Device(), Device()
    recording = started(*devices, name="t.json.gz")
    devices[0].allocate(BASE, 512)
    devices[2].allocate(BASE, 1024)
    recording.finish()
    assert sorted(recording.traces) == [0, 2]
    assert path_of(recording.path, 2) == tmp_path / "t.cuda2.json.gz"
    assert read_trace(recording.path).events.device.tolist() == [0]
    second = read_trace(tmp_path / "t.cuda2.json.gz")
    assert second.events.size.tolist() == [1024]


def test_the_trace_of_another_device_replaces_no_file(
    started: Started, tmp_path: Path
) -> None:
    devices = Device(), Device()
    (tmp_path / "t.cuda1.json").write_text("precious")
    recording = started(*devices)
    for device in devices:
        device.allocate(BASE, 512)
    with pytest.raises(RecordError, match=r"cuda1\.json exists"):
        recording.finish()
    assert (tmp_path / "t.cuda1.json").read_text() == "precious"


def test_one_device_can_be_chosen(started: Started) -> None:
    devices = Device(), Device()
    recording = started(*devices, gpu=1)
    devices[1].allocate(BASE, 512)
    recording.finish()
    assert list(recording.traces) == [1]
    recording = started(*devices, name="2.json", gpu=7)
    devices[1].allocate(BASE, 512)
    with pytest.raises(RecordError, match="device 7 has no events; these have: 1"):
        recording.finish()


@pytest.mark.parametrize("wanted", ["cuda", "auto"])
def test_recording_stops_after_some_steps(started: Started, wanted: str) -> None:
    device = Device()
    recording = started(device, device=wanted, steps=2)
    program(device)
    assert len(recording.trace) == 1 + 2 * 10 + 1
    recording.finish()


def test_a_failure_amid_the_program_is_told_at_its_end(
    fake: Callable[..., FakeTorch], tmp_path: Path
) -> None:
    device = Device()
    fake_torch = fake(device)
    recording = Recording(tmp_path / "t.json", cuda(steps=1))
    recording.start()
    fake_torch.memory.refuses = "CUDAPluggableAllocator does not yet support it"
    fake_torch.use()
    program(device)
    with pytest.raises(RecordError, match="does not yet support it"):
        recording.finish()
    recording.finish()


def test_a_program_without_cuda_is_an_error(
    fake: Callable[..., FakeTorch], started: Started, tmp_path: Path
) -> None:
    fake_torch = fake(Device())
    recording = Recording(tmp_path / "t.json", cuda())
    recording.start()
    with pytest.raises(RecordError, match="did not use CUDA"):
        recording.finish()
    fake_torch.use()  # too late
    recording = started(Device())
    with pytest.raises(RecordError, match="allocated no CUDA memory"):
        recording.finish()
    assert not recording.path.exists()


def test_auto_records_the_gpu_of_a_program_that_uses_it(started: Started) -> None:
    device = Device()
    recording = started(device, device="auto")
    keep = torch.ones(1000)
    program(device)
    recording.finish()
    trace = read_trace(recording.path)
    assert keep.sum() == 1000
    assert trace.info.device == "cuda"
    assert trace.info.program.marks == "explicit"
    assert len(trace) == 1 + 5 * 10
    assert not recording.observed
    assert "from torch's memory history: torch 2.13.0+cu130 has" in recording.notes[0]


def test_the_cpu_can_be_chosen(started: Started) -> None:
    recording = started(Device(), device="cpu")
    torch.ones(1000)
    recording.finish()
    assert read_trace(recording.path).info.device == "cpu"


def test_auto_records_the_cpu_otherwise(
    fake: Callable[..., FakeTorch], tmp_path: Path
) -> None:
    for number, uses_cuda in enumerate((False, True)):
        fake_torch = fake(Device())
        recording = Recording(tmp_path / f"{number}.parquet", RecordOptions())
        recording.start()
        if uses_cuda:  # but allocates nothing there
            fake_torch.use()
        keep = torch.ones(1000)
        recording.finish()
        trace = read_trace(recording.path)
        assert keep.sum() == 1000
        assert trace.info.device == "cpu"
        assert 4000 in trace.events.size.tolist()
        assert recording.traces == {}


def test_auto_tells_what_became_of_either_recording(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(what: str) -> Callable[..., Any]:
        def fail(*arguments: Any) -> None:
            raise FormatError("t.json", what)

        return fail

    def recorded(name: str) -> Recording:
        device = Device()
        recording = started(device, device="auto", name=name)
        program(device)
        return recording

    monkeypatch.setattr(cuda_room, "write_trace", failing("no room left"))
    recording = recorded("a.json")
    with pytest.raises(RecordError, match=r"no room left; .*a\.json may hold the CPU"):
        recording.finish()
    assert read_trace(recording.path).info.device == "cpu"
    monkeypatch.setattr(events_room, "recover_journal", failing("the disk is gone"))
    both = "no room left; .*the disk is gone; no event is lost: make the trace with"
    with pytest.raises(RecordError, match=both):
        recorded("b.json").finish()
    monkeypatch.undo()
    monkeypatch.setattr(events_room, "recover_journal", failing("the disk is gone"))
    recording = recorded("c.json")
    recording.finish()
    assert read_trace(recording.path).info.device == "cuda"
    assert "the disk is gone" in str(recording.cpu_failure)


def test_only_parameters_that_torch_has_are_passed() -> None:
    def old(enabled: str, context: str | None, max_entries: int) -> None: ...

    def new(
        enabled: str, stacks: str, clear_history: bool, skip_actions: list[str]
    ) -> None: ...

    assert history_arguments(old, "none", 7) == {
        **{"enabled": "all", "context": None, "max_entries": 7},
    }
    assert history_arguments(old, "python", 7)["context"] == "alloc"
    passed = history_arguments(new, "none", 7)
    assert passed.keys() == {"enabled", "stacks", "clear_history", "skip_actions"}
    assert passed["skip_actions"]


def test_todays_torch_has_what_is_called() -> None:
    memory = torch.cuda.memory
    passed = history_arguments(memory._record_memory_history, "python", 7)
    assert passed.keys() >= {"enabled", "context", "stacks", "max_entries"}
    assert callable(memory._snapshot)
    assert callable(torch.cuda._lazy_call)


def test_a_programs_own_metadata_is_left_alone(
    fake: Callable[..., FakeTorch], tmp_path: Path
) -> None:
    device = Device()
    fake_torch = fake(device)
    recording = Recording(tmp_path / "t.json", cuda())
    recording.start()
    fake_torch.use()
    fake_torch.memory._set("the program's own")
    program(device, steps=2)
    assert device.metadata == "the program's own"
    recording.finish()
    steps = np.flatnonzero(recording.trace.events.action == Action.STEP)
    assert steps.tolist() == [1, 11]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0: record at least one step"),
        ({"steps": "some"}, "steps='some': write auto, all or a number"),
        ({"steps": "all", "then_exit": True}, "then_exit needs a recording"),
        ({"steps": None, "then_exit": True}, "then_exit needs a recording"),
        ({"max_entries": 0}, "max_entries=0: must be at least 1"),
        ({"device": "gpu"}, "device='gpu': write one of auto, cpu, cuda"),
        ({"stacks": "all"}, "stacks='all': write one of none, site, python"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RecordOptions(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_cannot_be_recorded(
    command: Command, training: Path
) -> None:
    said = command("record", "--device", "cuda", "-o", "t.parquet", training)
    assert said.code == EnvironmentUnfitError.exit_code
    assert "finds no CUDA GPU" in said.err
    assert said.out == ""


@pytest.fixture
def recorded(
    fake: Callable[..., FakeTorch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], str]:
    """Runs `memplan record` of a program on two devices; what it prints."""
    devices = Device(), Device()
    fake_torch = fake(*devices)
    (tmp_path / "train.py").write_text("")

    def run(target: object) -> int:
        fake_torch.use()
        program(devices[0])
        devices[1].allocate(BASE, 512)
        devices[1].allocate(BASE + 512, 512, stream=8)
        return 0

    monkeypatch.setattr(target, "run", run)
    monkeypatch.chdir(tmp_path)

    def record() -> str:
        words = ["record", "--device", "cuda", "--force", "-o", "t.parquet", "train.py"]
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    return record


@pytest.mark.parametrize("full", [False, True])
def test_the_command_tells_of_devices_streams_and_losses(
    recorded: Callable[[], str], monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    if full:
        few = partial(RecordOptions, max_entries=20)
        monkeypatch.setattr(record_command, "RecordOptions", few)
    said = recorded()
    assert " device cuda " in said
    assert "device 1 is in t.cuda1.parquet: 7 events" in said
    assert "device 1 used 2 streams; a plan serves one of them" in said
    assert ("the memory history of device 0 overflowed" in said) == full
    assert "history of device 1 overflowed" not in said


@pytest.mark.parametrize(("most", "expected"), [(51, "step"), (50, "not searched for")])
def test_the_command_looks_for_no_hot_step_among_very_many_events(
    recorded: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    expected: str,
) -> None:
    monkeypatch.setattr(record_command, "MOST_SEARCHED", most)
    said = recorded()
    assert f"hot step {expected}" in said
    assert "memplan solve" in said
