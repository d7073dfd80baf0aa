"""Refuse models that write to their parameters as they run."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memplan.errors import InputError
from memplan.graph.call import Inputs
from memplan.graph.check import undone


def check_parameters(model: nn.Module, inputs: Inputs) -> None:
    """Raise InputError if a run of the model writes to a parameter; all is as it was.

    Only parameters that are written to are copied. If the model fails there is no
    error: it will where its results are wanted.
    """
    with undone(model, inputs):
        kept = _Kept(model)
        try:
            written = kept.names(inputs)
            if not written:
                return
            reason = f"it writes to its parameter '{written[0]}'"
            if not _Kept(model).names(inputs):
                reason += " at its first run alone; run the model once before"
            raise InputError(reason)
        finally:
            kept.restore()


class _Kept(TorchDispatchMode):  # type: ignore[misc]
    """Copies each parameter before an operator writes to its memory, and holds the
    memory that each has."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self._left: dict[int, list[tuple[str, Tensor]]] = {}
        named = [item for item in model.named_parameters() if not is_lazy(item[1])]
        for name, each in named:
            if place := _place(each):
                self._left.setdefault(place, []).append((name, each))
        self._copies: list[tuple[str, Tensor, Tensor]] = []
        self._data = [(name, each, each.data) for name, each in named]

    def names(self, inputs: Inputs) -> list[str]:
        """The parameters that a run writes to."""
        with torch.no_grad(), contextlib.suppress(Exception), self:
            inputs.run(self._model)  # the user's code may raise anything
        other = (n for n, each, data in self._data if _place(each) != _place(data))
        return [*(name for name, _, _ in self._copies), *other]

    def restore(self) -> None:
        """Put the values back."""
        with torch.inference_mode():  # which may write to tensors made in it, too
            for _, parameter, data in self._data:
                if _place(parameter) != _place(data):
                    parameter.data = data
            for _, parameter, copy in self._copies:
                parameter.copy_(copy)

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for i, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    given = args[i] if i < len(args) else kwargs.get(argument.name)
                    self._keep(given)
        return func(*args, **kwargs)

    def _keep(self, given: object) -> None:
        for each in tree_leaves(given):
            if isinstance(each, Tensor):
                for name, parameter in self._left.pop(_place(each), ()):
                    self._copies.append((name, parameter, parameter.detach().clone()))


def _place(tensor: Tensor) -> int:
    """The address of its storage; 0 for none, as of sparse tensors."""
    strided = tensor.layout is torch.strided
    return int(tensor.untyped_storage().data_ptr()) if strided else 0
