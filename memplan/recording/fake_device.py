"""Simulated devices: their names and sizes, their storages, one GPU's behaviour.

Every tensor is a fake CPU tensor. The ledger records which storages count as the GPU's
and turns allocations and frees into events of a trace: a storage is allocated when an
operator first returns it and freed when its last tensor is gone. Addresses are made up,
on a GPU by the simulated caching allocator.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from memplan.errors import UsageError
from memplan.trace.caching_allocator import CachingAllocator, DeviceFullError
from memplan.trace.lives import CPU_ALIGNMENT
from memplan.trace.trace import Action, Category, Columns, Mark
from memplan.units import parse_memory

# GiB of device memory as the vendors state it; the driver keeps some of it.
GPUS = {
    "t4": 16,
    "v100": 32,
    "l4": 24,
    "l40s": 48,
    "a10": 24,
    "a100-40": 40,
    "a100": 80,
    "h100": 80,
    "h200": 141,
    "b200": 192,
    "rtx3090": 24,
    "rtx4090": 24,
    "rtx5090": 32,
}


@dataclass(frozen=True)
class FakeDevice:
    """The CPU, or a GPU of `capacity` bytes; None: unlimited."""

    is_gpu: bool
    name: str = "simulated GPU"
    capacity: int | None = None


def fake_device(text: str) -> FakeDevice | None:
    """The device named by `fake`, `fake:cuda` or `fake:cuda:NAME`; None for others.

    NAME: one of GPUS, or a size such as 24GiB. Raises UsageError for other names.
    """
    if text in ("fake", "fake:cpu"):
        return FakeDevice(is_gpu=False)
    if text == "fake:cuda":
        return FakeDevice(is_gpu=True)
    if not text.startswith("fake"):
        return None
    name = text.removeprefix("fake:cuda:")
    if name != text and name.lower() in GPUS:
        return FakeDevice(True, name, GPUS[name.lower()] << 30)
    if name != text and name[:1].isdigit():
        return FakeDevice(True, f"simulated GPU of {name}", parse_memory(name))
    raise UsageError(
        f"{text}: write fake, fake:cuda, fake:cuda:SIZE (24GiB) or one of "
        + ", ".join(f"fake:cuda:{known}" for known in GPUS)
    )


_BASE = 1 << 32  # where made-up addresses begin
_NO_STACK = -1


class FakeLedger:
    """The live storages of the recorded device, and its events.

    gpu: the simulated allocator; None for a CPU recording. The ledger also follows the
    other device's storages, so that it knows where copies go.
    """

    def __init__(
        self, gpu: CachingAllocator | None, stack: Callable[[], int] | None = None
    ) -> None:
        """stack: returns the index of the caller's stack, called per allocation."""
        self.gpu = gpu
        self._stack = stack
        # Of id(storage): its weak reference, address or None, bytes, and if on the GPU.
        self._known: dict[int, tuple[Any, int | None, int, bool]] = {}
        self._labels: dict[int, set[int]] = {}  # of live addresses
        self._places = itertools.count(_BASE, CPU_ALIGNMENT)
        self._columns = [array(code) for code in "qBBQqqi"]
        self._digest = 0

    def __len__(self) -> int:
        return len(self._columns[0])

    def note(self, storage: Any, on_gpu: bool, given: bool = False) -> None:
        """An operator returned `storage`; does nothing if it is known and unchanged.

        given: it is not the device allocator's (a file's, for example). Raises
        DeviceFullError if it does not fit the simulated device.
        """
        known = self._known.get(id(storage))
        size = storage.nbytes()
        if known is not None:
            if known[2] == size:
                return
            on_gpu, given = known[3], False
            self._forget(id(storage))
        of_device = on_gpu == (self.gpu is not None)
        counted = of_device and size > 0 and not given
        address = self._allocate(size) if counted else None
        key = id(storage)
        gone = weakref.ref(storage, lambda _: self._forget(key))
        self._known[key] = gone, address, size, on_gpu

    def scratch(self, sizes: tuple[int, ...]) -> None:
        """A CPU kernel allocates these sizes at once, then frees them."""
        if self.gpu is not None:
            return
        held = [(self._allocate(size), size) for size in sizes if size > 0]
        for address, size in reversed(held):
            self._freed(address, size)

    def address(self, storage: Any) -> int:
        """Where `storage` lies on the recorded device; 0 if it does not."""
        known = self._known.get(id(storage))
        return 0 if known is None or known[1] is None else known[1]

    def label(self, address: int, category: Category, stack: int) -> None:
        """The block at `address` holds that; stack: the index of one with its module.

        Does nothing for address 0, and what is noted already.
        """
        known = self._labels.setdefault(address, set())
        if address and category not in known:
            known.add(category)
            self._add(Action.LABEL, Mark.NONE, address, 0, category, stack)

    @property
    def began_ns(self) -> int:
        """Monotonic ns of the first event."""
        return self._columns[0][0] if len(self) else 0

    def on_gpu(self, storage: Any) -> bool:
        """Whether `storage` is on the simulated GPU."""
        known = self._known.get(id(storage))
        return known is not None and known[3]

    def mark(self, mark: Mark) -> int:
        """A step boundary; returns a digest of the requests since the last one."""
        self._add(Action.STEP, mark, 0, 0, 0, _NO_STACK)
        digest, self._digest = self._digest, 0
        return digest

    def out_of_memory(self, size: int, free: int) -> None:
        """A request for `size` bytes failed, when the device had `free` bytes."""
        self._add(Action.OOM, Mark.NONE, free, size, size, self._where())

    def columns(self) -> Columns:
        """The events so far."""
        names = ("time_ns", "action", "mark", "address", "size", "requested_size")
        arrays = [np.array(column) for column in self._columns]
        times = np.maximum.accumulate(arrays[0]) - arrays[0][:1]
        found = dict(zip((*names, "stack"), [times, *arrays[1:]], strict=True))
        return Columns.of(**found)

    def _allocate(self, size: int) -> int:
        taken = size
        if self.gpu is None:
            address = next(self._places)
        else:
            address, taken = self._on_gpu(size, self.gpu)
        # As a recording on the CPU has it: the exact bytes; on CUDA: rounded, both.
        self._add(Action.ALLOC, Mark.NONE, address, taken, taken, self._where())
        self._digest = hash((self._digest, taken)) or 1
        return address

    def _on_gpu(self, size: int, gpu: CachingAllocator) -> tuple[int, int]:
        try:
            found = gpu.allocate(size)
        except DeviceFullError as full:
            self.out_of_memory(full.requested, (gpu.capacity or 0) - gpu.reserved)
            raise
        finally:
            self.segments()
        return found

    def segments(self) -> None:
        """Record segments that the simulated allocator made and released."""
        if self.gpu is not None:
            for made, address, size in self.gpu.take_changes():
                action = Action.SEGMENT_ALLOC if made else Action.SEGMENT_FREE
                self._add(action, Mark.NONE, address, size, size, _NO_STACK)

    def _forget(self, key: int) -> None:
        _, address, size, _ = self._known.pop(key)
        if address is None:
            return
        self._labels.pop(address, None)
        if self.gpu is not None:
            size = self.gpu.free(address)
        self._freed(address, size)

    def _freed(self, address: int, size: int) -> None:
        self._add(Action.FREE_COMPLETED, Mark.NONE, address, size, size, _NO_STACK)

    def _where(self) -> int:
        return _NO_STACK if self._stack is None else self._stack()

    def _add(self, action: Action, mark: Mark, *row: int) -> None:
        values = (time.monotonic_ns(), action, mark, *row)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)


_DOING_NOTHING = (
    "synchronize set_device manual_seed manual_seed_all seed seed_all init _lazy_init "
    "ipc_collect set_per_process_memory_fraction reset_accumulated_memory_stats"
)
_MOVES = ("to", "cuda", "cpu", "pin_memory", "type")


class Devices:
    """The device of each tensor; simulated: whether there is a GPU."""

    def __init__(self, torch: Any, ledger: FakeLedger) -> None:
        self.torch, self.ledger = torch, ledger
        self.simulated = ledger.gpu is not None
        self._target: bool | None = None  # of what is made now; None: by the inputs
        self._default = False  # whether tensors are made on the GPU without a device
        if self.simulated:
            from torch.utils._device import _device_constructors

            self._gpu = torch.device("cuda", 0)
            self._constructors = _device_constructors()
            self._torchs_set_default = torch.set_default_device
            self._torchs_default = torch.get_default_device

    def set_default(self, device: Any) -> None:
        """`torch.set_default_device` of a program that has a GPU."""
        self._default = device is not None and self._names_gpu(device)
        self._torchs_set_default(None if self._default else device)

    def default(self) -> Any:
        """`torch.get_default_device` of such a program."""
        return self._gpu if self._default else self._torchs_default()

    def patch_defaults(self) -> Iterator[Any]:
        """Patches of the functions that set and tell the default device."""
        yield mock.patch.object(self.torch, "set_default_device", self.set_default)
        yield mock.patch.object(self.torch, "get_default_device", self.default)

    def place_of(self, inputs_on_gpu: bool) -> bool:
        """Whether an operator's results are on the GPU."""
        return inputs_on_gpu if self._target is None else self._target

    def call(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """`func` of a program that has a GPU."""
        if name == "__get__":
            return self._property(func, args)
        if name in _MOVES and args and isinstance(args[0], self.torch.Tensor):
            return self._move(func, name, args, kwargs)
        if name in ("is_pinned",):
            return False
        device = kwargs.get("device")
        if device is None:
            if self._default and self._target is None and func in self._constructors:
                with self._making(True):
                    return func(*args, **kwargs)
            return func(*args, **kwargs)
        on_gpu = self._names_gpu(device)
        with self._making(on_gpu):
            return func(*args, **{**kwargs, "device": "cpu" if on_gpu else device})

    @contextlib.contextmanager
    def _making(self, on_gpu: bool) -> Iterator[None]:
        before, self._target = self._target, on_gpu
        try:
            yield
        finally:
            self._target = before

    def _names_gpu(self, device: Any) -> bool:
        if isinstance(device, int):
            return True
        return bool(self.torch.device(device).type == "cuda")

    def _on_gpu(self, tensor: Any) -> bool:
        with self.torch._C.DisableTorchFunction():
            if tensor.layout is not self.torch.strided:
                return False
            return self.ledger.on_gpu(tensor.untyped_storage())

    def shown(self, tensor: Any) -> Any:
        """The device that the program sees; torch sees the real one in kernels."""
        if tensor.fake_mode.in_kernel_invocation:
            return self.torch.device("meta")
        torch_c = self.torch._C
        if torch_c._len_torch_function_stack() == 0 or (
            not torch_c._is_torch_function_mode_enabled()
        ):
            return tensor.fake_device
        return self._gpu if self._on_gpu(tensor) else tensor.fake_device

    def _property(self, func: Any, args: Any) -> Any:
        which = getattr(func, "__self__", None)
        tensor = self.torch.Tensor
        if which in (tensor.device, tensor.is_cuda, tensor.is_cpu) and args:
            on_gpu = self._on_gpu(args[0])
            if which is tensor.device:
                return self._gpu if on_gpu else func(*args)
            return on_gpu == (which is tensor.is_cuda)
        return func(*args)

    def _move(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        tensor, rest = args[0], list(args[1:])
        here = self._on_gpu(tensor)
        if name == "pin_memory":
            with self._making(False):
                return tensor.clone()
        if name in ("cuda", "cpu"):
            there, rest, kwargs = name == "cuda", [], {}
        elif name == "to":
            there, rest, kwargs = self._destination(here, rest, dict(kwargs))
        else:
            return func(*args, **kwargs)
        move = self.torch.Tensor.to
        if there == here:
            return move(tensor, *rest, **kwargs) if rest or kwargs else tensor
        kwargs["copy"] = True
        with self._making(there):
            return move(tensor, *(rest or [tensor.dtype]), **kwargs)

    def _destination(
        self, here: bool, rest: list[Any], kwargs: dict[str, Any]
    ) -> tuple[bool, list[Any], dict[str, Any]]:
        """Of `tensor.to(...)`: whether to the GPU, and the remaining dtypes."""
        there = here
        if isinstance(kwargs.get("other"), self.torch.Tensor):
            rest = [kwargs.pop("other"), *rest]
        if rest and isinstance(rest[0], self.torch.Tensor):
            there = self._on_gpu(rest[0])
            rest[0] = rest[0].dtype
        elif rest and isinstance(rest[0], str | int | self.torch.device):
            there = self._names_gpu(rest.pop(0))
        elif rest and rest[0] is None:
            rest.pop(0)
        if kwargs.get("device") is not None:
            there = self._names_gpu(kwargs["device"])
        kwargs.pop("device", None)
        kwargs.pop("non_blocking", None)
        dtypes = [value for value in rest if isinstance(value, self.torch.dtype)]
        if kwargs.get("dtype") is None:
            kwargs.pop("dtype", None)
        flags = [value for value in rest if isinstance(value, bool)]
        if len(flags) > 1:  # non_blocking, copy
            kwargs["copy"] = flags[1]
        return there, dtypes, kwargs


def properties(gpu: CachingAllocator, name: str) -> SimpleNamespace:
    """`torch.cuda.get_device_properties` of the simulated GPU."""
    return SimpleNamespace(
        name=name,
        major=8,
        minor=0,
        total_memory=gpu.capacity or 1 << 40,
        multi_processor_count=108,
        warp_size=32,
        max_threads_per_multi_processor=2048,
    )


def patch_cuda(torch: Any, gpu: CachingAllocator, name: str) -> Iterator[Any]:
    """Patches that make `torch.cuda` describe the simulated GPU."""
    told = properties(gpu, name)

    def nothing() -> Callable[..., None]:
        return lambda *_, **__: None  # distinct: torch.compile caches by function

    def reset(*_: Any) -> None:
        gpu.most_allocated, gpu.most_reserved = gpu.allocated, gpu.reserved

    def free(*_: Any) -> tuple[int, int]:
        return told.total_memory - gpu.reserved, told.total_memory

    def stats(*_: Any) -> Counter[str]:
        """Simulated figures; 0 for everything else that torch counts."""
        return Counter(
            {
                "allocated_bytes.all.current": gpu.allocated,
                "allocated_bytes.all.peak": gpu.most_allocated,
                "reserved_bytes.all.current": gpu.reserved,
                "reserved_bytes.all.peak": gpu.most_reserved,
            }
        )

    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: name,
        "get_device_properties": lambda *_: told,
        "get_device_capability": lambda *_: (told.major, told.minor),
        "is_bf16_supported": lambda *_, **__: True,
        "memory_allocated": lambda *_: gpu.allocated,
        "max_memory_allocated": lambda *_: gpu.most_allocated,
        "memory_reserved": lambda *_: gpu.reserved,
        "max_memory_reserved": lambda *_: gpu.most_reserved,
        "memory_stats": stats,
        "reset_peak_memory_stats": reset,
        "mem_get_info": free,
        "empty_cache": gpu.empty_cache,
        "current_stream": lambda *_: _Stream(),
        "default_stream": lambda *_: _Stream(),
        "stream": lambda *_: contextlib.nullcontext(),
        "device": lambda *_: contextlib.nullcontext(),
        "Stream": _Stream,
        "Event": type("Event", (_Stream,), {}),
    }
    for word in _DOING_NOTHING.split():
        answers[word] = nothing()
    for word, answer in answers.items():
        yield mock.patch.object(torch.cuda, word, answer)
    yield mock.patch.object(torch.backends.cudnn, "is_acceptable", lambda *_: False)
    original = torch.amp.autocast_mode.autocast.__init__

    def autocast(self: Any, device_type: str, dtype: Any = None, *rest: Any, **more: Any
                 ) -> None:  # fmt: skip
        """Autocast on the CPU, to the dtype the GPU would use."""
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        original(self, device_type, dtype, *rest, **more)

    yield mock.patch.object(torch.amp.autocast_mode.autocast, "__init__", autocast)


class _Stream:
    """A stream or an event on which everything is complete."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device_index = self.cuda_stream = 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Always complete."""
        return True

    def elapsed_time(self, _: object) -> float:
        """Milliseconds; not 0, because programs divide by it."""
        return 1.0

    def record(self, *_: object) -> None:
        """Do nothing."""

    synchronize = wait = wait_event = wait_stream = record_event = record
