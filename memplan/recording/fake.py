"""Recording a program without the memory it asks for: under fake tensors.

The program runs unmodified, from its parameters to its optimizer's states, and every
storage it would have allocated is an event of the trace. No kernel runs. What is not
seen is what kernels ask for within themselves: their workspaces.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from memplan.core.plan import Program
from memplan.errors import RecordError
from memplan.recording import target
from memplan.recording.caching_allocator import GRANULARITY, CachingAllocator
from memplan.recording.fake_devices import Devices, patch_cuda
from memplan.recording.fake_ledger import CPU_ALIGNMENT, FakeLedger
from memplan.recording.fake_modes import Watch, watched
from memplan.recording.fake_values import KNOWN_NUMBERS, StandIns
from memplan.recording.gpus import FakeDevice
from memplan.recording.options import RecordOptions
from memplan.recording.shim import require_torch
from memplan.recording.sites import foreign_files
from memplan.recording.stats import run_stats
from memplan.recording.step_clock import StepClock
from memplan.trace.pieces import Summary
from memplan.trace.recovery import Written
from memplan.trace.reserved import ran_out
from memplan.trace.stacks import NO_STACK, Frame, StackTable
from memplan.trace.trace import Mark, Trace, TraceInfo
from memplan.trace.write import write_trace

_HERE = str(Path(__file__).parent / "fake")


class FakeEvents:
    """What this process would ask the device for, from `start` to `close`."""

    def __init__(self, path: Path, options: RecordOptions, device: FakeDevice) -> None:
        self._path, self._options, self._device = path, options, device
        self._clock = StepClock()
        self._context = contextlib.ExitStack()
        gpu = CachingAllocator(device.capacity) if device.is_gpu else None
        whole = options.stacks == "python"
        self._stacks = _Stacks(whole) if options.stacks != "none" else None
        where = self._stacks.here if self._stacks is not None else None
        self._ledger = FakeLedger(gpu, where)
        self._values = StandIns("")

    def prepare(self) -> None:
        """Nothing: modules and optimizers are not hooked."""

    def start(self) -> None:
        """Begin: from here on every tensor is fake. Raises EnvironmentUnfitError."""
        torch = require_torch("recording with fake tensors")
        folder = Path(torch.__file__).parent
        self._values.torch_folder = str(folder)
        if self._stacks is not None:
            self._stacks.foreign = (_HERE, *foreign_files(folder))
        devices = Devices(torch, self._ledger)
        watch = Watch(torch, self._ledger, self._values, devices)
        for patch in self._patches(torch, devices):
            self._context.enter_context(patch)
        self._context.enter_context(watched(watch))

    def mark(self, mark: Mark) -> int:
        """A step boundary is here; a digest of what was asked for before it."""
        self._clock.note(mark)
        return self._ledger.mark(mark)

    @property
    def events(self) -> int:
        """Recorded so far."""
        return len(self._ledger)

    def finish(self, mark: Mark) -> Written:
        """Write the trace, whose steps `mark` cuts.

        Raises RecordError if the program does what a fake recording cannot follow.
        """
        if self._values.refused is not None:
            raise RecordError(self._values.refused.reason)
        columns = self._ledger.columns()
        gpu = self._ledger.gpu
        if gpu is not None and not gpu.most_reserved and not ran_out(columns):
            raise RecordError(
                "the program put nothing on the GPU; record it with --device fake"
            )
        info = TraceInfo(
            program=Program(marks=mark.name.lower()),
            run=run_stats(self._clock.boundaries(), self._clock.steps),
            device="cpu" if gpu is None else "cuda",
            alignment=CPU_ALIGNMENT if gpu is None else GRANULARITY,
            stacks=self._options.stacks,
        )
        info = self._options.about(sys.modules["torch"], info)
        info = replace(info, producer=f"{info.producer}, of fake tensors")
        stacks = self._stacks.table if self._stacks is not None else StackTable()
        write_trace(Trace(columns, stacks, info), self._path)
        return Written(info, Summary.of(columns))

    def close(self) -> None:
        """Tensors are real again; harmless when nothing was started."""
        self._context.close()

    def notes(self) -> list[str]:
        """What the recording took for granted, and what it could not see."""
        notes = self._values.notes()
        gpu = self._ledger.gpu
        if gpu is not None:
            limit = "" if gpu.capacity is None else f" of {gpu.capacity:,}"
            notes.append(
                f"simulated: at most {gpu.most_reserved:,} bytes reserved{limit}, "
                f"{gpu.most_allocated:,} allocated; CUDA's own context is not in it"
            )
        return notes

    def _patches(self, torch: Any, devices: Devices) -> Iterator[Any]:
        """What of torch must be otherwise for tensors without contents."""
        from torch._subclasses import fake_tensor
        from torch.utils.data import DataLoader

        values = self._values
        loop = DataLoader._get_iterator
        begin = fake_tensor.FakeTensorMode.__init__

        def swap(first: Any, second: Any) -> None:
            first.data = second.data

        def save(*_: object, **__: object) -> None:
            values.others.setdefault(
                f"{values.here()}: nothing was saved; fake tensors have no contents"
            )

        def iterate(loader: Any) -> Any:
            # Worker processes would be fake, too, and could not send what they read.
            vars(loader).update(num_workers=0, prefetch_factor=None, timeout=0)
            vars(loader).update(persistent_workers=False, pin_memory=False)
            return loop(loader)

        def made(mode: Any, *args: Any, **kwargs: Any) -> None:
            caller = sys._getframe(1).f_code.co_filename
            if not caller.startswith((values.torch_folder, _HERE)):
                raise values.refuse(
                    f"{values.here()} uses FakeTensorMode itself: its tensors take no "
                    "memory, and are no measure of those that will; record a program "
                    "that makes real ones"
                )
            begin(mode, *args, **kwargs)

        yield mock.patch.object(torch.utils, "swap_tensors", swap)
        yield mock.patch.object(torch, "save", save)
        yield mock.patch.object(DataLoader, "_get_iterator", iterate)
        yield mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", KNOWN_NUMBERS)
        yield mock.patch.object(fake_tensor.FakeTensorMode, "__init__", made)
        yield mock.patch.dict(os.environ, {"TORCH_COMPILE_DISABLE": "1"})
        if "torch._dynamo.config" in sys.modules:
            config = sys.modules["torch._dynamo.config"]
            yield config.patch(disable=True)
        gpu = self._ledger.gpu
        if gpu is not None:
            told = property(devices.told)
            yield mock.patch.object(fake_tensor.FakeTensor, "device", told)
            yield from patch_cuda(torch, gpu, self._device.name)


class _Stacks:
    """The Python stack of each allocation, or its one line of the program, interned."""

    def __init__(self, whole: bool) -> None:
        """foreign: what the paths of files begin with that are not the program's."""
        self.table = StackTable()
        self.foreign: tuple[str, ...] = (_HERE,)
        self._whole = whole

    def here(self) -> int:
        """The index of what is running, without memplan's own frames."""
        frames: list[Frame] = []
        frame: FrameType | None = sys._getframe(1)
        passed_over = (_HERE,) if self._whole else self.foreign
        while frame is not None and frame.f_code.co_filename != target.__file__:
            file = frame.f_code.co_filename
            if not file.startswith(passed_over):
                frames.append(Frame(file, frame.f_lineno, frame.f_code.co_name))
                if not self._whole:
                    break
            frame = frame.f_back
        return self.table.intern(tuple(frames)) if frames else NO_STACK
