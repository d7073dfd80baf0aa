"""A model's parameters and buffers by name, and whether the model has changed."""

from __future__ import annotations

import copy
import ctypes
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping

import torch

from memplan.graph.nest import RECORDS, Kind, is_library
from memplan.graph.numbers import NONE, Numbers
from memplan.native import _state


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
    """Whether a module has forward hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


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


class Watch:
    """A model's state when it was compiled: cheap to compare at every call.

    names: of the tensors that were packed. numbers: that the model was exported with.
    read: names of tensors that are read at each call, from one of the places where they
    stand: what counts is whether they still stand in the others. A change of a packed
    tensor in place is seen by its version, which every operation of torch raises but
    for batch normalisation, which counts, and for writes through ``.data`` and NumPy;
    those are seen where they change the first element, or one in the middle, of a
    buffer or a weight with dimensions. Other tensors, modules, attributes in a place
    are seen by looking, and so are numbers, training mode and hooks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        names: Iterable[str],
        numbers: Numbers = NONE,
        read: Iterable[str] = (),
    ) -> None:
        self._model, self._names = model, list(names)
        self._numbers, self._read = numbers, list(read)
        self.settle()
        self._held = [_holder(model, name) for name in self._names]
        tensors = [held[name] for held, name in self._held]
        others = [_holder(model, each) for each in self._read]
        self._ties = _ties(model, [*self._held, *others])
        counted = [*self._held, *_counters(model, self._names)]
        self._rows = [_row(held, name) for held, name in counted]
        self._kinds = [Kind.of(each) for each in tensors]
        self._marks = _marks(tensors)

    def settle(self) -> None:
        """Take modules and attributes as they are now."""
        self._modules = _Modules(self._model)
        found = [
            held
            for module in self._model.modules()
            for name, value in vars(module).items()
            if name not in _COMMON and (held := _contents(value)) is not None
        ]
        self._containers = list({id(each): each for each in found}.values())
        self._contents = list(map(copy.copy, self._containers))

    def again(self) -> Watch:
        """A watch of the same model's current state."""
        return Watch(self._model, self._names, self._numbers, self._read)

    def other_number(self) -> str:
        """What has another value than the model was exported with; "" for nothing."""
        return self._numbers.changed(Weights(self._model, {}))

    def same_containers(self) -> bool:
        """Whether lists, dictionaries and objects that are attributes hold what they
        held."""
        return _same(self._containers, self._contents)

    def same_weights(self) -> bool:
        """Whether no tensor's values have changed."""
        rows, marks = self._rows, self._marks  # of memory that is still there, then
        return _state.holds_tensors(rows) and _state.has_bytes(marks)

    def same_kinds(self) -> bool:
        """Whether the tensors still have their types, shapes and devices."""
        now = [held.get(name) for held, name in self._held]
        return [None if each is None else Kind.of(each) for each in now] == self._kinds

    def other_kinds(self) -> bool:
        """Whether a tensor has another type, shape or device; those whose values are
        the same are not looked at."""
        return not self.same_weights() and not self.same_kinds()

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
            each for each in modules if not has_hooks(each) and stands_for(each) is None
        ]
        children = [each._modules for each in modules if each._modules]
        hooks = [
            hooks
            for each in modules
            for hooks in (each._forward_hooks, each._forward_pre_hooks)
        ]
        attributes = [vars(each) for each in plain]
        own = [
            (group, name, value)
            for group in attributes
            for name, value in group.items()
            if name not in _COMMON
        ]
        modes = [
            (vars(each), "training", each.training)
            for each in modules
            if "training" in vars(each)  # stand-ins have their models'
        ]
        below = [(group, *item) for group in children for item in group.items()]
        tensors = [
            group for each in modules for group in (each._parameters, each._buffers)
        ]
        absent = [
            (group, name, None)
            for group in tensors
            for name, value in group.items()
            if value is None
        ]
        groups = [
            (vars(each), name, vars(each)[name])
            for each in modules
            for name in ("_parameters", "_buffers", "_modules")
        ]
        self._rows = [*groups, *own, *modes, *below, *absent]
        counted = [*attributes, *children, *hooks, *tensors]
        self._keys = [(group, tuple(group)) for group in counted]
        loose = [(group, name) for group, name, value in own if _is_tensor(value)]
        self._loose = [_row(group, name) for group, name in loose]
        held = [*(row[0] for row in self._rows), *counted]
        self._groups = list({id(each): each for each in held}.values())
        self._versions = _state.versions(self._groups)

    def same(self) -> bool:
        return self._same_groups() and _state.holds_tensors(self._loose)

    def _same_groups(self) -> bool:
        if _state.has_versions(self._groups, self._versions):
            return True
        now = _state.versions(self._groups)  # before, as other threads may change them
        if not (_state.has_keys(self._keys) and _state.holds(self._rows)):
            return False
        self._versions = now
        return True


# Attributes that all modules have.
_COMMON = vars(torch.nn.Module()).keys()


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


def _is_tensor(value: object) -> bool:
    """Whether it is a tensor of which a version and an address can be asked."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return value.layout == torch.strided and not value.is_inference()  # type: ignore[attr-defined]


def _row(group: dict[str, torch.Tensor], name: str) -> _state.Row:
    tensor = group[name]
    where = tensor._version, tensor.data_ptr()
    # Twice as far apart, the elements of a vector would not fit in its storage.
    room = tensor.untyped_storage().nbytes() // tensor.itemsize
    alone = tensor.dim() == 0 or (tensor.dim() == 1 and room < 2 * len(tensor) - 1)
    return group, name, tensor, *where, tensor.shape, None if alone else tensor.stride()


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


def _marks(tensors: list[torch.Tensor]) -> list[tuple[int, bytes]]:
    """Where two elements lie of each weight with dimensions or buffer, and what they
    are."""
    places = [
        (each.data_ptr() + at * each.element_size(), each.element_size())
        for each in tensors
        if each.numel() > 1
        and (each.dim() > 1 or not isinstance(each, torch.nn.Parameter))
        for at in (0, _middle(each))
    ]
    return [(place, ctypes.string_at(place, size)) for place, size in places]


def _middle(tensor: torch.Tensor) -> int:
    """How many elements a tensor's middle one lies behind its first."""
    middle = [size // 2 for size in tensor.shape]
    strides = zip(middle, tensor.stride(), strict=True)
    return sum(at * stride for at, stride in strides)
