"""One simulated GPU, for a torch that may have no CUDA at all.

Every tensor is a fake one of the CPU; which of them count as the GPU's is kept by
their storages. Where the program names the GPU, the call goes to the CPU and what it
makes is the GPU's; where it asks a tensor for its device, it is told so.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from memplan.recording.caching_allocator import CachingAllocator
from memplan.recording.fake_ledger import FakeLedger

_DOING_NOTHING = (
    "synchronize set_device manual_seed manual_seed_all seed seed_all init _lazy_init "
    "ipc_collect set_per_process_memory_fraction reset_accumulated_memory_stats"
)
_MOVES = ("to", "cuda", "cpu", "pin_memory", "type")


class Devices:
    """Where tensors are; simulated: whether there is a GPU at all."""

    def __init__(self, torch: Any, ledger: FakeLedger) -> None:
        self.torch, self.ledger = torch, ledger
        self.simulated = ledger.gpu is not None
        self._target: bool | None = None  # of what is made now; None: by the inputs
        if self.simulated:
            self._gpu = torch.device("cuda", 0)

    def place_of(self, inputs_on_gpu: bool) -> bool:
        """Whether what an operator makes now is the GPU's."""
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

    def told(self, tensor: Any) -> Any:
        """The device of a fake tensor, as the program is to see it: not torch itself,
        while it computes."""
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
        """Of `tensor.to(...)`: whether to the GPU, and what is left to say: dtypes."""
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
    """What `torch.cuda.get_device_properties` tells of the simulated GPU."""
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
    """Patches that make `torch.cuda` tell of the simulated GPU, and of none other."""
    told = properties(gpu, name)

    def nothing() -> Callable[..., None]:
        return lambda *_, **__: None  # one for each: torch's compiler tells them apart

    def reset(*_: Any) -> None:
        gpu.most_allocated, gpu.most_reserved = gpu.allocated, gpu.reserved

    def free(*_: Any) -> tuple[int, int]:
        return told.total_memory - gpu.reserved, told.total_memory

    def stats(*_: Any) -> Counter[str]:
        """What is simulated; of all else 0, where torch counts much more."""
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
    original = torch.amp.autocast_mode.autocast.__init__

    def autocast(self: Any, device_type: str, dtype: Any = None, *rest: Any, **more: Any
                 ) -> None:  # fmt: skip
        """The CPU's, to the type that the GPU's would cast to."""
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        original(self, device_type, dtype, *rest, **more)

    yield mock.patch.object(torch.amp.autocast_mode.autocast, "__init__", autocast)


class _Stream:
    """A stream or an event: all that is asked of it has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device_index = self.cuda_stream = 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """It ends nothing."""

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def elapsed_time(self, _: object) -> float:
        """Milliseconds; not 0, which programs divide by."""
        return 1.0

    def record(self, *_: object) -> None:
        """An event is recorded."""

    synchronize = wait = wait_event = wait_stream = record_event = record
