"""What a model's code can reach and change, beside its tensors' values."""

from __future__ import annotations

import functools
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Generator, Tensor, from_numpy, nn

from memplan.graph.call import Inputs
from memplan.graph.contents import is_mark
from memplan.graph.nest import PLAIN, RECORDS, is_library, slots_of
from memplan.graph.weights import has_hooks, stands_for

MOST = 20_000  # objects that are looked at
CONTAINERS = (OrderedDict, dict, list, set, deque)
MOST_COPIED = 1 << 20  # bytes of arrays that may count something

# What torch keeps in every module, beside its mode, its tensors, its submodules and the
# hooks of its forward.
UNSEEN = {
    name
    for name in vars(nn.Module())
    if "forward" not in name and name not in {"training", "_parameters", "_buffers"}
} - {"_modules", "_non_persistent_buffers_set"}


Held = dict[object, object]


@dataclass(frozen=True)
class Place:
    """Something that holds values, and those that it held `then`, by key or position.

    owner: the module whose code reaches it. put: makes it hold other values.
    """

    owner: nn.Module
    now: Callable[[], Held]
    put: Callable[[Held], None]
    then: Held

    def differs(self) -> bool:
        """Whether it holds another value now, or another tensor."""
        now = self.now()
        return now.keys() != self.then.keys() or any(
            _differ(now[key], value) for key, value in self.then.items()
        )

    def is_set_up(self) -> bool:
        """Whether all that was added are hooks by which a forward collects its results,
        and the mark that they are there."""
        now = self.now()
        added = {key: each for key, each in now.items() if key not in self.then}
        return all(is_mark(key, each) for key, each in added.items()) and not any(
            _differ(now.get(key), each) for key, each in self.then.items()
        )


class Attributes:
    """The attributes of a model's modules as they are, and what else its code can
    reach: objects, containers, and the globals that its functions name.

    Attributes of modules with hooks, which may change them at every call, may differ.
    inputs: to look at what a call of the model is given, and not at the model.
    atoms: what was found that is not looked into, tensors among it. named: by the
    users' functions among it, as globals and attributes. places: what holds values.
    plain: numbers, strings and bytes, each time that they are held.
    """

    def __init__(self, model: nn.Module, inputs: Inputs | None = None) -> None:
        self.model = model
        self.atoms: list[object] = []
        self.named: set[str] = set()
        self.places: list[Place] = []
        self.plain: list[object] = []
        self._seen: dict[int, object] = {}  # kept alive, so that ids stay theirs
        given = inputs and (inputs.args, inputs.kwargs)
        self._left: list[tuple[nn.Module, object]] = [(model, given or model)]
        while self._left and len(self._seen) < MOST:
            owner, value = self._left.pop()
            if isinstance(value, PLAIN):
                self.plain.append(value)
            elif id(value) not in self._seen:
                self._seen[id(value)] = value
                self._look(owner, value)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that were found."""
        return [each for each in self.atoms if isinstance(each, Tensor)]

    def different(self) -> list[Place]:
        """What holds another value now."""
        return [each for each in self.places if each.differs() and not each.is_set_up()]

    def changed(self) -> list[nn.Module]:
        """The modules whose code reaches something that is another value now."""
        return list(dict.fromkeys(each.owner for each in self.different()))

    def restore(self) -> None:
        """Put everything back."""
        for each in self.places:
            if each.differs():
                each.put(each.then)

    def _look(self, owner: nn.Module, value: Any) -> None:
        if isinstance(value, nn.Module) and (model := stands_for(value)) is not None:
            self._left.append((owner, model))
        elif isinstance(value, nn.Module):
            if has_hooks(value):
                self._left += [(value, each) for each in vars(value).values()]
            else:
                self._object(value, value, UNSEEN)
        elif isinstance(value, CONTAINERS):
            self._container(owner, value)
        elif isinstance(value, tuple | frozenset):
            self._left += [(owner, each) for each in value]
        elif isinstance(value, types.FunctionType):
            self._function(owner, value)
        elif isinstance(value, types.MethodType):
            self._left += [(owner, value.__func__), (owner, value.__self__)]
        elif isinstance(value, partial):
            self._left += [(owner, value.func), (owner, value.args)]
        elif isinstance(value, RECORDS | threading.local):
            self._object(owner, value, set())
        elif isinstance(value, type | Tensor) or is_library(type(value)):
            self._atom(owner, value)
        elif hasattr(value, "__dict__") or slots_of(type(value)):
            self._object(owner, value, set())

    def _atom(self, owner: nn.Module, value: Any) -> None:
        self.atoms.append(value)
        if isinstance(value, functools._lru_cache_wrapper):
            self._left.append((owner, value.__wrapped__))
        elif type(value) is bytearray and len(value) <= MOST_COPIED:
            self._hold(owner, lambda: {"": bytes(value)}, partial(_write, value))
        elif isinstance(value, Generator):
            self._hold(owner, partial(_drawn, value), partial(_draw_again, value))
        elif _is_small_array(value):
            put = partial(_write_array, value)
            self._hold(owner, lambda: {"": value.tobytes()}, put)

    def _hold(
        self,
        owner: nn.Module,
        now: Callable[[], Held],
        put: Callable[[Held], None],
    ) -> None:
        then = now()
        self.places.append(Place(owner, now, put, then))
        self._left += [(owner, each) for each in then.values()]

    def _object(self, owner: nn.Module, value: object, unseen: set[str]) -> None:
        own: Any = getattr(value, "__dict__", {})
        slots = {each.__name__: each for each in slots_of(type(value))}

        def now() -> Held:
            found = {name: own[name] for name in own if name not in unseen}
            filled = ((name, slots[name]) for name in slots if hasattr(value, name))
            return found | {name: each.__get__(value) for name, each in filled}

        def put(then: Held) -> None:
            for name in now().keys() - then.keys():
                if name in slots:
                    slots[name].__delete__(value)
                else:
                    del own[name]
            for name, each in then.items():
                if name in slots:
                    slots[name].__set__(value, each)
                else:
                    own[name] = each

        self._hold(owner, now, put)
        for kind in type(value).__mro__:
            if not is_library(kind):
                self._class(owner, kind)

    def _class(self, owner: nn.Module, kind: type) -> None:
        own = vars(kind)
        names = [
            name
            for name, value in own.items()
            if not name.startswith("__") and not hasattr(value, "__get__")
        ]

        def put(then: Held) -> None:
            for name, value in then.items():
                setattr(kind, str(name), value)

        self._hold(owner, lambda: {name: own.get(name) for name in names}, put)
        for value in own.values():  # functions, static and class methods, properties
            inner = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(inner, types.FunctionType):
                self._left.append((owner, inner))

    def _container(self, owner: nn.Module, value: Any) -> None:
        # By the methods of the kind itself: a subclass's may make what they return.
        kind: Any = next(each for each in CONTAINERS if isinstance(value, each))

        def now() -> Held:
            if issubclass(kind, dict):
                return dict(kind.items(value))
            if kind is set:
                return {each: each for each in set.__iter__(value)}
            return dict(enumerate(kind.__iter__(value)))

        def put(then: Held) -> None:
            kind.clear(value)
            if issubclass(kind, dict):
                for key, each in then.items():
                    kind.__setitem__(value, key, each)
            elif kind is set:
                set.update(value, then)
            else:
                kind.extend(value, then.values())

        self._hold(owner, now, put)

    def _function(self, owner: nn.Module, function: types.FunctionType) -> None:
        if is_library(function):
            return
        for cell in function.__closure__ or ():
            self._hold(owner, partial(_filled, cell), partial(_fill, cell))
        own: Any = vars(function)  # as counters of calls

        def put(then: Held) -> None:
            own.clear()
            own.update(then)

        self._hold(owner, lambda: dict(own), put)
        self._left.append((owner, function.__defaults__))
        there: Any = function.__globals__
        said = set(_names(function.__code__))
        self.named |= said
        names = [name for name in said if name in there]

        def now() -> Held:
            return {name: there.get(name) for name in names}

        self._hold(owner, now, there.update)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


def _drawn(generator: Generator) -> Held:
    return {"": generator.get_state().numpy().tobytes()}


def _draw_again(generator: Generator, then: Held) -> None:
    state = np.frombuffer(then[""], np.uint8).copy()  # type: ignore[call-overload]
    generator.set_state(from_numpy(state))


def _is_small_array(value: object) -> bool:
    if type(value) is not np.ndarray or value.dtype.hasobject:
        return False
    return value.nbytes <= MOST_COPIED


def _write(array: bytearray, then: Held) -> None:
    array[:] = then[""]  # type: ignore[call-overload]


def _write_array(array: Any, then: Held) -> None:
    array[...] = np.frombuffer(then[""], array.dtype).reshape(array.shape)  # type: ignore[call-overload]


def _filled(cell: types.CellType) -> Held:
    """What a variable of the function around holds."""
    try:
        return {"cell": cell.cell_contents}
    except ValueError:
        return {}


def _fill(cell: types.CellType, then: Held) -> None:
    if then:
        cell.cell_contents = then["cell"]


def _differ(now: object, then: object) -> bool:
    try:
        return now is not then and (isinstance(now, Tensor) or bool(now != then))
    except (RuntimeError, ValueError, TypeError):
        return True  # arrays and tensors, and other ones
