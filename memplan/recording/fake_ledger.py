"""Storages without memory behind them, as the events of a trace.

A storage's allocation is seen when an operator first returns it, its free when its
last tensor is gone. Addresses are made up: on the CPU each block has one of its own,
on a simulated GPU the simulated allocator's.
"""

from __future__ import annotations

import itertools
import time
import weakref
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from memplan.recording.caching_allocator import CachingAllocator, DeviceFullError
from memplan.trace.trace import Action, Columns, Mark

CPU_ALIGNMENT = 64  # bytes
_BASE = 1 << 32  # where made-up addresses begin
_NO_STACK = -1


class FakeLedger:
    """What is live of the device that is recorded, and all that happened to it.

    gpu: the simulated allocator, None where it is the CPU's memory that is recorded.
    Storages of the other device are followed, too, so that their copies are.
    """

    def __init__(
        self, gpu: CachingAllocator | None, stack: Callable[[], int] | None = None
    ) -> None:
        """stack: the index of the caller's stack, asked at every allocation."""
        self.gpu = gpu
        self.live = self.most_live = 0  # exact bytes
        self._stack = stack
        # Of id(storage): its weak reference, address or None, bytes, and if on the GPU.
        self._known: dict[int, tuple[Any, int | None, int, bool]] = {}
        self._places = itertools.count(_BASE, CPU_ALIGNMENT)
        self._columns = [array(code) for code in "qBBQqqi"]
        self._digest = 0

    def __len__(self) -> int:
        return len(self._columns[0])

    def note(self, storage: Any, on_gpu: bool, given: bool = False) -> None:
        """An operator returned `storage`; harmless where it is known and unchanged.

        given: it is not of the device's allocator: a file's, say. Raises
        DeviceFullError where the simulated device has no room for it.
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
        """A kernel of the CPU holds so many bytes each at once, and drops them."""
        if self.gpu is not None:
            return
        held = [(self._allocate(size), size) for size in sizes if size > 0]
        for address, size in reversed(held):
            self._freed(address, size)

    def on_gpu(self, storage: Any) -> bool:
        """Whether `storage` is on the simulated GPU."""
        known = self._known.get(id(storage))
        return known is not None and known[3]

    def mark(self, mark: Mark) -> int:
        """A step boundary is here; a digest of what was asked for since the last."""
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
        self.live += taken
        self.most_live = max(self.most_live, self.live)
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
        """Note the segments that the simulated allocator made and gave back."""
        if self.gpu is not None:
            for made, address, size in self.gpu.take_changes():
                action = Action.SEGMENT_ALLOC if made else Action.SEGMENT_FREE
                self._add(action, Mark.NONE, address, size, size, _NO_STACK)

    def _forget(self, key: int) -> None:
        _, address, size, _ = self._known.pop(key)
        if address is None:
            return
        if self.gpu is not None:
            size = self.gpu.free(address)
        self._freed(address, size)

    def _freed(self, address: int, size: int) -> None:
        self.live -= size
        self._add(Action.FREE_COMPLETED, Mark.NONE, address, size, size, _NO_STACK)

    def _where(self) -> int:
        return _NO_STACK if self._stack is None else self._stack()

    def _add(self, action: Action, mark: Mark, *row: int) -> None:
        values = (time.monotonic_ns(), action, mark, *row)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
