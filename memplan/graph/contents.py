"""What a model's attributes hold, at any depth, and whether that has changed."""

from __future__ import annotations

import copy
import ctypes
import functools
import gc
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from memplan.graph.nest import ATOMS, PLAIN, RECORDS, is_library, slots_of
from memplan.native import _state

MOST = 20_000  # objects that are looked at, beside a model's own modules
WHOLE = 1 << 16  # bytes of an array that are compared; of larger ones, so many thrice

# Whose hooks put hidden states and attentions where the forward that returns them is.
COLLECTING = {"transformers.utils.output_capturing"}
# transformers' mark of a module with such hooks, and that of a model that was given to
# torch.compile.
MARKS = {"_output_capturing_hooks_installed", "_is_torch_compile"}
SEQUENCES = (list, set, deque, OrderedDict, bytearray)  # of which no version is known
Group = dict[Any, Any]


class Groups:
    """Dictionaries, whose items are to stay."""

    def __init__(
        self,
        whole: Iterable[Group],
        named: Iterable[tuple[Group, str]] = (),
        keys: Iterable[Group] = (),
    ) -> None:
        """whole: those of which all counts. named: items that count of others. keys:
        others, of which only the keys count, and not those of marks."""
        whole, named, keys = list(whole), list(named), list(keys)
        self._rows = [(group, name, group[name]) for group, name in named]
        self._rows += [(group, *item) for group in whole for item in group.items()]
        self._whole = [(group, tuple(group)) for group in whole]
        self._keys = [(group, tuple(group)) for group in keys]
        self._own = list(map(_own_keys, keys))
        held = [*whole, *keys, *(group for group, _ in named)]
        self._groups = list({id(each): each for each in held}.values())
        self._versions = _state.versions(self._groups)

    def same(self) -> bool:
        """Whether nothing has changed."""
        if _state.has_versions(self._groups, self._versions):
            return True
        now = _state.versions(self._groups)  # before, as other threads may change them
        held = _state.has_keys(self._whole) and _state.holds(self._rows)
        if not (held and self._has_keys()):
            return False
        self._versions = now
        return True

    def _has_keys(self) -> bool:
        """Whether those of which only the keys count have them, besides marks."""
        if _state.has_keys(self._keys):
            return True
        now = [(group, tuple(group)) for group, _ in self._keys]
        if [_own_keys(group) for group, _ in now] != self._own:
            return False
        self._keys = now
        return True


def _own_keys(group: Group) -> list[Any]:
    return [key for key, value in [*group.items()] if not is_mark(key, value)]


def is_mark(key: object, value: object) -> bool:
    """Whether an item among a module's attributes or hooks is one that libraries add to
    a model, which leaves it what it was."""
    if isinstance(key, int):
        return is_collecting(value)
    return key in MARKS and value is True


def is_collecting(hook: object) -> bool:
    """Whether a hook is a part of the model's forward, which uses what it collects."""
    if not isinstance(hook, types.FunctionType):
        return False
    return hook.__globals__.get("__name__") in COLLECTING  # those around it have others


class Types:
    """The classes of objects, and what users' classes and layers of torch define."""

    def __init__(self, owners: list[object]) -> None:
        self._owners, self._kinds = owners, list(map(type, owners))
        found = {each for kind in set(self._kinds) for each in kind.__mro__}
        groups = map(_defined, filter(_may_change, found))
        self._groups = Groups(each for each in groups if each is not None)

    def same(self) -> bool:
        """Whether objects are of the same classes, and these define what they did."""
        return list(map(type, self._owners)) == self._kinds and self._groups.same()


class Contents:
    """The containers, objects, arrays and tensors that values hold.

    Objects of classes of Python, torch and NumPy are not looked into, but containers
    are. modules: those that were met; they are not looked into, either. aliases: those
    of the model's `own` tensors that were met, which are not watched.
    """

    def __init__(self, own: Collection[int]) -> None:
        """own: ids of the tensors that modules of the model hold as theirs."""
        self.modules: list[nn.Module] = []
        self.aliases: list[torch.Tensor] = []
        self._own = own
        self._seen: dict[int, object] = {}  # kept alive, so that ids stay theirs
        self._classes: set[type] = set()
        self._left: deque[object] = deque()
        self._dicts: list[Group] = []
        self._objects: list[object] = []
        self._tensors: dict[str, torch.Tensor] = {}
        self._sequences: list[object] = []
        self._read: list[tuple[Any, object]] = []  # how, and of what
        self._bytes: list[tuple[int, bytes]] = []
        self._kept: list[object] = []

    def add(self, values: Iterable[object]) -> None:
        """Look into further values."""
        self._left.extend(values)
        while self._left and len(self._seen) < MOST:
            value = self._left.popleft()
            if not isinstance(value, PLAIN + ATOMS) and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._look(value)

    def add_class(self, kind: type) -> None:
        """Look into what a user's class defines, beside functions and descriptors."""
        if kind in self._classes:
            return
        self._classes.add(kind)
        for each in kind.__mro__:
            if not is_library(each):
                self._left.extend(
                    value
                    for name, value in vars(each).items()
                    if not name.startswith("__") and not hasattr(value, "__get__")
                )

    def close(self) -> None:
        """Take everything as it is now."""
        self._seen.clear()
        self._left.clear()
        self._types = Types(self._objects)
        self._groups = Groups(self._dicts)
        self._copies = list(map(copy.copy, self._sequences))
        self._were = [read(value) for read, value in self._read]
        self._rows = [row(self._tensors, name) for name in self._tensors]
        self._bytes += marks(self._tensors.values())

    def same(self) -> bool:
        """Whether all of it is as it was."""
        return (
            self._types.same()
            and self._groups.same()
            and equal(self._sequences, self._copies)
            and equal([read(value) for read, value in self._read], self._were)
            and _state.holds_tensors(self._rows)
            and _state.has_bytes(self._bytes)  # of memory that is still there, then
        )

    def _look(self, value: Any) -> None:
        if isinstance(value, nn.Module):
            self.modules.append(value)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif type(value) is np.ndarray:
            self._array(value)
        elif isinstance(value, tuple | frozenset):
            self._left.extend(value)
        elif isinstance(value, types.MethodType):
            self._left.append(value.__self__)
        elif isinstance(value, functools.partial):
            self._left += [value.func, value.args, value.keywords]
        else:
            kind = next((each for each in SEQUENCES if isinstance(value, each)), None)
            if kind is not None:
                self._sequence(kind, value)
            elif isinstance(value, dict):
                self._dicts.append(value)
                self._left.extend(dict.values(value))
            if isinstance(value, RECORDS) or not is_library(type(value)):
                self._object(value)

    def _sequence(self, kind: Any, value: Any) -> None:
        if kind is OrderedDict:
            self._left.extend(dict.values(value))
        elif kind is not bytearray:
            self._left.extend(kind.__iter__(value))
        if type(value) is kind:
            self._sequences.append(value)
        elif kind is OrderedDict:
            self._read.append((_items, value))
        else:  # by the kind's own method: a subclass's may make what it returns
            self._read.append((lambda each: list(kind.__iter__(each)), value))

    def _object(self, value: object) -> None:
        self._objects.append(value)
        self.add_class(type(value))
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            self._dicts.append(own)
            self._left.extend(own.values())
        if slots := slots_of(type(value)):
            read = functools.partial(_filled, slots)
            self._read.append((read, value))
            self._left.extend(read(value))

    def _tensor(self, value: torch.Tensor) -> None:
        if id(value) in self._own:
            self.aliases.append(value)
        elif is_watched(value):
            self._tensors[str(len(self._tensors))] = value

    def _array(self, value: Any) -> None:
        self._read.append((operator.attrgetter("__array_interface__"), value))
        while type(value.base) is np.ndarray:
            value = value.base
        if value.flags.forc and value.nbytes:
            place, size = value.ctypes.data, value.nbytes
            starts = 0, size // 2, size - WHOLE
            pieces = [(0, size)] if size <= WHOLE else [(x, WHOLE) for x in starts]
            self._bytes += [
                (place + at, ctypes.string_at(place + at, min(count, size - at)))
                for at, count in pieces
            ]
        if value.dtype.hasobject:
            self._left.extend(value.flat)
            self._kept.append(value.copy())  # no other object gets their addresses


def _items(value: OrderedDict[object, object]) -> list[tuple[object, object]]:
    return list(OrderedDict.items(value))


def _filled(slots: list[Any], value: object) -> list[object]:
    """What an object's slots hold; the slot itself for an empty one."""
    return [_slot(each, value) for each in slots]


def _slot(slot: Any, value: object) -> object:
    try:
        return slot.__get__(value)
    except AttributeError:
        return slot


def _may_change(kind: type) -> bool:
    """Whether it is a user's class or a layer: `nn.Module` itself is patched by
    tracing, and by what answers for parts of a model."""
    return kind is not nn.Module and (
        issubclass(kind, nn.Module) or not is_library(kind)
    )


def _defined(kind: type) -> Group | None:
    """The dictionary of a class, of which `vars` gives a view."""
    found = gc.get_referents(vars(kind))
    return found[0] if len(found) == 1 and isinstance(found[0], dict) else None


def equal(now: object, then: object) -> bool:
    """Whether two nests of containers are equal."""
    try:  # what is the same object is not compared, and that is nearly all
        return bool(now == then)
    except (RuntimeError, ValueError, TypeError):
        return False  # arrays and tensors, and other ones


def is_watched(value: object) -> bool:
    """Whether it is a tensor of which a version and an address can be asked."""
    if type(value) not in (torch.Tensor, nn.Parameter):
        return False
    return value.layout == torch.strided and not value.is_inference()  # type: ignore[attr-defined]


def row(group: dict[str, torch.Tensor], name: str) -> _state.Row:
    """A tensor in a dictionary as it is, for `holds_tensors`."""
    tensor = group[name]
    where = tensor._version, tensor.data_ptr()
    return group, name, tensor, *where, tensor.shape, tensor.stride() or None


def marks(tensors: Iterable[torch.Tensor]) -> list[tuple[int, bytes]]:
    """Where two elements lie of each weight with dimensions or buffer on the CPU, and
    what they are."""
    places = [
        (each.data_ptr() + at * each.element_size(), each.element_size())
        for each in tensors
        if each.numel() > 1
        and each.device.type == "cpu"
        and (each.dim() > 1 or not isinstance(each, nn.Parameter))
        for at in (0, _middle(each))
    ]
    return [(place, ctypes.string_at(place, size)) for place, size in places]


def _middle(tensor: torch.Tensor) -> int:
    """How many elements a tensor's middle one lies behind its first."""
    middle = [size // 2 for size in tensor.shape]
    strides = zip(middle, tensor.stride(), strict=True)
    return sum(at * stride for at, stride in strides)
