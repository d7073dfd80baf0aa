"""What a model returns, made of an engine's values: in memory of its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from memplan.fusing.engine.runner import Values
from memplan.fusing.front.nest import changed, leaves_of, overlapping, storages
from memplan.fusing.layers import Network
from memplan.graph.program import Ref, mapped, refs


class Results:
    """The values that `outputs`, a nest of Ref, names, laid out as the model's are.

    images: how many a whole call has.
    """

    def __init__(self, outputs: Any, network: Network, images: int) -> None:
        self._outputs, self._images = outputs, images
        self._given = {*network.inputs, *network.constants}
        self.names = list(dict.fromkeys(refs(outputs)))
        self._tensors = all(name in network.shapes for name in self.names)
        self._strides: dict[str, tuple[int, ...]] = {}
        self._copied: set[str] = set()  # what the model does not give back as it is

    def learn(self, expected: Any, inputs: Values) -> None:
        """Take note of how the model's results lie in memory, and which are `inputs`
        themselves or lie in them."""
        if not self._tensors:  # their leaves are not those of `expected`
            return
        given = storages(inputs.values())
        mine = leaves_of(mapped(self._outputs, _Leaf))
        for leaf, value in zip(mine, leaves_of(expected), strict=False):
            if isinstance(leaf, _Leaf) and hasattr(value, "stride"):
                self._strides[leaf.name] = tuple(value.stride())
                if not storages([value]) & given and leaf.name in self._given:
                    self._copied.add(leaf.name)

    def of(self, values: Values, inputs: Values, arena: int | None) -> Any:
        """The outputs. arena: where the memory begins that is used again; None if
        no value is in it."""
        found = {name: self._own(name, values, inputs, arena) for name in self.names}
        return mapped(self._outputs, lambda ref: found[ref.name])

    def _own(self, name: str, values: Values, inputs: Values, arena: int | None) -> Any:
        """A value that stays when the arena is used again."""
        import torch

        if name in inputs and name not in self._copied:
            return inputs[name]
        value = values[name]
        if not isinstance(value, torch.Tensor):
            return changed(value, lambda each: _out_of(each, arena))
        inside = value.untyped_storage().data_ptr() == arena
        if not (inside or name in self._copied):
            return value
        return self._empty(name, value, tuple(value.shape)).copy_(value)

    def lies(self, name: str, strides: tuple[int, ...]) -> bool:
        """Whether it is a result, and the model lays it out by these strides."""
        return name in self.names and self._strides.get(name) == strides

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory for a result that `lies`, of the shape given."""
        import torch

        return torch.empty_strided(shape, self._strides[name], dtype=dtype)

    def put(
        self, found: Values, values: Values, start: int, there: Collection[str]
    ) -> None:
        """Copy the results of some images, but those that are `there`, to where those
        of all go."""
        for name in self.names:
            if name in there:
                continue
            value = values[name]
            if name not in found:
                shape = self._images, *value.shape[1:]
                found[name] = self._empty(name, value, shape)
            found[name][start : start + value.shape[0]] = value

    def _empty(self, name: str, value: Any, shape: tuple[int, ...]) -> Any:
        import torch

        strides = self._strides.get(name)
        if strides is None or len(strides) != len(shape) or overlapping(shape, strides):
            return torch.empty(shape, dtype=value.dtype, device=value.device)
        return torch.empty_strided(
            shape, strides, dtype=value.dtype, device=value.device
        )


class _Leaf:
    """A Ref as pytrees do not look into it."""

    def __init__(self, ref: Ref) -> None:
        self.name = ref.name


def _out_of(value: Any, arena: int | None) -> Any:
    inside = value.untyped_storage().data_ptr() == arena
    return value.clone() if inside else value
