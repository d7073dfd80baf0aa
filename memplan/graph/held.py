"""Results of a call that lie in its arena, until the caller lets go of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class _View(NamedTuple):
    """Where a result lies in a part: offset and strides in elements."""

    root: str
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]


class HeldResults:
    """Results of a tape that lie in its arena, as tensors for the caller.

    They are no views of the arena: their storages are made in every call, and keep the
    arena's memory. So each of them tells whether anybody still holds it.
    """

    def __init__(self) -> None:
        self._parts: dict[str, Tensor] = {}  # bytes of the arena, by root
        self._views: dict[str, _View] = {}

    def add(self, name: str, result: Tensor, root: str, part: Tensor) -> None:
        """part: the bytes of the storage `root`, in which `result` lies."""
        item = result.element_size()
        start = result.storage_offset() * item - part.storage_offset()
        form = start // item, result.shape, result.stride()
        self._parts[root] = part
        self._views[name] = _View(root, result.dtype, *form)

    def __contains__(self, name: str) -> bool:
        return name in self._views

    def __len__(self) -> int:
        return len(self._views)

    def tensors(self) -> tuple[dict[str, Tensor], list[StorageWeakRef]]:
        """The results by name, and references to their storages."""
        storages = {}
        for root, part in self._parts.items():
            capsule = torch._C._to_dlpack(part)
            storages[root] = torch._C._from_dlpack(capsule).untyped_storage()
        results = {
            name: torch.empty(0, dtype=dtype).set_(storages[root], *place)
            for name, (root, dtype, *place) in self._views.items()
        }
        return results, [StorageWeakRef(each) for each in storages.values()]
