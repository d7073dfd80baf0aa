"""Applying a plan to CUDA memory, inside torch's own allocator.

A few functions of that allocator are exchanged, first of all the one that tensors are
made with. It serves planned requests from an arena, which is one block of the same
allocator, and leaves all others to it, so whatever else a program asks of torch.cuda
goes on working.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memplan.applying.cuda_library import (
    COUNTERS,
    UNLIMITED,
    CudaReplay,
    Library,
    Place,
)
from memplan.applying.recompute import recompute_of
from memplan.applying.replan import Replanner
from memplan.applying.report import DeviceMemory, Report, make_report
from memplan.applying.suitability import check_plan
from memplan.core.plan import Plan
from memplan.core.tables import replay_arrays
from memplan.errors import EnvironmentUnfitError, UsageError
from memplan.recording.boundary import Boundaries
from memplan.recording.cuda_library import (
    library_path,
    require_known,
    take_slots,
)
from memplan.recording.shim import require_torch
from memplan.recording.usage import Spread, StepClock
from memplan.trace.steps import step_marks
from memplan.trace.trace import Mark
from memplan.units import format_bytes

MOST_STEPS = 4096  # whose times are kept; those after them are not
MAX_DEVICES = 64

_library: Library | None = None  # once it was loaded


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """A plan, and the stream it is for.

    device: its index; stream: 0 for the default stream, n for the n-th other one that
    asks for memory there. name: stands for the plan in messages.
    """

    plan: Plan
    device: int = 0
    stream: int = 0
    name: str = "the plan"


class CudaLoader:
    """Serves this process's CUDA tensors from plans, from `start` to `stop`.

    Each planned stream has an arena of its own, and no block in it is reused before
    every stream that used it is done. Requests that depart from their plan, or come on
    another stream, in a memory pool or under graph capture, are torch's to serve.
    """

    def __init__(
        self,
        plan: Plan,
        name: str = "the plan",
        *,
        device: int = 0,
        others: Sequence[StreamPlan] = (),
        replan: bool = True,
    ) -> None:
        """Check `plan`, of the default stream of `device`, and those of `others`.

        name: stands for the plan in messages. replan: make plans anew, while the
        program runs, where they do not fit. Raises InputError if a plan does not
        verify, has no program to replay, or was made for another device, UsageError
        for two plans of one stream.
        """
        self.plan = plan
        self._plans = (StreamPlan(plan, device, name=name), *others)
        for each in self._plans:
            check_plan(each.plan, each.name, "cuda")
        for (place, stream), count in Counter(
            (each.device, each.stream) for each in self._plans
        ).items():
            if count > 1:
                raise UsageError(
                    f"{count} plans are for device {place}, stream {stream}: give one"
                )
        self._recompute = recompute_of(plan, name)
        self._replan = replan
        self._replanners: list[Replanner] = []
        self._boundaries = Boundaries(self._step, step_marks(plan.provenance.program))
        self._clock = StepClock()
        self._device_clock: DeviceClock | None = None
        self._watching = threading.Lock()
        self._started = self._running = False
        self.fault = (
            ""  # why nothing is planned, if that showed only at CUDA's first use
        )

    def start(self) -> None:
        """Begin to serve: now if CUDA is in use, or as soon as it is.

        Raises EnvironmentUnfitError, with the reason, where that is not possible, and
        UsageError where another plan is in force.
        """
        torch = require_torch("applying a plan to CUDA")
        library = usable_library(torch)
        self._boundaries.start()
        self._started = self._running = True
        try:
            if torch.cuda.is_initialized():
                self._begin(torch, library)
            else:
                torch.cuda._lazy_call(lambda: self._begin_late(torch, library))
        except BaseException:
            self.stop()
            self._started = False
            raise
        if self._recompute is not None:
            self._recompute.start()

    def _begin_late(self, torch: Any, library: Library) -> None:
        """At the program's first use of CUDA: it goes on whatever comes of this."""
        if not self._running:
            return
        try:
            self._begin(torch, library)
        except EnvironmentUnfitError as failure:
            self.fault = str(failure)
            print(f"memplan: {failure}; the program runs without", file=sys.stderr)

    def _begin(self, torch: Any, library: Library) -> None:
        count = torch.cuda.device_count()
        for each in self._plans:
            if each.device >= count:
                raise EnvironmentUnfitError(
                    f"{each.name} is for GPU {each.device}, and there are {count}, "
                    "counted from 0; choose another device"
                )
        take_slots(library, torch)
        share_outside(torch, library)
        library.retire()
        for each in self._plans:
            run = each.plan.provenance.recorded_device
            if not each.plan.pays:
                under = format_bytes(run.planned_bytes)
                without = format_bytes(run.reserved_bytes)
                self.fault = (
                    f"torch would reserve {under} of GPU {each.device}, "
                    f"{without} without it"
                )
                continue
            place = Place(each.device, each.stream)
            library.load_plan(
                place,
                replay_arrays(each.plan),
                each.plan.arena_bytes,
                reserved=may_reserve(each.plan),
            )
            replay = CudaReplay(library, place)
            if self._replan and step_marks(each.plan.provenance.program):
                self._replanners.append(Replanner(each.plan, replay, replay.adopt))
        self._device_clock = DeviceClock(torch)
        library.serve(True)

    def stop(self) -> None:
        """Serve no more; blocks still alive stay where they are, and valid. Arenas go
        back to torch as they get empty."""
        if not self._running:
            return
        self._running = False
        if self._recompute is not None:
            self._recompute.stop()
        self._boundaries.stop()
        if _library is not None:
            _library.serve(False)
            self._stats = _stats_of(_library)
            _library.retire()
        for replanner in self._replanners:
            replanner.finish()

    def report(self) -> Report:
        """How it went so far, on all devices. Raises UsageError before `start`."""
        if not self._started or _library is None:
            raise UsageError("nothing to report: the loader was not started")
        devices = _stats_of(_library) if self._running else self._stats
        total: Counter[str] = Counter()
        for each in devices.values():
            total.update(each)
        hot = {name: total[f"hot_{name}"] for name in COUNTERS}
        warmup = {name: total[name] - hot[name] for name in COUNTERS}
        torch = require_torch("applying a plan to CUDA")
        seconds = self._device_clock.seconds() if self._device_clock else []
        return make_report(
            self.plan,
            hot,
            warmup,
            total["arena_bytes_peak"],
            self._clock,
            devices=devices,
            recompute=None if self._recompute is None else self._recompute.report(),
            recorded_devices={
                each.device: each.plan.provenance.recorded_device
                for each in reversed(self._plans)
            },
            device_memory={device: _memory_of(torch, device) for device in devices},
            device_seconds=Spread.of(seconds[len(seconds) // 2 :]),
            interrupted_requests=total["interrupted"],
            replans=tuple(one for each in self._replanners for one in each.replans),
            given_up=tuple(one for each in self._replanners for one in each.given_up),
            fault=self.fault,
        )

    def _step(self, mark: Mark) -> None:
        self._clock.note(mark)
        if _library is None or self._device_clock is None:
            return
        self._device_clock.note()
        if not self._watching.acquire(blocking=False):
            _library.next_step(mark)
            return
        try:
            for replanner in self._replanners:
                replanner.adopt_ready()
            _library.next_step(mark)
            for replanner in self._replanners:
                replanner.step_ended()
        finally:
            self._watching.release()


def may_reserve(plan: Plan) -> int:
    """Bytes that torch may reserve under `plan` before it would without it.

    The program is to come to the recorded bytes in any case; but not where steps vary.
    """
    if plan.varies:
        return 0
    return plan.provenance.recorded_device.reserved_bytes or UNLIMITED


def stats() -> dict[int, dict[str, int]]:
    """Bytes and counts of each CUDA device for which there is a plan, by its index.

    Of its arenas, beside what `torch.cuda.memory_stats` tells of all its memory, whose
    largest blocks they are. Raises UsageError where no CUDA plan was applied.
    """
    if _library is None:
        raise UsageError("no CUDA plan was applied in this process; ask torch.cuda")
    return _stats_of(_library)


def usable_library(torch: Any) -> Library:
    """Our library, when torch's allocator is one that it can stand in.

    Raises EnvironmentUnfitError with the reason if not. Uses no CUDA here: a release of
    torch that was not looked at is tried in a process of its own.
    """
    global _library  # noqa: PLW0603 - as there is one allocator for a process
    from memplan.native import _alloc

    if not getattr(torch.version, "cuda", None):
        raise EnvironmentUnfitError(
            f"a plan cannot be applied to CUDA: torch {torch.__version__} was built "
            "without it; install one with"
        )
    if not _finds_gpu(torch):
        raise EnvironmentUnfitError(
            "a plan cannot be applied to CUDA: torch finds no GPU it can use; check "
            "the driver with nvidia-smi"
        )
    library = _library or Library(library_path())
    require_known(library, torch)
    library.heed(_alloc.interruptions_address())
    _library = library
    return library


def _finds_gpu(torch: Any) -> bool:
    """Asked of NVML where there is one: a program may fork before it uses CUDA."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        return bool(torch.cuda.is_available())
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _stats_of(library: Library) -> dict[int, dict[str, int]]:
    every = {device: library.stats(device) for device in range(MAX_DEVICES)}
    return {device: found for device, found in every.items() if found}


def _memory_of(torch: Any, device: int) -> DeviceMemory:
    """By torch's own account, and the driver's."""
    stats = torch.cuda.memory_stats(device)
    free, whole = torch.cuda.mem_get_info(device)
    return DeviceMemory(
        stats.get("reserved_bytes.all.peak", 0),
        stats.get("allocated_bytes.all.peak", 0),
        whole - free,
        stats.get("num_device_alloc", 0),
        stats.get("num_device_free", 0),
    )


class DeviceClock:
    """Notes when the device comes to each step boundary; the host waits for nothing."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._events: list[Any] = []

    def note(self) -> None:
        """A step boundary is here. Under graph capture nothing is noted."""
        if len(self._events) >= MOST_STEPS:
            return
        cuda = self._torch.cuda
        with contextlib.suppress(RuntimeError):  # in the midst of somebody's program
            if not cuda.is_current_stream_capturing():
                event = cuda.Event(enable_timing=True)
                event.record()
                self._events.append(event)

    def seconds(self) -> list[float]:
        """Of each step between two boundaries. Waits for the last one."""
        if len(self._events) < 2:
            return []
        times = []
        with contextlib.suppress(
            RuntimeError
        ):  # a device that has failed tells nothing
            self._events[-1].synchronize()
            for before, after in zip(self._events, self._events[1:], strict=False):
                times.append(before.elapsed_time(after) / 1e3)
        return times


def share_outside(torch: Any, library: Library) -> None:
    """Have storages leave the arenas before they are shared; once is enough."""
    storage = torch.UntypedStorage
    share = storage._share_cuda_
    if getattr(share, "leaves_the_arena", False):
        return

    def share_cuda(self: Any, *arguments: Any) -> Any:
        """As torch has it, from a block of torch's own."""
        if self.nbytes() and library.holds(self.data_ptr()):
            _move_outside(self, library)
        return share(self, *arguments)

    share_cuda.leaves_the_arena = True  # type: ignore[attr-defined]
    storage._share_cuda_ = share_cuda


def _move_outside(storage: Any, library: Library) -> None:
    """Into a block of torch's own: resizing is how a storage gets another one."""
    size = storage.nbytes()
    library.interrupt()
    try:
        storage.resize_(size + 1)
        storage.resize_(size)
    finally:
        library.resume()
