"""What the arguments of a call hold: tensors, and objects that calls may change.

A cache of keys and values is such an object: each layer of a model that is given one
adds its own.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_MOST = 4096  # values that are looked at in one argument
_DEEP = 32  # what lies deeper is shared by copies
_NO_COPY: Final = (TypeError, ValueError, AttributeError, RuntimeError)
# No state of a program's own, or none that is looked into.
_OPAQUE: Final = (
    *PLAIN,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
)


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors in a tensor, list, tuple, set, dict, or object with such attributes;
    each object once."""
    tensor = sys.modules["torch"].Tensor
    stack, seen = [value], set[int]()
    while stack and len(seen) < _MOST:
        each = stack.pop()
        if isinstance(each, tensor):
            yield each
        elif not isinstance(each, PLAIN) and id(each) not in seen:
            seen.add(id(each))
            stack += reversed(list(_parts(each).values()))


def is_object(value: Any) -> bool:
    """Whether `value` has attributes that are looked at here."""
    return bool(_attributes(value))


def copy_of(value: Any) -> Any:
    """A copy of containers and objects, with the very tensors and other values."""
    return _copy(value, {}, 0)


def alike(one: Any, other: Any) -> bool:
    """Whether `copy_of` of one is what it would be of the other: the same tensors in
    containers and objects of the same classes."""
    return _alike(one, other, set(), 0)


def _attributes(value: Any) -> dict[str, Any]:
    """Of an object of a class written in Python; torch's own have none."""
    kind = type(value)
    own = kind.__module__.partition(".")[0] in ("torch", "builtins")
    if own or isinstance(value, (*_OPAQUE, sys.modules["torch"].nn.Module)):
        return {}
    found = dict(getattr(value, "__dict__", ()))
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _parts(value: Any) -> dict[Any, Any]:
    """What a container or an object holds, by where it lies in it."""
    found: dict[Any, Any] = {}
    if isinstance(value, dict):
        found |= {("item", key): each for key, each in value.items()}
    elif isinstance(value, (list, tuple, set, frozenset)):
        found |= {("item", i): each for i, each in enumerate(value)}
    attributes = _attributes(value)
    return found | {("attribute", name): each for name, each in attributes.items()}


def _copy(value: Any, made: dict[int, Any], depth: int) -> Any:
    if id(value) in made or len(made) >= _MOST or depth > _DEEP:
        return made.get(id(value), value)
    if not _parts(value) and not isinstance(value, (list, dict, set)):
        return value
    if isinstance(value, (tuple, set, frozenset)):
        items = [_copy(each, made, depth + 1) for each in value]
        named = hasattr(value, "_fields")  # a namedtuple
        new = type(value)(*items) if named else type(value)(items)
        made[id(value)] = new
        return new
    try:
        new = copy.copy(value)
    except (*_NO_COPY, copy.Error):  # the object allows none
        return value
    made[id(value)] = new
    if isinstance(value, dict):
        for key, each in value.items():
            dict.__setitem__(new, key, _copy(each, made, depth + 1))
    elif isinstance(value, list):
        new[:] = [_copy(each, made, depth + 1) for each in value]
    for name, each in _attributes(value).items():
        object.__setattr__(new, name, _copy(each, made, depth + 1))
    return new


def _alike(one: Any, other: Any, seen: set[tuple[int, int]], depth: int) -> bool:
    if one is other and (depth > _DEEP or isinstance(one, _OPAQUE)):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, PLAIN):
        return bool(one == other)
    if (id(one), id(other)) in seen:
        return True
    seen.add((id(one), id(other)))
    parts, others = _parts(one), _parts(other)
    if not parts and not others and not isinstance(one, (list, dict, set, tuple)):
        return one is other
    return parts.keys() == others.keys() and all(
        _alike(part, others[key], seen, depth + 1) for key, part in parts.items()
    )
