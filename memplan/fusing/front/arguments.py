"""The arguments of a call: tensors, what else is fixed, and what they are told by."""

from __future__ import annotations

import inspect
from typing import Any

from memplan.fusing.front.trace import NotTraceableError


class Signature:
    """What a model's forward takes, asked once: that takes as long as a small layer."""

    def __init__(self) -> None:
        self._forward: Any = None
        self._found: inspect.Signature | None = None
        self._names: list[str] = []
        self._rest: dict[str, Any] | None = None  # plain defaults; None if not all are

    def bound(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
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


def _simple(signature: inspect.Signature) -> tuple[list[str], dict[str, Any] | None]:
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


def _all_tensors(args: tuple[Any, ...]) -> bool:
    import torch

    return all(isinstance(each, torch.Tensor) for each in args)


def _sorted(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    import torch
    from torch.utils._pytree import tree_leaves

    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    tensors, fixed = {}, {}
    for name, value in given.arguments.items():
        kind = signature.parameters[name].kind
        if isinstance(value, torch.Tensor):
            if kind is kind.POSITIONAL_ONLY:
                raise NotTraceableError(f"its argument {name} has a place and no name")
            tensors[name] = value
        elif kind in (kind.VAR_POSITIONAL, kind.VAR_KEYWORD):
            if value:
                raise NotTraceableError(f"it takes *{name}")
        elif isinstance(value, PLAIN):
            fixed[name] = value
        elif any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value)):
            raise NotTraceableError(f"its argument {name} holds tensors inside others")
        else:
            fixed[name] = value
    return tensors, fixed


PLAIN = (bool, int, float, complex, str, bytes, type(None))


def key_of(tensors: dict[str, Any], fixed: dict[str, Any]) -> Any:
    """What a program is made for: shapes, types, order in memory, plain values.

    Raises NotTraceableError for other arguments, whose insides may change unseen.
    """
    import torch

    return (
        tuple(
            (name, each.shape, each.dtype, each.device, order_of(each))
            for name, each in tensors.items()
        ),
        tuple((name, _told_apart(name, value)) for name, value in fixed.items()),
        torch.get_num_threads(),
    )


def order_of(tensor: Any) -> Any:
    """How a tensor lies in memory, as what torch makes of it follows from it."""
    import torch

    if tensor.is_contiguous():
        # Of one point or one channel, both formats can be said to be there.
        if tensor.dim() != 4 or not _says_last(tensor.stride()):
            return "first"
        return "last"
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return "last" if last else tensor.stride()


def _says_last(strides: tuple[int, ...]) -> bool:
    """Whether a tensor's strides ask for channels last: see `suggest_memory_format`."""
    return strides[1] == 1 and strides[1] < strides[3] <= strides[2] <= strides[0]


def _told_apart(name: str, value: Any) -> Any:
    """A plain value so that 1, 1.0 and True differ, and 0.0 from -0.0."""
    import torch

    if isinstance(value, tuple | list):
        return type(value), tuple(_told_apart(name, each) for each in value)
    if not isinstance(value, (*PLAIN, torch.dtype, torch.device)):
        raise NotTraceableError(f"its argument {name} is a {type(value).__name__}")
    return type(value), repr(value) if isinstance(value, float) else value
