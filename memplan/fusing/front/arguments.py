"""The arguments of a call: tensors, fixed values, and the key of their program."""

from __future__ import annotations

import inspect

import torch
from torch.utils._pytree import tree_leaves

from memplan.fusing.front.capture import NotTraceableError
from memplan.fusing.front.nest import Tensors


class Signature:
    """A model's forward signature, cached: inspecting it costs as much as a small
    layer."""

    def __init__(self) -> None:
        self._forward: object = None
        self._found: inspect.Signature | None = None
        self._names: list[str] = []
        self._rest: dict[str, object] | None = None  # plain defaults, or None

    def bound(
        self,
        model: torch.nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> tuple[Tensors, dict[str, object]]:
        """The arguments of a call by name: tensors, and all the others with defaults.

        Raises TypeError as the call itself would; NotTraceableError for tensors in
        lists, dictionaries or ``*args``.
        """
        forward = model.forward
        function = getattr(forward, "__func__", forward)
        if function is not self._forward or self._found is None:
            self._found = inspect.signature(forward)
            self._forward = function
            self._names, self._rest = _simple(self._found)
        if not kwargs and self._rest is not None and _all_tensors(args):
            missing = len(self._names) - len(args)
            rest = list(self._rest.items())
            if 0 <= missing <= len(rest):
                fixed = dict(rest[len(rest) - missing :])
                return dict(zip(self._names, args, strict=False)), fixed
        return _sorted(self._found, args, kwargs)


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


def _all_tensors(args: tuple[object, ...]) -> bool:
    return all(isinstance(each, torch.Tensor) for each in args)


def _sorted(
    signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Tensors, dict[str, object]]:
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    tensors: Tensors = {}
    fixed: dict[str, object] = {}
    for name, value in given.arguments.items():
        kind = signature.parameters[name].kind
        if isinstance(value, torch.Tensor):
            if kind is kind.POSITIONAL_ONLY:
                raise NotTraceableError(f"its argument {name} is positional-only")
            tensors[name] = value
        elif kind in (kind.VAR_POSITIONAL, kind.VAR_KEYWORD):
            if value:
                raise NotTraceableError(f"it takes *{name}")
        elif isinstance(value, PLAIN):
            fixed[name] = value
        elif any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value)):
            raise NotTraceableError(
                f"its argument {name} contains tensors in a nested value"
            )
        else:
            fixed[name] = value
    return tensors, fixed


PLAIN = (bool, int, float, complex, str, bytes, type(None))


def key_of(tensors: Tensors, fixed: dict[str, object]) -> object:
    """The key of a program: shapes, types, memory order, plain values.

    Raises NotTraceableError for other arguments, whose insides may change unseen.
    """
    return (
        tuple(
            (name, each.shape, each.dtype, each.device, order_of(each))
            for name, each in tensors.items()
        ),
        tuple((name, _distinguish(name, value)) for name, value in fixed.items()),
        torch.get_num_threads(),
    )


def order_of(tensor: torch.Tensor) -> object:
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
        raise NotTraceableError(f"its argument {name} is a {type(value).__name__}")
    return type(value), repr(value) if isinstance(value, float) else value
