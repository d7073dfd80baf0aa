"""The arguments of a call: by name, in one form, and the key of what is prepared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

from memplan.errors import InputError, UsageError
from memplan.graph.nest import PLAIN, Kind, Tensors


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
        self._names: list[str] = []
        self._rest: dict[str, object] | None = None  # plain defaults, or None

    def _of(self, model: nn.Module) -> inspect.Signature:
        forward = model.forward
        function = getattr(forward, "__func__", forward)
        if function is not self._forward:
            self._found = inspect.signature(forward)
            self._forward = function
            self._names, self._rest = _simple(self._found)
        return self._found

    def arranged(
        self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Inputs:
        """The same call in one form: arguments that equal their defaults are dropped,
        and those before them go by position where they can.

        A call that forward would reject is returned as it is.
        """
        signature = self._of(model)
        if not kwargs and self._rest is not None and _all_tensors(args):
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

    def named(
        self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[Tensors, dict[str, object]]:
        """The arguments of a call by name: tensors, and all the others with defaults.

        Raises TypeError as the call itself would; UnsupportedCallError for tensors in
        lists, dictionaries or ``*args``.
        """
        signature = self._of(model)
        if not kwargs and self._rest is not None and _all_tensors(args):
            missing = len(self._names) - len(args)
            rest = list(self._rest.items())
            if 0 <= missing <= len(rest):
                fixed = dict(rest[len(rest) - missing :])
                return dict(zip(self._names, args, strict=False)), fixed
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        tensors: Tensors = {}
        others: dict[str, object] = {}
        for name, value in given.arguments.items():
            kind = signature.parameters[name].kind
            if isinstance(value, Tensor):
                if kind is kind.POSITIONAL_ONLY:
                    raise UnsupportedCallError(
                        f"its argument {name} is positional-only"
                    )
                tensors[name] = value
            elif kind in (kind.VAR_POSITIONAL, kind.VAR_KEYWORD):
                if value:
                    raise UnsupportedCallError(f"it takes *{name}")
            elif any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
                raise UnsupportedCallError(
                    f"its argument {name} contains tensors in a nested value"
                )
            else:
                others[name] = value
        return tensors, others


def _all_tensors(values: tuple[object, ...]) -> bool:
    return all(isinstance(each, Tensor) for each in values)


def _simple(signature: inspect.Signature) -> tuple[list[str], dict[str, object] | None]:
    """Names of arguments with a name and a place, and those of them with defaults;
    None for these where there are arguments or defaults of other kinds."""
    names, rest = [], {}
    for name, each in signature.parameters.items():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        if each.kind is not each.POSITIONAL_OR_KEYWORD:
            return [], None
        names.append(name)
        if each.default is not each.empty:
            rest[name] = each.default
            if not isinstance(each.default, PLAIN):
                return [], None
    return names, rest


def _is_default(value: object, default: object) -> bool:
    """Whether a value is a parameter's default, of the same type."""
    plain = isinstance(value, PLAIN) and type(value) is type(default)
    return value is default or (plain and bool(value == default))


def key_of(tensors: Tensors, fixed: dict[str, object]) -> object:
    """The key of a program: shapes, types, memory order, plain values.

    Raises UnsupportedCallError for other arguments, whose insides may change unseen.
    """
    return (
        tuple(
            (name, each.shape, each.dtype, each.device, order_of(each))
            for name, each in tensors.items()
        ),
        tuple((name, _distinguish(name, value)) for name, value in fixed.items()),
        torch.get_num_threads(),
    )


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


def _distinguish(name: str, value: object) -> object:
    """A key of a plain value in which 1, 1.0 and True differ, and 0.0 and -0.0."""
    if isinstance(value, tuple | list):
        return type(value), tuple(_distinguish(name, each) for each in value)
    if not isinstance(value, (*PLAIN, torch.dtype, torch.device)):
        raise UnsupportedCallError(f"its argument {name} is a {type(value).__name__}")
    return type(value), repr(value) if isinstance(value, float) else value


@dataclass(frozen=True)
class Form:
    """What of a call's inputs a program is prepared for.

    nest: how the arguments nest. leaves: the Kind of each tensor, the text of each
    other value. autocast: the device that it applies to and its dtype; () without it.
    """

    nest: TreeSpec
    leaves: tuple[Kind | str, ...]
    autocast: tuple[str, torch.dtype] | tuple[()]

    @classmethod
    def of(cls, inputs: Inputs) -> Form:
        """The form of inputs as they are, under today's autocast."""
        leaves, nest = tree_flatten((inputs.args, inputs.kwargs))
        kinds = (
            Kind.of(leaf) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves
        )
        for device in ("cuda", "cpu"):
            if torch.is_autocast_enabled(device):
                dtype = torch.get_autocast_dtype(device)
                return cls(nest, tuple(kinds), (device, dtype))
        return cls(nest, tuple(kinds), ())

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

    def difference(self, other: Form) -> str:
        """What differs, as in "for 1×3 float32 on cpu, not 2×3 float32 on cpu"."""
        if self.nest != other.nest:
            return "with other arguments"
        for mine, theirs in zip(self.leaves, other.leaves, strict=True):
            if mine != theirs:
                return f"for {mine}, not {theirs}"
        now, then = (" to ".join(map(str, each.autocast)) for each in (other, self))
        return f"with autocast {then or 'off'}, not {now or 'off'}"
