"""What a model returns, taken apart into leaves and put together again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any

Rebuild = Callable[[list[Any]], Any]


def flatten(value: Any) -> tuple[list[Any], Rebuild]:
    """The leaves of a nest, in order, and what makes the same nest of others.

    Nests are those of torch's pytrees, and dataclasses that these do not know.
    """
    from torch.utils import _pytree as pytree

    tops, spec = pytree.tree_flatten(value)
    parts = [_taken_apart(each) for each in tops]
    ways = [(len(leaves), again) for leaves, again in parts]  # and no tensors

    def rebuild(leaves: list[Any]) -> Any:
        made, start = [], 0
        for count, again in ways:
            made.append(again(leaves[start : start + count]))
            start += count
        return pytree.tree_unflatten(made, spec)

    return [leaf for leaves, _ in parts for leaf in leaves], rebuild


def _taken_apart(leaf: Any) -> tuple[list[Any], Rebuild]:
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return [leaf], _first
    names = [each.name for each in dataclasses.fields(leaf)]
    found, again = flatten([getattr(leaf, name) for name in names])
    blank = copy.copy(leaf)
    for name in names:
        object.__setattr__(blank, name, None)

    def rebuild(leaves: list[Any]) -> Any:
        made = copy.copy(blank)
        for name, value in zip(names, again(leaves), strict=True):
            object.__setattr__(made, name, value)  # it may be frozen
        return made

    return found, rebuild


def _first(leaves: list[Any]) -> Any:
    return leaves[0]


def as_nested(pattern: Any) -> Callable[[Any], Any]:
    """What makes of any nest with as many leaves one as `pattern` is, whose tensors
    lie in memory as those of `pattern` do."""
    import torch

    if isinstance(pattern, torch.Tensor):
        strides = pattern.stride()
        return lambda value: laid_out(
            value if isinstance(value, torch.Tensor) else leaves_of(value)[0], strides
        )
    leaves, rebuild = flatten(pattern)
    wanted = [
        each.stride() if isinstance(each, torch.Tensor) else None for each in leaves
    ]
    del leaves

    def nested(value: Any) -> Any:
        found = leaves_of(value)
        if len(found) == len(wanted):
            found = [laid_out(*each) for each in zip(found, wanted, strict=True)]
        return rebuild(found)

    return nested


def laid_out(value: Any, strides: tuple[int, ...] | None) -> Any:
    """A tensor with these strides, but for dimensions of size 1: itself, or a copy."""
    import torch

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


def leaves_of(value: Any) -> list[Any]:
    """The leaves of a nest, in order."""
    return flatten(value)[0]


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest of what `change` makes of each tensor in it."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    leaves, rebuild = flatten(value)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return value
    return rebuild(
        [change(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    )


def unknown(leaves: Iterable[Any]) -> str:
    """The type of a leaf that is neither tensor nor plain value; "" if all are."""
    import torch

    known = (torch.Tensor, *PLAIN)
    return next(
        (type(leaf).__name__ for leaf in leaves if not isinstance(leaf, known)), ""
    )


PLAIN = (int, float, complex, bool, str, bytes, type(None))


def storages(values: Iterable[Any]) -> set[int]:
    """Addresses of the memory that the tensors among these nests lie in."""
    import torch

    return {
        leaf.untyped_storage().data_ptr()
        for value in values
        for leaf in leaves_of(value)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    }


def bytes_of(values: Iterable[Any], given: Collection[int]) -> int:
    """Bytes of the memory that these values lie in; at the addresses `given` there is
    memory that does not count."""
    import torch

    found = {}
    for value in values:
        for leaf in [value] if isinstance(value, torch.Tensor) else leaves_of(value):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                storage = leaf.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return sum(count for address, count in found.items() if address not in given)
