"""What modules' own attributes hold, so that it can be put back.

Plain values, containers and objects of such, and generators: what a forward call
changes of these, a second one is to find as the first one did.
"""

from __future__ import annotations

import functools
import operator
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memplan.recording.activations import SMALL, bytes_of, version_of
from memplan.recording.held import PLAIN, is_object

_CONTAINERS = (OrderedDict, dict, list, set, tuple, deque)
_MOST_IN_CONTAINER = 1024  # a longer one is left alone


@functools.cache
def torchs_own() -> frozenset[str]:
    """What torch.nn.Module itself keeps in a module, but for its mode."""
    return frozenset(vars(sys.modules["torch"].nn.Module())) - {"training"}


def plain_attributes(module: Any) -> dict[str, Any]:
    """A module's own attributes that are plain values, copies of its containers and
    objects of such, states of its generators, and tensors of at most SMALL bytes:
    larger ones are not to be held."""
    tensor = sys.modules["torch"].Tensor
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name in torchs_own():
            continue
        if isinstance(value, PLAIN):
            found[name] = value
        elif isinstance(value, tensor):
            if bytes_of(value) <= SMALL:
                found[name] = value
        else:
            copied = _State.of(value)
            if copied is not None and copied.is_plain:
                found[name] = value, copied
    return found


def all_attributes(module: Any) -> dict[str, Any]:
    """A module's own attributes, and copies of what holds others or has a state."""
    return {
        name: (value, _State.of(value))
        for name, value in vars(module).items()
        if name not in torchs_own()
    }


@dataclass(frozen=True, eq=False)
class _State:
    """What a container or an object holds, or a generator is at; each None where there
    is none. items: values, or pairs if it is a dictionary; attributes: its own; drawn:
    of a generator."""

    items: list[Any] | None = None
    of_pairs: bool = False
    attributes: dict[str, Any] | None = None
    drawn: Any = None

    @classmethod
    def of(cls, value: Any) -> _State | None:
        """None for others, and where there is too much."""
        if (generator := _generator(value)) is not None:
            return cls(drawn=generator[0]())
        base = _base_of(value)
        if base is not None and len(value) > _MOST_IN_CONTAINER:
            return None
        attributes = None
        if is_object(value) and hasattr(value, "__dict__"):
            attributes = dict(vars(value))
        if base is None:
            return None if attributes is None else cls(attributes=attributes)
        return cls(_items(value, base), issubclass(base, dict), attributes)

    @property
    def is_plain(self) -> bool:
        """Whether all that it holds are plain values."""
        held = self.items or []
        if self.of_pairs:
            held = [each for _, each in held]
        own = (self.attributes or {}).values()
        return all(isinstance(each, PLAIN) for each in (*held, *own))

    def put_back(self, value: Any) -> None:
        """Give it to `value` again, by the methods of the container's base class: its
        own may refuse."""
        if (generator := _generator(value)) is not None:
            generator[1](self.drawn)
            return
        base = _base_of(value)
        if base is not None and base is not tuple:
            assert self.items is not None
            if not _same(_items(value, base), self.items):
                _fill(value, base, self.items)
        if self.attributes is not None:
            own = vars(value)
            if not _same(list(own.items()), list(self.attributes.items())):
                own.clear()
                own.update(self.attributes)


def _base_of(value: Any) -> Any:
    """The kind of container that it is, or None."""
    return next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)


def _items(value: Any, base: Any) -> list[Any]:
    return list(base.items(value)) if issubclass(base, dict) else list(value)


def _same(now: list[Any], before: list[Any]) -> bool:
    """Whether two containers hold the very same, dictionaries in the same order."""

    def is_same(one: Any, other: Any) -> bool:
        if type(one) is type(other) is tuple:  # a pair of a dictionary
            return len(one) == len(other) and all(map(operator.is_, one, other))
        return one is other

    return len(now) == len(before) and all(map(is_same, now, before))


def _fill(value: Any, base: Any, items: list[Any]) -> None:
    base.clear(value)
    if issubclass(base, dict):
        for key, each in items:
            base.__setitem__(value, key, each)
    elif base is set:
        set.update(value, items)
    else:
        base.extend(value, items)


def _generator(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """How to read and to set the state of a generator; None for anything else."""
    if isinstance(value, sys.modules["torch"].Generator | np.random.RandomState):
        return value.get_state, value.set_state
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate, value.setstate
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return lambda: bits.state, functools.partial(setattr, bits, "state")
    return None


def tensor_versions(attributes: Sequence[dict[str, Any]]) -> list[int]:
    kind = sys.modules["torch"].Tensor
    return [
        version_of(value)
        for values in attributes
        for value in values.values()
        if isinstance(value, kind)
    ]


def put_back_all(module: Any, values: dict[str, Any]) -> None:
    """Give the attributes the values that `plain_attributes` found."""
    own = vars(module)
    for name, value in values.items():
        if not isinstance(value, tuple):
            own[name] = value
            continue
        held, copied = value
        own[name] = held
        if copied is not None:
            copied.put_back(held)
