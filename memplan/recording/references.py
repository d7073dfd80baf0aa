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
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from memplan.recording.held import PLAIN
from memplan.recording.sites import foreign_files

MOST = 200_000  # objects that are looked into, tensors aside
MOST_TEXT = 200  # characters of a path
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
_INDEX = re.compile(r"(?:\[\*\]){2,}")

_OPAQUE_IDS = frozenset(map(id, _OPAQUE))  # classes may compare as they like
_BASES = type.__dict__["__mro__"].__get__
_NAMESPACE = type.__dict__["__dict__"].__get__

Edge = str  # as it is written after what comes before: ".name", "[3]", GRAPH


@dataclass(frozen=True)
class Root:
    """A variable: its name, and whose it is."""

    name: str
    place: str
    value: Any


@dataclass(frozen=True)
class TensorPath:
    """A shortest path of references from a root to a tensor.

    text: as the program would write it, with any index for each of a list's. graph: the
    tensor is saved in autograd's graph of what is there.
    """

    root: Root
    text: str
    graph: bool = False

    def then(self, edge: Edge) -> TensorPath:
        """One edge further."""
        if self.graph or edge == GRAPH:
            return self if self.graph else replace(self, graph=True)
        if not edge or len(self.text) > MOST_TEXT:
            return self
        text = generalized(self.text + edge)
        return replace(self, text=text if len(text) <= MOST_TEXT else f"{text}…")


def tensor_paths(groups: Iterable[Iterable[Root]]) -> Iterator[tuple[Any, TensorPath]]:
    """Each tensor that is reached from the roots, with a shortest path to it.

    All that one group reaches comes before the next group is asked for, and what
    autograd has saved after what the group holds otherwise.
    """
    walk = _Walk()
    for roots in groups:
        for root in roots:
            if walk.takes(root.value):
                walk.add(root.value, TensorPath(root, root.name))
        yield from walk.run()


class _Walk:
    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._waiting: deque[tuple[Any, TensorPath]] = deque()
        self._graphs: deque[tuple[Any, TensorPath]] = deque()
        # Objects must live while their ids are known.
        self._kept: list[Any] = []

    def takes(self, value: Any) -> bool:
        """Whether it is to be looked into."""
        if len(self._kept) >= MOST and not is_tensor(value):
            return False
        return id(value) not in self._seen and _leads_on(value)

    def add(self, value: Any, path: TensorPath) -> None:
        self._seen.add(id(value))
        self._kept.append(value)
        (self._graphs if path.graph else self._waiting).append((value, path))

    def run(self) -> Iterator[tuple[Any, TensorPath]]:
        while queue := self._waiting or self._graphs:
            value, path = queue.popleft()
            if is_tensor(value):
                yield value, path
            for edge, inner in parts_of(value):
                if self.takes(inner):
                    self.add(inner, path.then(edge))


def is_tensor(value: object) -> bool:
    """By its class: an object may say that it has another."""
    return issubclass(type(value), sys.modules["torch"].Tensor)


def generalized(text: str) -> str:
    """A path as the program would write it, with [**] for lists in lists."""
    return _INDEX.sub("[**]", _REGISTERED.sub(r".\1", text).replace("[**]", "[*][*]"))


def _leads_on(value: Any) -> bool:
    kind = type(value)
    if id(kind) in _OPAQUE_IDS:
        return False
    if module_of(kind).startswith(_MACHINERY) and not is_tensor(value):
        return False
    if issubclass(kind, type):
        return not _is_of_library(module_of(value))
    return kind is not types.FunctionType or not _is_of_library(value.__module__)


def module_of(kind: type) -> str:
    """Where a class is defined, asked of Python itself: a metaclass may answer as it
    likes."""
    found = type.__dict__["__module__"].__get__(kind)
    return found if type(found) is str else ""


def kind_name(kind: type) -> str:
    """The qualified name of a class, asked of Python itself."""
    return str(type.__dict__["__qualname__"].__get__(kind))


def is_library(file: str) -> bool:
    """Whether a file is PyTorch's, Python's, memplan's or of an installed package."""
    return "-packages" in file or file.startswith(foreign_files())


@functools.lru_cache(1 << 14)
def _is_of_library(module: object) -> bool:
    """Whether what is defined in a module is no code of the program's."""
    found = sys.modules.get(module) if isinstance(module, str) else None
    file = getattr(found, "__file__", None)
    if not isinstance(file, str):
        return module != "__main__"
    return is_library(file)


def parts_of(value: Any) -> Iterator[tuple[Edge, Any]]:
    """What a value refers to, with the edges there."""
    kind = type(value)
    if is_tensor(value):
        return _of_tensor(value)
    for kinds, parts in _PARTS:
        if issubclass(kind, kinds):
            return parts(value)
    if any("next_functions" in _NAMESPACE(each) for each in _BASES(kind)):
        return _of_node(value)
    return _of_object(value)


def _of_tensor(tensor: Any) -> Iterator[tuple[Edge, Any]]:
    with sys.modules["torch"]._C.DisableTorchFunction():
        if tensor.is_leaf:  # torch warns of others
            yield ".grad", tensor.grad
        elif tensor.grad_fn is not None:
            yield GRAPH, tensor.grad_fn
        if tensor.is_sparse:
            yield "", tensor._indices()
            yield "", tensor._values()
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


def _of_entries(value: Any) -> Iterator[tuple[Edge, Any]]:
    """By the container's own way to go through it, not that of a class of the
    program's."""
    own = next(kind for kind in _CONTAINERS if issubclass(type(value), kind))
    for each in own.__iter__(value):
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
    for name, each in _NAMESPACE(kind).items():
        yield f".{name}", each


def _of_object(value: Any) -> Iterator[tuple[Edge, Any]]:
    own = _own_dict(value)
    yield from _attributes(value)
    if (array := sys.modules.get("numpy")) and issubclass(type(value), array.ndarray):
        yield "", value.base  # the tensor whose memory it shows
    for each in gc.get_referents(value):
        # Slots, and what C keeps: without a name. Classes are reached by their own.
        if each is not own and not issubclass(type(each), type):
            yield "", each


_CONTAINERS: Any = (list, tuple, deque, set, frozenset)
_PARTS: tuple[tuple[Any, Callable[[Any], Iterator[tuple[Edge, Any]]]], ...] = (
    (dict, _of_dict),
    (_CONTAINERS, _of_entries),
    (types.FunctionType, _of_function),
    (types.FrameType, _of_frame),
    (types.GeneratorType, _of_generator),
    (type, _of_class),
)


def _attributes(value: Any) -> Iterator[tuple[Edge, Any]]:
    for name, each in _own_dict(value).items():
        if type(name) is str:
            yield f".{name}", each


def _own_dict(value: Any) -> dict[str, Any]:
    for kind in _BASES(type(value)):
        own = _NAMESPACE(kind).get("__dict__")
        if type(own) is types.GetSetDescriptorType:  # no property of the program's
            found = own.__get__(value)
            return found if type(found) is dict else {}
    return {}


def _key(key: object) -> str:
    return repr(key) if type(key) is str and len(key) <= 40 else "*"
