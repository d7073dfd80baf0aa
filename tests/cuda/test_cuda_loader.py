"""Applying a plan to CUDA: with a stand-in for torch, on the fake runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from memplan.applying import cuda as cuda_room
from memplan.applying.cuda import CudaLoader, StreamPlan, loaded_cudart, refuse_unfit
from memplan.applying.cuda_library import Library
from memplan.core.plan import Plan
from memplan.errors import EnvironmentUnfitError, InputError, UsageError
from memplan.recording.boundary import step as mark_step
from memplan.solving.solve import solve
from memplan.trace.importers.snapshot import from_snapshot
from memplan.trace.importers.snapshot_marks import HistoryMark
from memplan.trace.trace import Mark
from tests.cuda.cuda_world import World
from tests.plans import changed
from tests.snapshot_samples import Device, snapshot, step

pytest.importorskip("torch")

STEPS = 5
WEIGHT = 100_000


class FakeTorch:
    """As much of torch as the loader touches; it calls what it is given, by address."""

    __version__ = "2.13.0+cu130"

    class UntypedStorage:
        def _share_cuda_(self) -> None: ...

    def __init__(self) -> None:
        self.version = SimpleNamespace(cuda="13.0")
        self.current: object = None
        self.hooks: dict[str, int] = {}
        memory = SimpleNamespace(
            CUDAPluggableAllocator=self._make,
            change_current_allocator=lambda made: setattr(self, "current", made),
        )
        self.cuda = SimpleNamespace(
            memory=memory, is_initialized=lambda: False, is_available=lambda: True
        )

    def _make(self, path: str, allocate: str, free: str) -> SimpleNamespace:
        library = ctypes.CDLL(path)
        assert getattr(library, allocate)
        assert getattr(library, free)
        names = ("set_record_stream_fn", "set_reset_fn", "set_begin_allocate_to_pool")
        hooks = SimpleNamespace(
            **{
                name: lambda at, name=name: self.hooks.update({name: at})
                for name in names
            }
        )
        return SimpleNamespace(allocator=lambda: hooks)


@pytest.fixture
def fake_torch() -> FakeTorch:
    return FakeTorch()


@pytest.fixture
def ready(
    world_of: Callable[..., World],
    fake_torch: FakeTorch,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    """A process in which a CUDA plan can be applied."""
    world = world_of(load=False)
    monkeypatch.setattr(cuda_room, "_library", None)
    monkeypatch.setattr(cuda_room, "require_torch", lambda purpose: fake_torch)
    monkeypatch.setattr(cuda_room, "library_path", lambda: world.native.path)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    yield world
    world.assert_sound()


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
        for block in blocks:
            world.release(block)
    return weight


def test_a_program_under_its_own_plan_is_planned_throughout(
    ready: World, fake_torch: FakeTorch
) -> None:
    plan = make_plan()
    loader = CudaLoader(plan)
    loader.start()
    weight = run(ready)
    loader.stop()
    mark_step()  # which nobody listens to any more
    report = loader.report()
    assert fake_torch.current is not None
    assert report.requests == report.planned_requests
    assert report.requests >= 3 * (STEPS - 1)
    assert report.conflicts == report.online_requests == report.fallback_requests == 0
    assert report.arena_bytes == plan.peak
    assert report.lower_bound_bytes == plan.lower_bound
    assert report.steps == STEPS
    assert report.warmup["unplanned"] == report.warmup["requests"] == 1
    assert report.device == "cuda"
    assert report.devices == cuda_room.stats()
    stats = cuda_room.stats()
    assert list(stats) == [0]
    weight_bytes = 100_352
    assert stats[0]["reserved_bytes"] == plan.peak + weight_bytes
    assert stats[0]["allocated_bytes"] == weight_bytes
    ready.release(weight)
    ready.assert_no_leak()


def test_torch_is_given_the_librarys_functions(
    ready: World, fake_torch: FakeTorch
) -> None:
    CudaLoader(make_plan()).start()
    assert fake_torch.hooks == {
        "set_record_stream_fn": ready.native.address("record_stream"),
        "set_reset_fn": ready.native.address("empty_cache"),
        "set_begin_allocate_to_pool": ready.native.address("begin_pool"),
    }
    with pytest.raises(EnvironmentUnfitError, match=r"another process .*IPC"):
        fake_torch.UntypedStorage()._share_cuda_()


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
    weights = [ready.take(WEIGHT), ready.take(WEIGHT, side)]
    for _ in range(STEPS):
        mark_step()
        for stream in (None, side):
            blocks = [ready.take(1000 * (i + 1), stream) for i in range(3)]
            for block in blocks:
                ready.release(block)
    loader.stop()
    report = loader.report()
    assert report.planned_requests == report.requests
    assert report.arena_bytes == 2 * plan.peak
    for weight in weights:
        ready.release(weight)
    ready.assert_no_leak()


def test_after_the_end_requests_are_served_outside_the_arena(ready: World) -> None:
    plan = make_plan()
    loader = CudaLoader(plan)
    loader.start()
    loader.stop()
    ready.release(ready.take(1000))
    assert loader.report().arena_bytes == 0
    assert loader.report().requests == 0
    assert set(loader.report().warmup.values()) == {0}
    ready.assert_no_leak()


def test_there_is_one_plan_in_a_process(ready: World) -> None:
    loader = CudaLoader(make_plan())
    loader.start()
    loader.stop()
    with pytest.raises(UsageError, match="start another process"):
        CudaLoader(make_plan()).start()


def test_before_the_start_there_is_nothing_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_room, "_library", None)
    loader = CudaLoader(make_plan())
    loader.stop()
    with pytest.raises(UsageError, match="was not started"):
        loader.report()
    with pytest.raises(UsageError, match="no CUDA plan is applied"):
        cuda_room.stats()


def test_torchs_refusal_is_told_and_leaves_no_trace(
    ready: World, fake_torch: FakeTorch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("Can't swap an already initialized allocator")

    fake_torch.cuda.memory.change_current_allocator = refuse
    with pytest.raises(EnvironmentUnfitError, match="already initialized allocator"):
        CudaLoader(make_plan()).start()
    with pytest.raises(UsageError, match="no CUDA plan is applied"):
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


def no_cuda(torch: FakeTorch) -> None:
    torch.version.cuda = None


def in_use(torch: FakeTorch) -> None:
    torch.cuda.is_initialized = lambda: True


def no_gpu(torch: FakeTorch) -> None:
    torch.cuda.is_available = lambda: False


@pytest.mark.parametrize(
    ("change", "environment", "message"),
    [
        (no_cuda, {}, "was built without it"),
        (in_use, {}, "in use already.*start before the first CUDA tensor"),
        (no_gpu, {}, "finds no GPU"),
        (
            None,
            {
                "PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8, "
                "expandable_segments:True"
            },
            "PYTORCH_CUDA_ALLOC_CONF has expandable_segments:true",
        ),
        (
            None,
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
            "PYTORCH_ALLOC_CONF",
        ),
        (
            None,
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
            "backend:cudamallocasync",
        ),
        (None, {"TORCHINDUCTOR_CUDAGRAPHS": "1"}, "CUDA graph trees"),
    ],
)
def test_where_torch_cannot_have_it_the_reason_is_told(
    fake_torch: FakeTorch,
    change: Callable[[FakeTorch], None] | None,
    environment: dict[str, str],
    message: str,
) -> None:
    if change is not None:
        change(fake_torch)
    with pytest.raises(EnvironmentUnfitError, match=message):
        refuse_unfit(fake_torch, environment)


def test_settings_that_do_no_harm_are_accepted(fake_torch: FakeTorch) -> None:
    refuse_unfit(
        fake_torch,
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False,max_split_size_mb:64"},
    )


def test_todays_torch_is_judged_by_itself() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(EnvironmentUnfitError, match="a plan cannot be applied to CUDA"):
        CudaLoader(make_plan()).start()


def test_the_loaded_runtime_is_found_among_the_mappings(
    ready: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Path(loaded_cudart()).name.startswith("libcudart.so")
    (tmp_path / "maps").write_text(
        "7f00-7f01 r--p 00000000 08:01 1 /usr/lib/libc.so.6\n"
    )
    monkeypatch.setattr(cuda_room, "_MAPS", tmp_path / "maps")
    with pytest.raises(EnvironmentUnfitError, match="no libcudart"):
        loaded_cudart()


def test_a_library_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match="install memplan again"):
        Library(tmp_path / "missing.so")
    (tmp_path / "damaged.so").write_bytes(b"\x7fELF")
    with pytest.raises(EnvironmentUnfitError, match="install memplan again"):
        Library(tmp_path / "damaged.so")
