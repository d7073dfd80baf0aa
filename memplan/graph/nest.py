"""Nested results of a model: flattened to leaves, and rebuilt."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

Tensors = dict[str, torch.Tensor]  # by the names of arguments or values
Rebuild = Callable[[list[object]], object]


class Kind(NamedTuple):
    """The shape, torch.dtype and device of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Kind:
        """The kind of a tensor, real or fake."""
        return cls(tuple(map(int, tensor.shape)), tensor.dtype, str(tensor.device))

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{'×'.join(map(str, self.shape))} {dtype} on {self.device}"


def flatten(value: object) -> tuple[list[object], Rebuild]:
    """The leaves of a nest, in order, and a function that rebuilds it from others.

    Nests are those of torch's pytrees, and dataclasses that these do not know.
    """
    tops, spec = pytree.tree_flatten(value)
    parts = [_flatten_dataclass(each) for each in tops]
    ways = [(len(leaves), again) for leaves, again in parts]  # and no tensors

    def rebuild(leaves: list[object]) -> object:
        made, start = [], 0
        for count, again in ways:
            made.append(again(leaves[start : start + count]))
            start += count
        return pytree.tree_unflatten(made, spec)

    return [leaf for leaves, _ in parts for leaf in leaves], rebuild


def _flatten_dataclass(leaf: object) -> tuple[list[object], Rebuild]:
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return [leaf], _first
    names = [each.name for each in dataclasses.fields(leaf)]
    found, again = flatten([getattr(leaf, name) for name in names])
    blank = copy.copy(leaf)
    for name in names:
        object.__setattr__(blank, name, None)

    def rebuild(leaves: list[object]) -> object:
        made = copy.copy(blank)
        values: Any = again(leaves)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, value)  # it may be frozen
        return made

    return found, rebuild


def _first(leaves: list[object]) -> object:
    return leaves[0]


def as_nested(pattern: object) -> Callable[[object], object]:
    """A function that rebuilds any nest with as many leaves in the form of `pattern`,
    with the strides of its tensors."""
    if isinstance(pattern, torch.Tensor):
        strides = pattern.stride()
        return lambda value: laid_out(_only(value), strides)
    leaves, rebuild = flatten(pattern)
    wanted = [
        each.stride() if isinstance(each, torch.Tensor) else None for each in leaves
    ]
    del leaves

    def nested(value: object) -> object:
        found = leaves_of(value)
        if len(found) == len(wanted):
            found = [laid_out(*each) for each in zip(found, wanted, strict=True)]
        return rebuild(found)

    return nested


def _only(value: object) -> object:
    """A tensor, or the one leaf of a nest."""
    if isinstance(value, list | tuple) and len(value) == 1:  # quicker than a nest
        (value,) = value
    return value if isinstance(value, torch.Tensor) else leaves_of(value)[0]


def laid_out(value: object, strides: tuple[int, ...] | None) -> object:
    """A tensor with these strides, but for dimensions of size 1: itself, or a copy."""
    if strides is None or not isinstance(value, torch.Tensor):
        return value
    if value.stride() == strides or len(strides) != value.dim():
        return value
    shape = value.shape
    differ = any(
        size > 1 and stride != wanted
        for size, stride, wanted in zip(shape, value.stride(), strides, strict=True)
    )
    if not differ or overlapping(shape, strides):
        return value
    return torch.empty_strided(shape, strides, dtype=value.dtype).copy_(value)


def overlapping(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements share memory, as those of an expanded tensor do."""
    pairs = sorted(
        (stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1
    )
    reach = 0
    for stride, size in pairs:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def leaves_of(value: object) -> list[object]:
    """The leaves of a nest, in order."""
    return flatten(value)[0]


def changed(value: object, change: Callable[[object], object]) -> object:
    """The same nest with `change` applied to each tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    leaves, rebuild = flatten(value)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return value
    return rebuild(
        [change(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    )


def unknown(leaves: Iterable[object]) -> str:
    """The type of the first leaf that is neither a tensor nor a plain value, or ""."""
    known = (torch.Tensor, *PLAIN)
    return next(
        (type(leaf).__name__ for leaf in leaves if not isinstance(leaf, known)), ""
    )


PLAIN = (int, float, complex, bool, str, bytes, type(None))


def storages(values: Iterable[object]) -> set[int]:
    """Addresses of the storages of all tensors in these nests."""
    return {
        leaf.untyped_storage().data_ptr()
        for value in values
        for leaf in leaves_of(value)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    }


def bytes_of(values: Iterable[object], given: Collection[int]) -> int:
    """Bytes of the storages of these values, without those at the addresses `given`."""
    found = {}
    for value in values:
        for leaf in [value] if isinstance(value, torch.Tensor) else leaves_of(value):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                storage = leaf.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return sum(count for address, count in found.items() if address not in given)
