"""The arguments of a call: by name, in one form, and the key of what is prepared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from memplan.errors import InputError, UsageError
from memplan.graph.nest import PLAIN, Kind


class UnsupportedCallError(InputError):
    """A call with arguments that nothing can be prepared for."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of a forward: args by position, kwargs by name."""

    args: tuple[object, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, inputs: object) -> Inputs:
        """From a tuple or list of arguments, a mapping of keyword arguments, or one
        tensor. Raises UsageError for anything else."""
        if isinstance(inputs, Tensor):
            return cls((inputs,), {})
        if isinstance(inputs, Mapping):
            return cls((), dict(inputs))
        if isinstance(inputs, tuple | list):
            return cls(tuple(inputs), {})
        raise UsageError(
            "inputs are a tuple of arguments, a mapping of keyword arguments or one "
            f"tensor, not {type(inputs).__name__}"
        )

    def leaves(self) -> list[object]:
        """All tensors and plain values in the arguments."""
        return list(tree_leaves((self.args, self.kwargs)))

    def tensors(self) -> list[Tensor]:
        """The tensors in the arguments, in the order of the leaves."""
        if not self.kwargs and _all_tensors(self.args):
            return list(self.args)  # soon found: calls do this
        return [leaf for leaf in self.leaves() if isinstance(leaf, Tensor)]

    def with_tensors(self, values: Sequence[object]) -> Inputs:
        """The same inputs with other tensors, in the order of the leaves. Where one is
        given twice, so is the first of its values."""
        leaves, nest = tree_flatten((self.args, self.kwargs))
        given, made = iter(values), dict[int, object]()
        changed = [
            made.setdefault(id(x), next(given)) if isinstance(x, Tensor) else x
            for x in leaves
        ]
        return Inputs(*tree_unflatten(changed, nest))

    def run(self, model: Callable[..., object]) -> object:
        """What the model returns for these inputs."""
        return model(*self.args, **self.kwargs)

    def check_device(self, model: nn.Module) -> str:
        """The one device of inputs and model; "cpu" if there are no tensors.

        Raises InputError, naming two devices, if there are several.
        """
        places: dict[str, str] = {}
        for i, leaf in enumerate(self.leaves()):
            if isinstance(leaf, Tensor):
                places.setdefault(str(leaf.device), f"input {i}")
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            places.setdefault(str(tensor.device), name)
        if len(places) > 1:
            (one, first), (other, second), *_ = places.items()
            raise InputError(
                f"{first} is on {one} and {second} on {other}; move them together"
            )
        return next(iter(places), "cpu")


class Signature:
    """A model's forward signature, cached: inspecting it costs as much as a small
    layer."""

    def __init__(self) -> None:
        self._forward: object = None
        self._found = inspect.Signature()
        self._simple = False

    def _of(self, model: nn.Module) -> inspect.Signature:
        forward = model.forward
        function = getattr(forward, "__func__", forward)
        if function is not self._forward:
            self._found = inspect.signature(forward)
            self._forward = function
            self._simple = _is_simple(self._found)
        return self._found

    def arranged(
        self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Inputs:
        """The same call in one form: arguments that equal their defaults are dropped,
        and those before them go by position where they can.

        A call that forward would reject is returned as it is.
        """
        signature = self._of(model)
        if not kwargs and self._simple and _all_tensors(args):
            return Inputs(args, kwargs)  # none is a default, or in another place
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return Inputs(args, kwargs)
        parameters = bound.signature.parameters
        kinds = {parameters[name].kind for name in bound.arguments}
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            for name, value in list(bound.arguments.items()):
                parameter = parameters[name]
                if parameter.kind is not parameter.POSITIONAL_ONLY and _is_default(
                    value, parameter.default
                ):
                    del bound.arguments[name]
        return Inputs(bound.args, bound.kwargs)


def _all_tensors(values: tuple[object, ...]) -> TypeGuard[tuple[Tensor, ...]]:
    return all(isinstance(each, Tensor) for each in values)


def _is_simple(signature: inspect.Signature) -> bool:
    """Whether all arguments have a name and a place, with plain defaults."""
    return all(
        each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        or (
            each.kind is each.POSITIONAL_OR_KEYWORD
            and (each.default is each.empty or isinstance(each.default, PLAIN))
        )
        for each in signature.parameters.values()
    )


def _is_default(value: object, default: object) -> bool:
    """Whether a value is a parameter's default, of the same type."""
    plain = isinstance(value, PLAIN) and type(value) is type(default)
    return value is default or (plain and bool(value == default))


def key_of(inputs: Inputs) -> tuple[object, list[Tensor]]:
    """The key of a program for inputs like these, and the tensors among them.

    The key has nest, shapes, types, memory order and plain values. Raises
    UnsupportedCallError for other values, whose insides may change unseen.
    """
    nest: TreeSpec | None = None
    leaves: list[object] = list(inputs.args)
    if inputs.kwargs or not _all_tensors(inputs.args):
        leaves, nest = tree_flatten((inputs.args, inputs.kwargs))
    tensors: list[Tensor] = []
    kinds: list[object] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            kinds.append((leaf.shape, leaf.dtype, leaf.device, order_of(leaf)))
        elif isinstance(leaf, (*PLAIN, torch.dtype, torch.device)):
            kinds.append((type(leaf), repr(leaf)))  # 1, 1.0 and True differ
        else:
            kind = type(leaf).__name__
            raise UnsupportedCallError(f"one of its arguments is a {kind}")
    kinds.append(repeats(tensors))
    return (nest, tuple(kinds), torch.get_num_threads()), tensors


def repeats(values: Sequence[object]) -> tuple[int, ...]:
    """Of each of some tensors, the place of the first that is the very same; () if no
    two are. A model may ask whether one argument is another, as attention does."""
    if len(values) < 2 or len(set(map(id, values))) == len(values):
        return ()
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(each), i) for i, each in enumerate(values))


def order_of(tensor: Tensor) -> object:
    """A tensor's memory format, on which torch's results depend."""
    if tensor.is_contiguous():
        # Of one point or one channel, both formats can be said to be there.
        if tensor.dim() != 4 or not _says_last(tensor.stride()):
            return "first"
        return "last"
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return "last" if last else tensor.stride()


def _says_last(strides: tuple[int, ...]) -> bool:
    """Whether torch takes these strides for channels last (`suggest_memory_format`)."""
    return strides[1] == 1 and strides[1] < strides[3] <= strides[2] <= strides[0]


@dataclass(frozen=True)
class Form:
    """What of a call's inputs a program is prepared for.

    nest: how the arguments nest. leaves: the Kind of each tensor, the text of each
    other value. autocast: the device that it applies to and its dtype; () without it.
    same: which tensors are given more than once, as `repeats` has it.
    """

    nest: TreeSpec
    leaves: tuple[Kind | str, ...]
    autocast: tuple[str, torch.dtype] | tuple[()]
    same: tuple[int, ...] = ()

    @classmethod
    def of(cls, inputs: Inputs) -> Form:
        """The form of inputs as they are, under today's autocast."""
        leaves, nest = tree_flatten((inputs.args, inputs.kwargs))
        kinds = tuple(
            Kind.of(leaf) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves
        )
        same = repeats([leaf for leaf in leaves if isinstance(leaf, Tensor)])
        for device in ("cuda", "cpu"):
            if torch.is_autocast_enabled(device):
                dtype = torch.get_autocast_dtype(device)
                return cls(nest, kinds, (device, dtype), same)
        return cls(nest, kinds, (), same)

    def __deepcopy__(self, memo: object) -> Form:
        return self  # it never changes

    def alike(self, other: Form) -> bool:
        """Whether they differ in sizes at most."""
        return self._without_sizes() == other._without_sizes()

    def _without_sizes(self) -> Form:
        kinds = (
            each._replace(shape=(len(each.shape),)) if isinstance(each, Kind) else each
            for each in self.leaves
        )
        return replace(self, leaves=tuple(kinds))

    def within(self, other: Form) -> bool:
        """Whether no size is above that of `other`, which is alike."""
        pairs = zip(self.leaves, other.leaves, strict=True)
        return all(
            size <= most
            for mine, theirs in pairs
            if isinstance(mine, Kind) and isinstance(theirs, Kind)
            for size, most in zip(mine.shape, theirs.shape, strict=True)
        )

    def difference(self, other: Form) -> str:
        """What differs, as in "for 1×3 float32 on cpu, not 2×3 float32 on cpu"."""
        if self.nest != other.nest:
            return "with other arguments"
        for mine, theirs in zip(self.leaves, other.leaves, strict=True):
            if mine != theirs:
                return f"for {mine}, not {theirs}"
        if self.same != other.same:
            return "with other arguments that are one tensor"
        now, then = (" to ".join(map(str, each.autocast)) for each in (other, self))
        return f"with autocast {then or 'off'}, not {now or 'off'}"
