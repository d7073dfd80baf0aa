"""Applying a plan to CUDA: with a stand-in for torch, on the fake runtime."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from memplan.applying import cuda as cuda_room
from memplan.applying.cuda import CudaLoader, StreamPlan
from memplan.applying.cuda_library import UNLIMITED, Library
from memplan.applying.report import DeviceMemory
from memplan.cli.apply_report import show_report
from memplan.core.plan import DeviceRun, Plan
from memplan.errors import EnvironmentUnfitError, InputError, UsageError
from memplan.recording import cuda_library
from memplan.recording.boundary import step as mark_step
from memplan.solving.solve import solve
from memplan.trace.importers.snapshot import HistoryMark, from_snapshot
from memplan.trace.trace import Mark
from tests.cuda.cuda_world import MIB, FakeTorch, World
from tests.plans import changed
from tests.snapshot_samples import Device, snapshot, step

pytest.importorskip("torch")

STEPS = 5
WEIGHT = 100_000


@pytest.fixture
def fake_torch(world_of: Callable[..., World]) -> LoaderTorch:
    return LoaderTorch(world_of(taken=False))


class LoaderTorch(FakeTorch):
    """With what the loader asks of torch.cuda beside the slots."""

    class UntypedStorage:
        """A storage in the world's memory."""

        def __init__(self, world: World, size: int) -> None:
            self._world, self._size = world, size
            self.address = world.take(size)

        def nbytes(self) -> int:
            return self._size

        def data_ptr(self) -> int:
            return self.address

        def resize_(self, size: int) -> None:
            self._world.release(self.address)
            self._size, self.address = size, self._world.take(size)

        def _share_cuda_(self) -> int:
            return self.address

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.lazily: list[Callable[[], None]] = []
        self.initialized = self.available = True
        self.UntypedStorage = type("UntypedStorage", (self.UntypedStorage,), {})
        self.events = 0

    def is_initialized(self) -> bool:
        return self.initialized

    def is_available(self) -> bool:
        return self.available

    def _lazy_call(self, function: Callable[[], None]) -> None:
        self.lazily.append(function)

    def is_current_stream_capturing(self) -> bool:
        return False

    def memory_stats(self, device: int) -> dict[str, int]:
        return {"reserved_bytes.all.peak": 4096 + device, "num_device_alloc": 3}

    def empty_cache(self) -> None:
        self._C._cuda_emptyCache()

    def mem_get_info(self, device: int) -> tuple[int, int]:
        return 1000, 9000 + device

    def Event(self, enable_timing: bool) -> SimpleNamespace:  # noqa: N802
        assert enable_timing
        self.events += 1
        at = self.events
        return SimpleNamespace(
            record=lambda: None,
            synchronize=lambda: None,
            at=at,
            elapsed_time=lambda after: 1000.0 * (after.at - at),
        )


@pytest.fixture
def ready(fake_torch: LoaderTorch, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A process in which a CUDA plan can be applied."""
    world = fake_torch.world
    monkeypatch.setattr(cuda_room, "_library", None)
    monkeypatch.setattr(cuda_room, "require_torch", lambda purpose: fake_torch)
    monkeypatch.setattr(cuda_room, "library_path", lambda: world.native.path)
    yield world
    world.assert_no_leak()


def make_plan(steps: int = STEPS) -> Plan:
    """The plan of a program with one weight and three temporaries in each step."""
    device, marks = Device(), []
    device.allocate(1 << 40, WEIGHT)
    for _ in range(steps):
        marks.append(HistoryMark(Mark.EXPLICIT, device.now + 1))
        step(device, 1 << 40)
    return solve(from_snapshot(snapshot(device), marks=marks).trace)


def run(world: World, steps: int = STEPS, stream: int | None = None) -> int:
    """The program that was planned; the address of its weight."""
    weight = world.take(WEIGHT, stream)
    for _ in range(steps):
        mark_step()
        blocks = [world.take(1000 * (i + 1), stream) for i in range(3)]
        for i, block in enumerate(blocks):
            world.fill(stream, block, 1000 * (i + 1), i)
            world.check(stream, block, 1000 * (i + 1), i)
        world.release(*blocks)
    return weight


def test_a_program_under_its_own_plan_is_planned_throughout(ready: World) -> None:
    plan = make_plan()
    loader = CudaLoader(plan)
    loader.start()
    run(ready)
    report = loader.report()
    loader.stop()
    mark_step()  # which nobody listens to any more
    assert report.requests == report.planned_requests
    assert report.requests >= 3 * (STEPS - 1)
    assert report.conflicts == report.online_requests == report.fallback_requests == 0
    assert report.arena_bytes == plan.peak
    assert report.lower_bound_bytes == plan.lower_bound
    assert report.steps == STEPS
    assert report.warmup["unplanned"] == report.warmup["requests"] == 1
    assert (report.device, report.fault) == ("cuda", "")
    assert report.devices[0]["arena_bytes"] == plan.peak
    assert report.device_memory == {0: DeviceMemory(4096, 0, 8000, 3, 0)}
    assert report.device_seconds.mean == 1.0
    assert json.loads(json.dumps(report.to_json()))["devices"]["0"]["planned"] > 0
    after = loader.report()
    assert (after.requests, after.arena_bytes) == (report.requests, plan.peak)
    assert cuda_room.stats()[0]["arena_bytes"] == 0  # given back: it was empty


def test_the_report_sets_the_device_s_bytes_beside_the_recorded_ones(
    ready: World, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = changed(make_plan(), recorded_device=DeviceRun(8192, 6144, 5, 1))
    loader = CudaLoader(plan)
    loader.start()
    ready.release(run(ready))
    show_report(loader.report())
    loader.stop()
    lines = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
    assert "peak reserved by torch 8.0 KiB 4.0 KiB" in lines
    assert "without a plan, by a model - 2.0 MiB" in lines
    assert "peak allocated 6.0 KiB 0 B" in lines
    assert "cudaMalloc, cudaFree 5, 1 3, 0" in lines


def test_it_begins_when_the_program_begins_to_use_cuda(
    ready: World, fake_torch: LoaderTorch
) -> None:
    fake_torch.initialized = False
    loader = CudaLoader(make_plan())
    loader.start()
    assert not ready.native.installed()
    mark_step()
    assert loader.report().requests == 0
    for function in fake_torch.lazily:
        function()
    run(ready)
    assert loader.report().planned_requests > 0
    loader.stop()


def test_if_it_cannot_begin_then_the_program_runs_without(
    ready: World, fake_torch: LoaderTorch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_torch.initialized = False
    loader = CudaLoader(make_plan())
    loader.start()
    fake_torch._C = SimpleNamespace()
    for function in fake_torch.lazily:
        function()
    assert "has no functions for memory pools" in loader.report().fault
    assert "the program runs without" in capsys.readouterr().err
    ready.release(run(ready))
    assert loader.report().requests == 0
    loader.stop()
    for function in fake_torch.lazily:  # too late
        function()


def test_a_plan_that_would_reserve_more_is_not_applied(
    ready: World, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = DeviceRun(8192, 6144, 5, 1, planned_bytes=9216)
    loader = CudaLoader(changed(make_plan(), recorded_device=recorded))
    loader.start()
    ready.release(run(ready))
    report = loader.report()
    loader.stop()
    assert (report.planned_requests, report.arena_bytes) == (0, 0)
    told = "torch would reserve 9.0 KiB of GPU 0, 8.0 KiB without it"
    assert report.fault == told
    show_report(report)
    shown = " ".join(capsys.readouterr().err.split())
    assert "memplan: 5 steps without the plan" in shown
    assert f"not applied {told}" in shown
    assert "under the plan" not in shown


def test_one_that_would_reserve_as_much_is(ready: World) -> None:
    recorded = DeviceRun(8192, planned_bytes=8192)
    loader = CudaLoader(changed(make_plan(), recorded_device=recorded))
    loader.start()
    ready.release(run(ready))
    assert loader.report().planned_requests > 0
    loader.stop()


def test_what_torch_may_reserve_from_the_start_is_what_was_recorded() -> None:
    plan = make_plan()
    recorded = changed(plan, recorded_device=DeviceRun(reserved_bytes=4 * MIB))
    unknown = changed(plan, recorded_device=DeviceRun())
    assert cuda_room.may_reserve(recorded) == 4 * MIB
    assert cuda_room.may_reserve(unknown) == UNLIMITED
    # Another run may be of smaller sizes throughout.
    assert cuda_room.may_reserve(changed(recorded, elastic=True)) == 0


def test_empty_cache_gives_an_empty_arena_back(
    ready: World, fake_torch: LoaderTorch
) -> None:
    loader = CudaLoader(make_plan())
    loader.start()
    ready.release(run(ready))
    assert cuda_room.stats()[0]["arena_bytes"] > 0
    fake_torch.empty_cache()
    assert cuda_room.stats()[0]["arena_bytes"] == 0
    assert ready.torch_counts()["live"] == 0
    before = loader.report().planned_requests
    run(ready)
    assert loader.report().planned_requests > before
    assert cuda_room.stats()[0]["arena_bytes"] > 0
    loader.stop()


def test_a_planned_tensor_leaves_the_arena_to_be_shared(
    ready: World, fake_torch: LoaderTorch
) -> None:
    ready.release(ready.take(1))
    loader = CudaLoader(make_plan())
    loader.start()
    ready.release(ready.take(WEIGHT))
    mark_step()
    storage = fake_torch.UntypedStorage(ready, 1000)
    assert ready.native.holds(storage.address)
    assert storage._share_cuda_() == storage.address
    assert not ready.native.holds(storage.address)
    assert storage.nbytes() == 1000
    before = storage.address
    assert storage._share_cuda_() == before  # it is there already
    loader.stop()


@pytest.mark.parametrize(
    ("size", "begins_as_planned"), [(512, True), (70_000, True), (70_000, False)]
)
def test_steps_that_differ_are_planned_anew(
    ready: World, size: int, begins_as_planned: bool
) -> None:
    plan = make_plan()
    loader = CudaLoader(plan)
    loader.start()
    if begins_as_planned:
        run(ready)
    else:
        ready.take(WEIGHT)
    before = loader.report().planned_requests
    steps = 0  # under another plan, however long it takes to make one
    while steps < 10:
        mark_step()
        blocks = [ready.take(size) for _ in range(12)]
        ready.release(*blocks)
        time.sleep(0.005)
        steps += any(each.adopted for each in loader.report().replans)
    report = loader.report()
    loader.stop()
    assert {each.reason for each in report.given_up} == {"different"}
    assert any(each.adopted for each in report.replans)
    assert report.planned_requests > before + 12
    # The first arena was given back before there was a larger one.
    rounded = -(-size // 512) * 512
    assert report.arena_bytes == max(plan.peak, 12 * rounded)


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    """A loader that a test left running hears no more steps."""
    from memplan.recording.boundary import Boundaries

    yield
    if Boundaries._active is not None:
        Boundaries._active.stop()


def test_another_stream_can_have_a_plan_too(ready: World) -> None:
    plan = make_plan()
    loader = CudaLoader(plan, others=[StreamPlan(plan, stream=1)])
    loader.start()
    side = ready.stream()
    for stream in (None, side):
        ready.take(WEIGHT, stream)
    for _ in range(STEPS):
        mark_step()
        for stream in (None, side):
            blocks = [ready.take(1000 * (i + 1), stream) for i in range(3)]
            ready.release(*blocks)
    loader.stop()
    report = loader.report()
    assert report.planned_requests == report.requests
    assert report.arena_bytes == 2 * plan.peak


def test_another_device_can_have_a_plan_too(ready: World) -> None:
    plan = make_plan()
    loader = CudaLoader(plan, device=1)
    loader.start()
    for device in (0, 1):
        ready.take(WEIGHT, device=device)
    for _ in range(STEPS):
        mark_step()
        for device in (0, 1):
            blocks = [ready.take(1000 * (i + 1), device=device) for i in range(3)]
            assert [ready.native.holds(block) for block in blocks] == [device == 1] * 3
            ready.release(*blocks)
    report = loader.report()
    loader.stop()
    assert list(report.devices) == [1]  # of the other one nothing was asked
    assert report.planned_requests == report.requests


def test_a_device_has_one_plan_and_is_there(
    ready: World, fake_torch: LoaderTorch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan()
    others = [StreamPlan(plan, 1, name="q.json")]
    with pytest.raises(UsageError, match="2 plans are for device 1, stream 0"):
        CudaLoader(plan, device=1, others=others)
    with pytest.raises(InputError, match=r"q.json is for device cpu"):
        cpu = StreamPlan(otherwise(device="cpu"), 1, name="q.json")
        CudaLoader(plan, others=[cpu])
    loader = CudaLoader(plan, "p.json", device=2)
    with pytest.raises(EnvironmentUnfitError, match=r"p.json is for GPU 2, and there"):
        loader.start()


def test_before_the_start_there_is_nothing_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_room, "_library", None)
    loader = CudaLoader(make_plan())
    loader.stop()
    with pytest.raises(UsageError, match="was not started"):
        loader.report()
    with pytest.raises(UsageError, match="no CUDA plan was applied"):
        cuda_room.stats()


def test_an_allocator_that_is_not_known_is_refused(
    world_of: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = LoaderTorch(world_of("-DANOTHER", taken=False))
    monkeypatch.setattr(cuda_room, "_library", None)
    monkeypatch.setattr(cuda_room, "require_torch", lambda purpose: torch)
    monkeypatch.setattr(cuda_room, "library_path", lambda: torch.world.native.path)
    with pytest.raises(EnvironmentUnfitError, match=r"AnotherAllocator.*nothing was"):
        CudaLoader(make_plan()).start()
    with pytest.raises(UsageError, match="no CUDA plan was applied"):
        cuda_room.stats()
    mark_step()


def otherwise(**changes: Any) -> Plan:
    return changed(make_plan(), **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: otherwise(device="cpu"), "is for device cpu, and this is CUDA"),
        (lambda: otherwise(requests=None, warmup=None), "from a bare problem"),
        (
            lambda: otherwise(offsets=np.zeros(len(make_plan().problem), np.int64)),
            "does not verify",
        ),
        (lambda: solve_aligned(64), "not multiples of 512 bytes"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(
    make: Callable[[], Plan], message: str
) -> None:
    with pytest.raises(InputError, match=f"p.json .*{message}"):
        CudaLoader(make(), "p.json")


def solve_aligned(alignment: int) -> Plan:
    plan = make_plan()
    aligned = np.full(len(plan.problem), alignment, dtype=np.int64)
    problem = replace(plan.problem, alignment=aligned, rounding=alignment)
    return changed(plan, problem=problem)


def no_cuda(torch: LoaderTorch) -> None:
    torch.version.cuda = None


def no_gpu(torch: LoaderTorch) -> None:
    torch.available = False


def not_tried(torch: LoaderTorch) -> None:
    torch.__version__ = "2.99.0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_cuda, "was built without it"),
        (no_gpu, "finds no GPU"),
        (not_tried, "does not know: a trial of it failed"),
    ],
)
def test_where_torch_cannot_have_it_the_reason_is_told(
    ready: World,
    fake_torch: LoaderTorch,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[LoaderTorch], None],
    message: str,
) -> None:
    monkeypatch.setattr(
        cuda_library, "try_elsewhere", lambda **_: "a trial of it failed"
    )
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    change(fake_torch)
    with pytest.raises(EnvironmentUnfitError, match=message):
        CudaLoader(make_plan()).start()
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "0"
    assert not ready.native.installed()


def test_todays_torch_is_judged_by_itself() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(EnvironmentUnfitError, match="a plan cannot be applied to CUDA"):
        CudaLoader(make_plan()).start()


def test_a_library_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match="install memplan again"):
        Library(tmp_path / "missing.so")
    (tmp_path / "damaged.so").write_bytes(b"\x7fELF")
    with pytest.raises(EnvironmentUnfitError, match="install memplan again"):
        Library(tmp_path / "damaged.so")


def test_a_process_can_have_one_plan_after_another(ready: World) -> None:
    for _ in range(2):
        loader = CudaLoader(make_plan())
        loader.start()
        run(ready)
        assert loader.report().planned_requests > 0
        loader.stop()
