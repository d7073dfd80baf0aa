"""One-element tensors of a model whose values its code reads, as sizes for example."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # counts batches

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

Number = tuple[torch.dtype, Any]  # and the value, as `tolist` gives it


@dataclass(frozen=True)
class Numbers:
    """Integer buffers and attributes of one element, with the values that they had.

    values: by the names that the tensors have in the model.
    """

    values: Mapping[str, Number]

    @classmethod
    def of(cls, model: nn.Module) -> Numbers:
        """Those of a model, as they are now."""
        found = {
            f"{path}.{name}" if path else name: number
            for path, module in model.named_modules(remove_duplicate=False)
            if not isinstance(module, _NormBase)
            for group in (module._buffers, vars(module))
            for name, value in group.items()
            if (number := _number(value)) is not None
        }
        return cls(found)

    @contextlib.contextmanager
    def inlined(self, model: nn.Module) -> Iterator[None]:
        """While a model is traced, its numbers are constants of known values."""
        before = []
        try:
            for name, (dtype, value) in self.values.items():
                owner, _, attribute = name.rpartition(".")
                module = model.get_submodule(owner)
                own = module._buffers
                group: Any = own if attribute in own else vars(module)
                before.append((group, attribute, group[attribute]))
                group[attribute] = torch.tensor(value, dtype=dtype)
            yield
        finally:
            for group, attribute, tensor in reversed(before):
                group[attribute] = tensor

    def changed(self, weights: Mapping[str, object]) -> str:
        """What is another value among a model's tensors now; "" for nothing."""
        for name, then in self.values.items():
            if _number(weights.get(name)) != then:
                return f"{name} has another value than when it was exported"
        return ""


NONE = Numbers({})


def _number(value: object) -> Number | None:
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
        return None
    if value.numel() != 1 or value.dtype not in INTEGERS or value.device.type != "cpu":
        return None
    return value.dtype, value.tolist()
