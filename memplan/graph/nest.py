"""Nested results of a model: flattened to leaves, and rebuilt."""

from __future__ import annotations

import argparse
import copyreg
import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from functools import partial
from types import MemberDescriptorType, SimpleNamespace
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


# Constants that are the same object in every result.
ATOMS = (torch.dtype, torch.device, torch.layout, torch.memory_format, type, Enum)
BASES = (OrderedDict, dict, list, object)
# What a class has to leave as its base defines it, to be copied attribute by attribute.
_COPYING = (
    *("__new__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__"),
    *("__getstate__", "__setstate__", "__copy__", "__deepcopy__"),
)


def flatten(value: object, whole: Collection[int] = ()) -> tuple[list[object], Rebuild]:
    """The leaves of a nest, in order, and a function that rebuilds it from others.

    Nests are those of torch's pytrees, dataclasses, and objects of classes in Python
    that are copied and pickled by their attributes, such as caches. A rebuilt nest has
    containers of its own; an object that stands in it twice does so again. whole: ids
    of objects that are leaves.
    """
    if isinstance(value, torch.Tensor):
        return [value], first
    leaves, spec = pytree.tree_flatten(value)
    quick = (torch.Tensor, float, str, type(None))  # an integer may be of a torch.Size
    if all(isinstance(each, quick) for each in leaves):
        return leaves, partial(pytree.tree_unflatten, treespec=spec)
    taken = _Taken(whole)
    again = taken.apart(value)
    return taken.leaves, lambda others: again(others, {})


def first(leaves: list[object]) -> object:
    """The first leaf: what rebuilds a tensor."""
    return leaves[0]


def objects_of(value: object) -> dict[int, object]:
    """The objects in a nest, beside torch's pytrees, by id."""
    leaves = pytree.tree_leaves(value)
    if all(isinstance(each, (torch.Tensor, *PLAIN)) for each in leaves):
        return {}
    taken = _Taken()
    taken.apart(value)
    return taken.objects


Again = Callable[[list[object], dict[int, object]], object]  # leaves, and what was made


class _Taken:
    """The leaves of nests that were taken apart, and the objects that held them."""

    def __init__(self, whole: Collection[int] = ()) -> None:
        self.leaves: list[object] = []
        self.objects: dict[int, object] = {}
        self._whole = whole
        self._nests: dict[int, object] = {}  # kept alive, so that ids stay theirs

    def apart(self, value: object) -> Again:
        """How to make the value again."""
        key = id(value)
        if key in self._nests:
            return lambda _, made: made[key]
        if isinstance(value, ATOMS):
            return lambda *_: value
        if isinstance(value, (torch.Tensor, *PLAIN)) or key in self._whole:
            return self._leaf(value)
        # By id: torch's function keeps what it is given until garbage is collected.
        children, spec = pytree.tree_flatten(value, lambda each: id(each) != key)
        if spec.is_leaf():
            return self._object(value)
        self._nests[key] = value
        ways = [self.apart(each) for each in children]
        size = isinstance(value, torch.Size)  # of which torch makes a tuple

        def again(leaves: list[object], made: dict[int, object]) -> object:
            parts = [way(leaves, made) for way in ways]
            new = torch.Size(parts) if size else pytree.tree_unflatten(parts, spec)
            made[key] = new
            return new

        return again

    def _leaf(self, value: object) -> Again:
        at = len(self.leaves)
        self.leaves.append(value)
        return lambda leaves, _: leaves[at]

    def _object(self, value: Any) -> Again:
        kind, key = type(value), id(value)
        base: Any = next(each for each in BASES if isinstance(value, each))
        if not _is_copied_by_attributes(value, base):
            return self._leaf(value)
        self._nests[key] = self.objects[key] = value
        own = {name: self.apart(each) for name, each in _attributes(value).items()}
        slots = [
            (slot, self.apart(slot.__get__(value)))
            for slot in slots_of(kind)
            if hasattr(value, slot.__name__)
        ]
        held = _items(base, value)
        items = [(name, self.apart(each)) for name, each in held]

        def again(leaves: list[object], made: dict[int, object]) -> object:
            new = made[key] = base.__new__(kind)
            if own:
                attributes = {name: way(leaves, made) for name, way in own.items()}
                vars(new).update(attributes)
            for slot, way in slots:
                slot.__set__(new, way(leaves, made))
            for name, way in items:
                if base is list:
                    list.append(new, way(leaves, made))
                else:
                    base.__setitem__(new, name, way(leaves, made))
            return new

        return again


def _is_copied_by_attributes(value: object, base: type) -> bool:
    """Whether attributes and items are all that makes up an object."""
    kind = type(value)
    if isinstance(value, torch.nn.Module) or kind in copyreg.dispatch_table:
        return False
    if not all(isinstance(key, (*PLAIN, *ATOMS)) for key, _ in _items(base, value)):
        return False
    own = [each for each in _COPYING if _of(kind, each) is not _of(base, each)]
    if own and not (dataclasses.is_dataclass(kind) and _only_state(own)):
        return False
    if base is object:
        try:
            object.__reduce_ex__(value, 4)  # it knows whether C code keeps more
        except TypeError:
            return False
    return True


def _only_state(names: list[str]) -> bool:
    """Whether these are what a frozen dataclass with slots defines."""
    return set(names) <= {"__getstate__", "__setstate__"}


def _of(kind: type, name: str) -> object:
    return getattr(kind, name, None)


def _attributes(value: object) -> dict[str, object]:
    return vars(value) if hasattr(value, "__dict__") else {}


def slots_of(kind: type) -> list[Any]:
    """The attributes that objects of a class hold outside their dictionary."""
    members = (each for base in kind.__mro__ for each in vars(base).items())
    return [
        each
        for name, each in members
        if isinstance(each, MemberDescriptorType) and name != "__dict__"
    ]


def _items(base: Any, value: Any) -> list[tuple[Any, object]]:
    """What a subclass of a container holds, by key or position."""
    if base is object:
        return []
    return list(enumerate(list.__iter__(value)) if base is list else base.items(value))


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
    """Why a result with these leaves cannot be rebuilt: the type of the first that is
    neither a tensor nor a plain value; "" if it can be."""
    known = (torch.Tensor, *PLAIN, torch.SymInt, torch.SymFloat, torch.SymBool)
    odd = (
        "sparse tensor" if isinstance(leaf, torch.Tensor) else type(leaf).__name__
        for leaf in leaves
        if not isinstance(leaf, known)
        or (isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided)
    )
    kind = next(odd, "")
    return kind and f"it returns a {kind}, which cannot be rebuilt"


LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy"} - {"__main__"}
RECORDS = SimpleNamespace | argparse.Namespace  # Python's own, of users' attributes


def is_library(value: Any) -> bool:
    """Whether a class or function is Python's, torch's or numpy's."""
    return str(value.__module__).partition(".")[0] in LIBRARIES


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
