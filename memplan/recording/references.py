"""A walk from the variables of a program to the tensors that they hold.

It goes through containers, objects, closures and autograd's graphs, breadth first, so
that each tensor is reached by a shortest way. It reads `__dict__` and never a property,
and calls nothing of the program's.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memplan.recording.held import PLAIN

MOST = 500_000  # objects that are looked at
GRAPH = "graph"  # the edge from a tensor to what autograd has saved for it
# Not the program's: what memplan and torch's own machinery remember.
_MACHINERY = (
    "memplan.",
    "torch._subclasses",
    "torch._dynamo",
    "torch._inductor",
    "torch.fx",
    "torch.utils._python_dispatch",
)
_OPAQUE = (*PLAIN, types.ModuleType, types.CodeType, types.BuiltinFunctionType, range)

# Where torch's modules keep what is an attribute of theirs; an index of a list.
_REGISTERED = re.compile(r"\._(?:parameters|buffers|modules)\['(\w+)'\]")
_INDEX = re.compile(r"\[\d+\]")

# Python's standard library, and memplan.
_NOT_PROGRAMS = sysconfig.get_path("stdlib"), str(Path(__file__).parents[1])

Edge = str  # as it is written after what comes before: ".name", "[3]", GRAPH


@dataclass(frozen=True)
class Root:
    """A variable: its name, and whose it is."""

    name: str
    place: str
    value: Any


@dataclass(frozen=True)
class Way:
    """A tensor, its root, and the edges from there."""

    tensor: Any
    root: Root
    edges: tuple[Edge, ...]


def ways(groups: Iterable[Iterable[Root]]) -> Iterator[Way]:
    """A shortest way to each tensor that is reached from the roots.

    All that one group reaches comes before the next group is asked for, and what
    autograd has saved after what the group holds otherwise.
    """
    walk = _Walk()
    for roots in groups:
        for root in roots:
            walk.add(root.value, None, root)
        yield from walk.run()


@dataclass(frozen=True)
class _Step:
    before: _Step | None
    edge: Edge | Root


class _Walk:
    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._waiting: deque[tuple[Any, _Step]] = deque()
        self._graphs: deque[tuple[Any, _Step]] = deque()
        # Objects must live while their ids are known.
        self._kept: list[Any] = []

    def add(self, value: Any, before: _Step | None, edge: Edge | Root) -> None:
        if id(value) in self._seen or len(self._kept) >= MOST or not _leads_on(value):
            return
        self._seen.add(id(value))
        self._kept.append(value)
        queue = self._graphs if edge == GRAPH else self._waiting
        queue.append((value, _Step(before, edge)))

    def run(self) -> Iterator[Way]:
        while queue := self._waiting or self._graphs:
            value, step = queue.popleft()
            if is_tensor(value):
                yield _way(value, step)
            for edge, inner in parts_of(value):
                self.add(inner, step, edge)


def is_tensor(value: object) -> bool:
    """By its class: an object may say that it has another."""
    return issubclass(type(value), sys.modules["torch"].Tensor)


def generalized(text: str) -> str:
    """A way as the program would write it, with [*] for the indexes of lists."""
    return _INDEX.sub("[*]", _REGISTERED.sub(r".\1", text))


def _leads_on(value: Any) -> bool:
    kind = type(value)
    module = kind.__module__
    machinery = type(module) is str and module.startswith(_MACHINERY)
    if kind in _OPAQUE or (machinery and not is_tensor(value)):
        return False
    defined = issubclass(kind, type | types.FunctionType)
    return not defined or not _is_of_library(value.__module__)


@functools.lru_cache(1 << 14)
def _is_of_library(module: object) -> bool:
    """Whether what is defined in a module is no code of the program's."""
    found = sys.modules.get(module) if isinstance(module, str) else None
    file = getattr(found, "__file__", None)
    if not isinstance(file, str):
        return module != "__main__"
    return "-packages" in file or file.startswith(_NOT_PROGRAMS)


def parts_of(value: Any) -> Iterator[tuple[Edge, Any]]:
    """What a value refers to, with the edges there."""
    kind = type(value)
    if is_tensor(value):
        return _of_tensor(value)
    node = sys.modules["torch"].autograd.graph.Node
    if issubclass(kind, node) or hasattr(kind, "next_functions"):
        return _of_node(value)
    for kinds, parts in _PARTS:
        if issubclass(kind, kinds):
            return parts(value)
    return _of_object(value)


def _of_tensor(tensor: Any) -> Iterator[tuple[Edge, Any]]:
    with sys.modules["torch"]._C.DisableTorchFunction():
        if tensor.is_leaf:  # torch warns of others
            yield ".grad", tensor.grad
        elif tensor.grad_fn is not None:
            yield GRAPH, tensor.grad_fn
    yield from _attributes(tensor)


def _of_node(node: Any) -> Iterator[tuple[Edge, Any]]:
    """What a node of autograd's graph saves, and the nodes before it."""
    for before, _ in node.next_functions:
        yield "", before
    for name in dir(type(node)):
        if not name.startswith("_raw_saved_"):
            continue
        saved = getattr(node, name)
        for each in saved if isinstance(saved, tuple | list) else (saved,):
            # Not unpacked: that would run hooks of the program's.
            yield "", getattr(each, "data", None)
    yield from _attributes(node)


def _of_dict(value: dict[Any, Any]) -> Iterator[tuple[Edge, Any]]:
    for key, each in dict.items(value):
        yield f"[{_key(key)}]", each


def _of_sequence(value: Iterable[Any]) -> Iterator[tuple[Edge, Any]]:
    for i, each in enumerate(value):
        yield f"[{i}]", each


def _of_set(value: Iterable[Any]) -> Iterator[tuple[Edge, Any]]:
    for each in value:
        yield "[*]", each


def _of_frame(frame: types.FrameType) -> Iterator[tuple[Edge, Any]]:
    for name, each in frame.f_locals.items():
        yield f".{name}", each


def _of_generator(
    value: types.GeneratorType[Any, Any, Any],
) -> Iterator[tuple[Edge, Any]]:
    if value.gi_frame is not None:
        yield from _of_frame(value.gi_frame)


def _of_function(function: types.FunctionType) -> Iterator[tuple[Edge, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # it is empty yet
            continue
    code, defaults = function.__code__, function.__defaults__ or ()
    taken = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for name, each in zip(taken, defaults, strict=False):
        yield f".{name}", each
    for name, each in (function.__kwdefaults__ or {}).items():
        yield f".{name}", each
    yield from _attributes(function)


def _of_class(kind: type) -> Iterator[tuple[Edge, Any]]:
    for name, each in vars(kind).items():
        yield f".{name}", each


def _of_object(value: Any) -> Iterator[tuple[Edge, Any]]:
    own = _own_dict(value)
    yield from _attributes(value)
    if (array := sys.modules.get("numpy")) and issubclass(type(value), array.ndarray):
        yield "", value.base  # the tensor whose memory it shows
    for each in gc.get_referents(value):
        # Slots, and what C keeps: without a name. Classes are reached by their own.
        if each is not own and not isinstance(each, type):
            yield "", each


_PARTS: tuple[tuple[Any, Callable[[Any], Iterator[tuple[Edge, Any]]]], ...] = (
    (dict, _of_dict),
    ((list, tuple, deque), _of_sequence),
    ((set, frozenset), _of_set),
    (types.FunctionType, _of_function),
    (types.FrameType, _of_frame),
    (types.GeneratorType, _of_generator),
    (type, _of_class),
)


def _attributes(value: Any) -> Iterator[tuple[Edge, Any]]:
    for name, each in _own_dict(value).items():
        yield f".{name}", each


def _own_dict(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _key(key: object) -> str:
    return repr(key) if type(key) is str and len(key) <= 40 else "*"


def _way(tensor: Any, step: _Step) -> Way:
    edges: list[Edge] = []
    at: _Step | None = step
    while at is not None and isinstance(at.edge, str):
        edges.append(at.edge)
        at = at.before
    assert at is not None and isinstance(at.edge, Root)
    return Way(tensor, at.edge, tuple(reversed(edges)))
