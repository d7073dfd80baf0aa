"""Recording a program under fake tensors, without allocating memory.

The program runs unmodified, from its parameters to its optimizer state, and every
storage it would allocate becomes an event of the trace. No kernel runs, so the trace
lacks kernels' workspaces, except those of CPU convolutions.

The program runs under three nested modes. The outer one sees torch's functions as the
program calls them and supplies stand-in values and devices. The middle one sees the
operators they dispatch to and the storages these return. The inner one is torch's
FakeTensorMode, which computes shapes.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from memplan.core.plan import Program
from memplan.errors import RecordError, as_options
from memplan.recording.activations import Activations, of_storage
from memplan.recording.fake_device import (
    Devices,
    FakeDevice,
    FakeLedger,
    patch_cuda,
)
from memplan.recording.fake_kernels import NONE, at_most, workspace
from memplan.recording.fake_sites import FakeSites
from memplan.recording.fake_values import (
    KNOWN_NUMBERS,
    WITH_VALUES,
    WITHOUT_GPU,
    StandIns,
    unknown_in,
)
from memplan.recording.holders import HolderWatch
from memplan.recording.options import RecordOptions
from memplan.recording.shim import require_torch, watch_fake_modes
from memplan.recording.usage import StepClock, run_stats
from memplan.trace.caching_allocator import CachingAllocator, DeviceFullError
from memplan.trace.importers.snapshot_history import GRANULARITY
from memplan.trace.lives import CPU_ALIGNMENT, Summary
from memplan.trace.recovery import Written
from memplan.trace.reserved import ran_out
from memplan.trace.stacks import StackTable
from memplan.trace.trace import Category, Mark, Trace, TraceInfo
from memplan.trace.write import write_trace

_HERE = str(Path(__file__).parent / "fake")


class FakeEvents:
    """The requests this process would make, from `start` to `close`."""

    def __init__(self, path: Path, options: RecordOptions, device: FakeDevice) -> None:
        self._path, self._options, self._device = path, options, device
        self._clock = StepClock()
        self._context = contextlib.ExitStack()
        gpu = CachingAllocator(device.capacity) if device.is_gpu else None
        self._sites = (
            FakeSites(options.stacks == "python", self._label)
            if options.stacks != "none"
            else None
        )
        where = self._sites.here if self._sites is not None else None
        self._ledger = FakeLedger(gpu, where)
        self._values = StandIns("")
        self._watch = HolderWatch(self._ledger.address, self._ledger.__len__)
        self._activations = (
            Activations(self._ledger.address, fake=True)
            if options.activations
            else None
        )

    def prepare(self) -> None:
        """Call this before anything else hooks optimizers; `close` undoes it."""
        if self._sites is not None:
            self._sites.prepare()

    def start(self) -> None:
        """Make every tensor fake from here on. Raises EnvironmentUnfitError."""
        torch = require_torch("recording with fake tensors")
        folder = Path(torch.__file__).parent
        self._values.torch_folder = str(folder)
        devices = Devices(torch, self._ledger)
        watch = Watch(torch, self._ledger, self._values, devices)
        for patch in self._patches(torch, devices):
            self._context.enter_context(patch)
        self._context.enter_context(watched(watch))
        if self._sites is not None:
            self._sites.start(torch)
        if self._options.names_holders:
            self._watch.start()
        if self._activations is not None:
            self._activations.start()

    def mark(self, mark: Mark) -> int:
        """A step boundary; returns a digest of the requests since the last one."""
        self._clock.note(mark)
        return self._ledger.mark(mark)

    @property
    def events(self) -> int:
        """Number of events so far."""
        return len(self._ledger)

    def finish(self, mark: Mark) -> Written:
        """Write the trace, whose steps `mark` delimits.

        Raises RecordError if the program did what a fake recording cannot follow.
        """
        if self._activations is not None:
            self._activations.stop()
        if self._sites is not None:
            self._sites.stop()
        if self._values.refused is not None:
            reason = self._values.refused.reason
            raise RecordError(reason, shell=as_options(reason))
        columns = self._ledger.columns()
        gpu = self._ledger.gpu
        if gpu is not None and not gpu.most_reserved and not ran_out(columns):
            text = f"the program allocated nothing on the GPU; {WITHOUT_GPU}"
            raise RecordError(text, shell=as_options(text))
        info = TraceInfo(
            program=Program(marks=mark.name.lower()),
            run=run_stats(self._clock.boundaries(), self._clock.steps),
            device="cpu" if gpu is None else "cuda",
            alignment=CPU_ALIGNMENT if gpu is None else GRANULARITY,
            stacks=self._options.stacks,
        )
        if self._options.names_holders:
            info = self._watch.noted(info, self._ledger.began_ns)
        info = self._options.about(sys.modules["torch"], info)
        info = replace(info, producer=f"{info.producer}, of fake tensors")
        stacks = self._sites.table if self._sites is not None else StackTable()
        noted = self._activations
        calls = None if noted is None else noted.result(self._ledger.began_ns)
        write_trace(Trace(columns, stacks, info, calls), self._path)
        return Written(info, Summary.of(columns))

    def close(self) -> None:
        """Restore real tensors; does nothing if not started."""
        self._watch.close()
        if self._sites is not None:
            self._sites.close()
        self._context.close()

    def _label(self, tensor: Any, category: Category, stack: int) -> None:
        self._ledger.label(of_storage(tensor, self._ledger.address), category, stack)

    def notes(self) -> list[str]:
        """The assumptions of the recording, and what it could not see."""
        notes = self._values.notes() + self._watch.notes()
        gpu = self._ledger.gpu
        if gpu is not None:
            limit = "" if gpu.capacity is None else f" of {gpu.capacity:,}"
            notes.append(
                f"simulated: at most {gpu.most_reserved:,} bytes reserved{limit}, "
                f"{gpu.most_allocated:,} allocated, without CUDA's own context"
            )
        return notes

    def _patches(self, torch: Any, devices: Devices) -> Iterator[Any]:
        """Patches of torch for tensors without contents."""
        from torch._subclasses import fake_tensor
        from torch.utils.data import DataLoader

        values = self._values
        loop = DataLoader._get_iterator

        def swap(first: Any, second: Any) -> None:
            first.data = second.data

        def save(*_: object, **__: object) -> None:
            values.others.setdefault(
                f"{values.here()}: saved nothing, because fake tensors have no contents"
            )

        def iterate(loader: Any) -> Any:
            # Fake tensors of worker processes could not be sent back.
            vars(loader).update(num_workers=0, prefetch_factor=None, timeout=0)
            vars(loader).update(persistent_workers=False, pin_memory=False)
            return loop(loader)

        def refuse(_: str) -> None:
            raise values.refuse(
                f"{values.here()} uses FakeTensorMode itself, so its tensors never "
                "take memory; record a program that makes real ones"
            )

        yield mock.patch.object(torch.utils, "swap_tensors", swap)
        yield mock.patch.object(torch, "save", save)
        yield mock.patch.object(DataLoader, "_get_iterator", iterate)
        yield mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", KNOWN_NUMBERS)
        yield watch_fake_modes(refuse, _HERE)
        yield mock.patch.dict(os.environ, {"TORCH_COMPILE_DISABLE": "1"})
        if "torch._dynamo.config" in sys.modules:
            config = sys.modules["torch._dynamo.config"]
            yield config.patch(disable=True)
        gpu = self._ledger.gpu
        if gpu is not None:
            shown = property(devices.shown)
            yield mock.patch.object(fake_tensor.FakeTensor, "device", shown)
            yield from patch_cuda(torch, gpu, self._device.name)
            yield from devices.patch_defaults()


_TRUE, _FALSE = ("isfinite", "isreal"), ("isnan", "isinf", "isneginf", "isposinf")
_KEEPING = ("all", "any", "logical_and", "logical_or", "clone", "detach", "reshape")
_NEGATING = ("logical_not", "bitwise_not", "__invert__")
_COMPARING = ("equal", "allclose", "is_nonzero")
_DRAWN = ("randint", "randperm")
_NUMBERS = ("item", "__float__", "__int__", "__index__", "__bool__", "__complex__")


class Watch:
    """What the modes share: ledger, stand-in values and devices."""

    def __init__(
        self, torch: Any, ledger: FakeLedger, values: StandIns, devices: Devices
    ) -> None:
        self.torch, self.ledger = torch, ledger
        self.values, self.devices = values, devices

    def call(self, mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one of torch's functions, as the program calls it."""
        name = getattr(func, "__name__", "")
        if func is self.torch.Tensor.backward:
            with mode:  # recomputed functions are the program's, too
                return self._backward(*args, **kwargs)
        if name in _READING and args and self._is_fake(args[0]):
            return self._read(name, args)
        if name in _COMPARING:
            self.values.read.setdefault(self.values.here(), "taken as False")
            return False
        unknown = unknown_in(args) or (unknown_in(kwargs.values()) if kwargs else None)
        if unknown is not None and name in _SIZED.split():
            raise self.values.refuse(
                f"{self.values.here()}: the size of a tensor depends on a value read "
                f"at {unknown.what}, which a fake tensor does not have; "
                f"{WITH_VALUES}, or use a fixed size"
            )
        if name == "lstm" and not self.devices.simulated:
            note = f"{self.values.here()}: the workspace of an LSTM is not counted"
            self.values.others.setdefault(note)
        if name in _DRAWN and (known := self._drawn(func, args, kwargs)) is not None:
            return known
        if self.devices.simulated:
            result = self.devices.call(func, name, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if name == "randperm":
            result._memplan_permutation = True
        elif name in _TRUTHS:
            self._mark_truth(name, args, result)
        return result

    def _backward(
        self,
        tensor: Any,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        graph = retain_graph, create_graph
        self.torch.autograd.backward(tensor, gradient, *graph, inputs=inputs)

    def _drawn(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A few random integers, such as lengths of sentences, with their real values.

        Sizes that depend on them are then known. None for many.
        """
        from torch.utils._python_dispatch import _disable_current_modes

        if kwargs.get("out") is not None or kwargs.get("device") is not None:
            return None
        shape = kwargs.get("size", args[-1] if args else ())
        wanted = math.prod(shape) if isinstance(shape, tuple | list) else 0
        if func is self.torch.randperm:
            wanted = int(args[0]) if args else 0
        if not 0 < wanted <= KNOWN_NUMBERS:
            return None
        with _disable_current_modes():
            real = func(*args, **kwargs)
            values, dtype = real.tolist(), real.dtype
        return self.torch.tensor(values, dtype=dtype)

    def _is_fake(self, value: object) -> bool:
        return hasattr(value, "fake_mode")

    def _read(self, name: str, args: Any) -> Any:
        tensor = args[0]
        with self.torch._C.DisableTorchFunction():
            if name == "tolist":
                return self.values.values(tensor, self.torch)
            if name in ("numpy", "__array__"):
                return self.values.array(tensor, self.torch)
            if name == "__format__":
                if tensor.dim():
                    return repr(tensor)
                return format(self.values.scalar(tensor, self.torch), *args[1:])
            value = self.values.scalar(tensor, self.torch)
        convert = {
            "__float__": float,
            "__int__": int,
            "__bool__": bool,
            "__complex__": complex,
            "__index__": int,
        }
        return convert[name](value) if name in convert else value

    def _mark_truth(self, name: str, args: Any, result: Any) -> None:
        truth: bool | None = None
        if name in _TRUE or name in _FALSE:
            truth = name in _TRUE
        elif args:
            known = [getattr(arg, "_memplan_truth", None) for arg in args]
            truth = next((value for value in known if value is not None), None)
            if truth is not None and name in _NEGATING:
                truth = not truth
        if truth is not None and self._is_fake(result):
            result._memplan_truth = truth

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operator and record the storages it made."""
        with self.torch._C.DisableTorchFunction():
            tensors = list(_tensors(args, self.torch.Tensor))
            tensors += _tensors(kwargs.values(), self.torch.Tensor)
            if func is self.torch.ops.aten._local_scalar_dense.default:
                value = self.values.scalar(tensors[0], self.torch)
                return int(value) if type(value) not in (bool, float) else value
            result = self._run(func, args, kwargs)
            storages = map(_storage, tensors)
            on_gpu = self.devices.place_of(any(map(self.ledger.on_gpu, storages)))
            # A view of a real tensor, such as a file's, allocates nothing.
            real = [each for each in tensors if not self._is_fake(each)]
            given = func.is_view and bool(real) and not self._is_new(func, real)
            self._made(func, args, result, on_gpu, given)
            return result

    def _is_new(self, func: Any, real: list[Any]) -> bool:
        """Whether these were made for this call, as those of `torch.tensor`; it gives
        arrays of numpy, which it only looks at, a storage that cannot grow."""
        if func is not self.torch.ops.aten.lift_fresh.default:
            return False
        return all(_storage(each).resizable() for each in real)

    def _made(
        self, func: Any, args: Any, result: Any, on_gpu: bool, given: bool
    ) -> None:
        """Record the storages of an operator's results and its workspaces."""
        held = NONE if on_gpu else workspace(self.torch, func, args, result)
        results = result if isinstance(result, tuple | list) else (result,)
        for i, one in enumerate(results):
            made = list(_tensors((one,), self.torch.Tensor))
            if made and i < len(held.before):
                self.ledger.scratch(held.before[i])
            for tensor in made:
                self._note(_storage(tensor), on_gpu, given)
            if made and i < len(held.after):
                self.ledger.scratch(held.after[i])

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        from torch._subclasses.fake_tensor import (
            DataDependentOutputException,
            DynamicOutputShapeException,
        )

        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            here = self.values.here()
            result = at_most(self.torch, func, args, kwargs)
            if result is None:
                raise self.values.refuse(
                    f"{here}: the shape of the result of {func.name().split('::')[-1]} "
                    "depends on values, which fake tensors do not have; "
                    f"{WITH_VALUES}"
                ) from error
            note = f"{here}: a selection depends on values; taken as all elements"
            self.values.others.setdefault(note)
            return result

    def _note(self, storage: Any, on_gpu: bool, given: bool) -> None:
        try:
            self.ledger.note(storage, on_gpu, given)
        except DeviceFullError as full:
            capacity = self.ledger.gpu.capacity if self.ledger.gpu else 0
            raise self.torch.OutOfMemoryError(
                f"CUDA out of memory (simulated): tried to allocate {full.requested} "
                f"bytes on a device of {capacity}"
            ) from None


_READING = (*_NUMBERS, "tolist", "numpy", "__array__", "__format__")
_TRUTHS = (*_TRUE, *_FALSE, *_KEEPING, *_NEGATING)
_SIZED = (
    "arange empty full linspace new_empty new_full new_ones new_zeros ones rand "
    "randint randn randperm zeros expand narrow repeat repeat_interleave reshape "
    "resize_ split tile unfold view __getitem__ pad interpolate one_hot topk eye "
    "broadcast_to chunk normal tril_indices triu_indices "
)


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage()


def _tensors(values: Any, kind: Any) -> Iterator[Any]:
    """The tensors among an operator's arguments or results, also inside lists."""
    for value in values:
        if isinstance(value, kind):
            if value.layout is not None and not value.is_sparse:
                yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value, kind)


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Run a block under the three modes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Fake(FakeTensorMode):  # type: ignore[misc]
        avoid_device_init = True  # whatever the simulated device says

    class Operators(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return watch.dispatch(func, args, kwargs or {})

    class Functions(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return watch.call(self, func, args, kwargs or {})

    with Fake(allow_non_fake_inputs=True), Operators(), Functions():
        yield
