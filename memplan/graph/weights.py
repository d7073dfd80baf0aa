"""A model's parameters and buffers by name, and whether the model has changed."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from memplan.graph.contents import (
    MARKS,
    Contents,
    Groups,
    Types,
    is_collecting,
    is_watched,
    marks,
    row,
)
from memplan.graph.nest import Kind
from memplan.graph.numbers import NONE, Numbers
from memplan.native import _state

if TYPE_CHECKING:
    from memplan.graph.caches import Caches


def fetch(model: torch.nn.Module, name: str) -> torch.Tensor:
    """The tensor at `name`, as in ``layer1.0.weight``."""
    owner, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(owner), attribute)


def digest(tensors: Iterable[torch.Tensor | None]) -> bytes:
    """A hash of shapes, types and contents of tensors on the CPU."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        if tensor is None:
            found.update(b"none")
            continue
        found.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        found.update(memoryview(plain.reshape(-1).view(torch.uint8).numpy()))
    return found.digest()


class Weights(Mapping[str, torch.Tensor]):
    """A model's current parameters and buffers by name, and the export's constants."""

    def __init__(
        self, model: torch.nn.Module, constants: dict[str, torch.Tensor]
    ) -> None:
        self.model, self.constants = model, constants

    def __getitem__(self, name: str) -> torch.Tensor:
        try:
            return fetch(self.model, name)
        except AttributeError:
            return self.constants[name]

    def __iter__(self) -> Iterator[str]:
        raise TypeError("weights are looked up by name")

    def __len__(self) -> int:
        raise TypeError("weights are looked up by name")


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a module has forward hooks, besides those that are a part of the model's
    forward, which uses what they collect."""
    if not module._forward_hooks and not module._forward_pre_hooks:
        return False
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return not all(map(is_collecting, hooks))


def stands_for(module: torch.nn.Module) -> torch.nn.Module | None:
    """The model that a stand-in was made from; None for other modules, which do not
    have modules among their plain attributes."""
    model = vars(module).get("model")
    return model if isinstance(model, torch.nn.Module) else None


def hook_of(module: torch.nn.Module) -> str:
    """The name of a module's first forward hook, as in ``package.file.function``."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    hook = hooks[0]
    while isinstance(hook, functools.partial):
        hook = hook.func
    named = hook if hasattr(hook, "__qualname__") else type(hook)
    return f"{named.__module__}.{named.__qualname__}"


def places(model: torch.nn.Module) -> set[str]:
    """The paths of parameters and buffers, of one tensor all that it has."""
    own = {*dict(model.named_parameters(remove_duplicate=False))}
    return own | {*dict(model.named_buffers(remove_duplicate=False))}


# Why a model runs once by itself.
UNFILLED = "its first run fills its caches"


class Watch:
    """A model's state when it was compiled: cheap to compare at every call.

    names: of the tensors that were packed. numbers: that the model was exported with.
    caches: that it had not filled; that they are is no change. A change of a packed
    tensor in place is seen by its version, which every operation of torch raises but
    for batch normalisation, which counts, and for writes through ``.data`` and NumPy;
    those are seen where they change the first element, or one in the middle, of a
    buffer or a weight with dimensions. Other tensors, modules, attributes in a place
    are seen by looking, and so are numbers, training mode, hooks, classes, and modules
    that are no submodules but that attributes hold.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        names: Iterable[str],
        numbers: Numbers = NONE,
        caches: Caches | None = None,
    ) -> None:
        self._model, self._names, self._numbers = model, list(names), numbers
        self._caches = caches
        self.settle()
        self._take_weights()

    def settle(self) -> None:
        """Take modules and attributes as they are now, and caches for not filled."""
        self._is_cold = self._caches is not None and self._caches.empty()
        self._modules = _Modules(self._model)
        # A layer that the first run makes is not there before.
        there = Weights(self._model, dict.fromkeys(self._names))
        packed = {id(there[name]) for name in self._names}
        self._layouts = _layouts(self._model, packed)

    def _take_weights(self) -> None:
        model = self._model
        self._held = [_holder(model, name) for name in self._names]
        tensors = [held[name] for held, name in self._held]
        self._ties = _ties(model, self._modules.contents.aliases)
        counted = [*self._held, *_counters(model, self._names)]
        self._rows = [row(held, name) for held, name in counted]
        self._kinds = list(map(_lying, tensors))
        self._marks = marks(tensors)

    def again(self) -> Watch:
        """A watch of the same model, whose weights are taken as they are now."""
        other = copy.copy(self)
        other._take_weights()
        return other

    def other_number(self) -> str:
        """What has another value than the model was exported with; "" for nothing."""
        return self._numbers.changed(Weights(self._model, {}))

    def same(self) -> bool:
        """Whether modules and attributes are unchanged, and so is what containers,
        objects and arrays that attributes hold, at any depth, hold; not before the
        model has filled its caches, as it was exported with these."""
        if not self._is_cold and self.same_modules() and self._modules.contents.same():
            return True
        caches = self._caches
        if caches is None or not (self._modules.types.same() and caches.filled()):
            return False
        self.settle()
        return True

    def is_cold(self) -> bool:
        """Whether the model has caches that it has not filled."""
        return self._caches is not None and self._is_cold and self._caches.empty()

    def same_weights(self) -> bool:
        """Whether no tensor's values have changed."""
        if not _state.holds_tensors(self._rows):
            return False
        return _state.has_bytes(self._marks)  # of memory that is still there, then

    def same_kinds(self) -> bool:
        """Whether the tensors still have their types, shapes, devices and strides, on
        which those of results depend."""
        now = (held.get(name) for held, name in self._held)
        return [each if each is None else _lying(each) for each in now] == self._kinds

    def other_kinds(self) -> bool:
        """Whether a tensor has another type, shape or device; those whose values are
        the same are not looked at."""
        return not self.same_weights() and not self.same_kinds()

    def same_modules(self) -> bool:
        """Whether modules, their classes, modes, attributes and hooks are unchanged,
        tensors that are one still are, and those of images lie as they did."""
        tied = all(a.get(name) is b.get(other) for a, name, b, other in self._ties)
        if not (tied and self._modules.same()):
            return False
        now = ((group.get(name), strides) for group, name, strides in self._layouts)
        return all(each is not None and each.stride() == then for each, then in now)


class _Modules:
    """A model's modules as they are, and those that attributes hold; `contents`: what
    else these hold."""

    def __init__(self, model: torch.nn.Module) -> None:
        own = [*model.parameters(), *model.buffers()]
        self.contents = Contents({id(each) for each in own})
        modules, plain = self._reached(model)
        self.contents.close()
        owned = {id(each) for each in own}
        attributes = [vars(each) for each in plain]
        parts = "_parameters", "_buffers", "_modules"
        named = [(vars(each), name) for each in modules for name in parts]
        named += [
            (group, name) for group in attributes for name in group.keys() - _COMMON
        ]
        # Stand-ins have their models' modes.
        named += [
            (vars(each), "training") for each in modules if "training" in vars(each)
        ]
        tensors = [
            group for each in modules for group in (each._parameters, each._buffers)
        ]
        named += [
            (group, name)
            for group in tensors
            for name, value in group.items()
            if value is None or id(value) not in owned
        ]
        below = [each._modules for each in modules]
        hooks = [
            hooks
            for each in modules
            for hooks in (each._forward_hooks, each._forward_pre_hooks)
        ]
        self._groups = Groups(below, named, [*attributes, *hooks, *tensors])
        self.types = Types(modules)
        loose = [(group, name) for group, name in named if is_watched(group[name])]
        self._loose = [row(group, name) for group, name in loose]
        self._marks = marks(group[name] for group, name in loose)

    def _reached(
        self, model: torch.nn.Module
    ) -> tuple[list[torch.nn.Module], list[torch.nn.Module]]:
        """The modules, and those whose attributes are to stay, which are looked into.

        What hooks do to the attributes of their modules is done at every call, and
        stand-ins, which have a model among theirs, change at every call.
        """
        found: list[torch.nn.Module] = []
        plain, left = [], [*model.modules()]
        seen, known = set(left), set(left)
        for each in left:  # which grows
            # TorchScript's make what they hold each time that it is asked for.
            if isinstance(each, torch.jit.ScriptModule):
                continue
            found.append(each)
            if (inner := stands_for(each)) is not None:
                more = [*inner.modules()]
            elif has_hooks(each) and each in known:
                more = []
            else:
                plain.append(each)
                names = vars(each).keys() - _COMMON
                self.contents.add_class(type(each))
                self.contents.add(vars(each)[name] for name in names)
                more = [
                    below
                    for module in self.contents.modules
                    for below in module.modules()
                ]
                self.contents.modules.clear()
            left += dict.fromkeys(module for module in more if module not in seen)
            seen.update(more)
        return found, plain

    def same(self) -> bool:
        """Whether all of it is as it was, but for `contents`."""
        return (
            self.types.same()
            and self._groups.same()
            and _state.holds_tensors(self._loose)
            and _state.has_bytes(self._marks)
        )


# Attributes that all modules have, or get from libraries.
_COMMON = vars(torch.nn.Module()).keys() | MARKS


def _lying(tensor: torch.Tensor) -> tuple[Kind, tuple[int, ...]]:
    return Kind.of(tensor), tensor.stride()


def _holder(model: torch.nn.Module, name: str) -> tuple[dict[str, torch.Tensor], str]:
    """The dictionary that a tensor of the model stands in, and its key there."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    for group in (module._parameters, module._buffers):
        if attribute in group:  # those of TorchScript are no dictionaries
            return group if isinstance(group, dict) else dict(group.items()), attribute
    return vars(module), attribute


def _layouts(
    model: torch.nn.Module, packed: set[int]
) -> list[tuple[dict[str, torch.Tensor], str, tuple[int, ...]]]:
    """The strides of tensors for images or volumes, on which those of results depend,
    but for those with these ids: where each stands, and what they are."""
    return [
        (group, name, tensor.stride())
        for module in model.modules()
        for group in (module._parameters, module._buffers)
        if isinstance(group, dict)
        for name, tensor in group.items()
        if is_watched(tensor) and tensor.dim() in (4, 5) and id(tensor) not in packed
    ]


Tie = tuple[dict[str, torch.Tensor], str, dict[str, torch.Tensor], str]


def _ties(model: torch.nn.Module, aliases: list[torch.Tensor]) -> list[Tie]:
    """The first place of each tensor that stands in several, and each other one.

    aliases: the model's tensors that containers hold, too, which stay there.
    """
    first: dict[int, tuple[dict[str, torch.Tensor], str]] = {}
    found = []
    for module in model.modules():
        for group in (module._parameters, module._buffers):
            if not isinstance(group, dict):  # of TorchScript
                continue
            for name, tensor in group.items():
                if tensor is not None:
                    where = first.setdefault(id(tensor), (group, name))
                    if where[0] is not group or where[1] != name:
                        found.append((*where, group, name))
    kept = [each for each in aliases if id(each) in first]
    return found + [(*first[id(each)], {"": each}, "") for each in kept]


def _counters(
    model: torch.nn.Module, names: list[str]
) -> list[tuple[dict[str, torch.Tensor], str]]:
    """What counts how often the statistics among these tensors were updated: the
    dictionary that it stands in, and its key there."""
    owners = dict.fromkeys(
        name.rpartition(".")[0] for name in names if name.endswith("running_mean")
    )
    name = "num_batches_tracked"
    found = [
        _holder(model, f"{each}.{name}")
        for each in owners
        if name in model.get_submodule(each)._buffers
    ]
    return [(group, name) for group, _ in found if group[name] is not None]
