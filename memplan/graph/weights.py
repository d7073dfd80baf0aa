"""A model's parameters and buffers by name, and whether the model has changed."""

from __future__ import annotations

import copy
import functools
import hashlib
import operator
from collections.abc import Iterable, Iterator, Mapping

import torch

from memplan.graph.nest import RECORDS, Kind, is_library
from memplan.graph.numbers import NONE, Numbers


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

    def holder(self, name: str) -> tuple[dict[str, torch.Tensor], str]:
        """The dictionary that a tensor stands in, and its key there."""
        try:
            fetch(self.model, name)
        except AttributeError:
            return self.constants, name
        return _holder(self.model, name)

    def __iter__(self) -> Iterator[str]:
        raise TypeError("weights are looked up by name")

    def __len__(self) -> int:
        raise TypeError("weights are looked up by name")


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a module has forward hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def hook_of(module: torch.nn.Module) -> str:
    """The name of a module's first forward hook, as in ``package.file.function``."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    hook = hooks[0]
    while isinstance(hook, functools.partial):
        hook = hook.func
    named = hook if hasattr(hook, "__qualname__") else type(hook)
    return f"{named.__module__}.{named.__qualname__}"


class Watch:
    """A model's state when it was compiled: cheap to compare at every call.

    names: of the tensors that were packed. numbers: that the model was exported with. A
    change of a tensor in place is seen by its version, which every operation of torch
    raises but for batch normalisation, which counts, and for writes through ``.data``
    and NumPy; those are seen where they change the first element, or one in the middle,
    of a buffer or a weight with dimensions. Other tensors, modules, attributes in a
    place are seen by looking, and so are numbers, training mode and hooks.
    """

    def __init__(
        self, model: torch.nn.Module, names: Iterable[str], numbers: Numbers = NONE
    ) -> None:
        self._model, self._names = model, list(names)
        self._numbers = numbers
        self.settle()
        holders = [_holder(model, name) for name in self._names]
        self._held = [(held, attribute) for held, attribute in holders]
        self._tensors = [held[attribute] for held, attribute in holders]
        self._ties = _ties(model, self._held)
        self._counted = [*self._tensors, *_counters(model, self._names)]
        self._versions = [each._version for each in self._counted]
        self._pointers = [each.data_ptr() for each in self._tensors]
        self._kinds = [Kind.of(each) for each in self._tensors]
        self._marks = _marks(self._tensors)

    def settle(self) -> None:
        """Take modules and attributes as they are now."""
        self._modules = _Modules(self._model)
        found = [
            held
            for module in self._model.modules()
            for name, value in vars(module).items()
            if not name.startswith("_") and (held := _contents(value)) is not None
        ]
        self._containers = list({id(each): each for each in found}.values())
        self._contents = list(map(copy.copy, self._containers))

    def again(self) -> Watch:
        """A watch of the same model's current state."""
        return Watch(self._model, self._names, self._numbers)

    def other_number(self) -> str:
        """What has another value than the model was exported with; "" for nothing."""
        return self._numbers.changed(Weights(self._model, {}))

    def same_containers(self) -> bool:
        """Whether lists, dictionaries and objects that are attributes hold what they
        held."""
        return _same(self._containers, self._contents)

    def same_weights(self) -> bool:
        """Whether no tensor's values have changed."""
        now = [held.get(name) for held, name in self._held]
        if not all(map(operator.is_, now, self._tensors)):
            return False
        if [each._version for each in self._counted] != self._versions:
            return False
        if [each.data_ptr() for each in self._tensors] != self._pointers:
            return False
        return all(map(_Marks.same, self._marks))

    def same_kinds(self) -> bool:
        """Whether the tensors still have their types, shapes and devices."""
        now = [held.get(name) for held, name in self._held]
        return [None if each is None else Kind.of(each) for each in now] == self._kinds

    def same_modules(self) -> bool:
        """Whether modules, modes, attributes and hooks are unchanged, and tensors that
        are one still are."""
        tied = all(a.get(name) is b.get(other) for a, name, b, other in self._ties)
        return tied and self._modules.same()


class _Modules:
    def __init__(self, model: torch.nn.Module) -> None:
        # TorchScript's make what they hold each time that it is asked for.
        script = torch.jit.ScriptModule
        modules = [each for each in model.modules() if not isinstance(each, script)]
        # What hooks do to the attributes of their modules is done at every call, and
        # stand-ins, which have a model among theirs, change at every call.
        plain = [
            each
            for each in modules
            if not has_hooks(each)
            and not isinstance(vars(each).get("model"), torch.nn.Module)
        ]
        self._attributes = [vars(each) for each in plain]
        self._own = [_own(each) for each in self._attributes]
        self._children = [each._modules for each in modules if each._modules]
        self._modes = [(each, each.training) for each in modules if has_hooks(each)]
        self._hooks = [
            hooks
            for each in modules
            for hooks in (each._forward_hooks, each._forward_pre_hooks)
        ]
        self._hooked = sum(map(len, self._hooks))
        self._loose = [
            value
            for attributes in self._attributes
            for value in attributes.values()
            if _is_tensor(value)
        ]
        self._versions = [each._version for each in self._loose]
        self._counts = list(map(len, self._attributes))
        self._then = self._now()
        self._children_then = [dict(each) for each in self._children]

    def _now(self) -> list[object]:
        """The attributes of every module, but for those that all modules have."""
        return [
            own(each) for own, each in zip(self._own, self._attributes, strict=True)
        ]

    def same(self) -> bool:
        if list(map(len, self._attributes)) != self._counts:
            return False
        try:
            now = self._now()
        except KeyError:  # one went, another came
            return False
        return (
            _same(now, self._then)
            and _same(self._children, self._children_then)
            and sum(map(len, self._hooks)) == self._hooked
            and all(each.training is mode for each, mode in self._modes)
            and [each._version for each in self._loose] == self._versions
        )


def _contents(value: object) -> list[object] | dict[str, object] | None:
    """A list or dictionary, or the attributes of an object such as a configuration."""
    if isinstance(value, list | dict):
        return value
    if isinstance(value, RECORDS) or not is_library(type(value)):
        own = getattr(value, "__dict__", None)
        return own if isinstance(own, dict) else None
    return None


def _same(now: object, then: object) -> bool:
    try:  # what is the same object is not compared, and that is nearly all
        return bool(now == then)
    except (RuntimeError, ValueError, TypeError):
        return False  # arrays and tensors, and other ones


def _own(attributes: dict[str, object]) -> operator.itemgetter[object]:
    common = vars(torch.nn.Module()).keys() - {"training"}
    return operator.itemgetter(*(name for name in attributes if name not in common))


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_inference()


def _holder(model: torch.nn.Module, name: str) -> tuple[dict[str, torch.Tensor], str]:
    """The dictionary that a tensor of the model stands in, and its key there."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    for group in (module._parameters, module._buffers):
        if attribute in group:  # those of TorchScript are no dictionaries
            return group if isinstance(group, dict) else dict(group.items()), attribute
    return vars(module), attribute


Tie = tuple[dict[str, torch.Tensor], str, dict[str, torch.Tensor], str]


def _ties(
    model: torch.nn.Module, held: list[tuple[dict[str, torch.Tensor], str]]
) -> list[Tie]:
    """Each place of these tensors, and every other place in the model where they
    stand."""
    places = {id(group[name]): (group, name) for group, name in held}
    found = []
    for module in model.modules():
        for group in (module._parameters, module._buffers):
            if not isinstance(group, dict):
                continue
            for name, tensor in group.items():
                first = places.get(id(tensor))
                if first is not None and (first[0] is not group or first[1] != name):
                    found.append((*first, group, name))
    return found


def _counters(model: torch.nn.Module, names: list[str]) -> list[torch.Tensor]:
    """What counts how often the statistics among these tensors were updated."""
    owners = dict.fromkeys(
        name.rpartition(".")[0] for name in names if name.endswith("running_mean")
    )
    found = [
        model.get_submodule(each)._buffers.get("num_batches_tracked") for each in owners
    ]
    return [each for each in found if each is not None]


class _Marks:
    """A few elements of tensors of one type."""

    def __init__(self, views: list[torch.Tensor]) -> None:
        self._views = views
        with torch.inference_mode(False):
            # As whole numbers: NaN equals itself in them.
            self._then, self._now = torch.cat(views), torch.cat(views)
            self._pair = self._then.view(torch.uint8), self._now.view(torch.uint8)

    def same(self) -> bool:
        torch.cat(self._views, out=self._now)  # asks for no memory
        return bool(torch.equal(*self._pair))


def _marks(tensors: list[torch.Tensor]) -> list[_Marks]:
    """Two elements of each weight with dimensions or buffer, by type."""
    marks: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        buffer = not isinstance(tensor, torch.nn.Parameter)
        if (tensor.dim() > 1 or buffer) and tensor.numel() > 1:
            middle = tensor.numel() // 2
            start = tensor.storage_offset()
            two = tensor.detach().as_strided((2,), (middle,), start)
            marks.setdefault(tensor.dtype, []).append(two)
    return list(map(_Marks, marks.values()))
