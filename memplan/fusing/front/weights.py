"""A model's parameters and buffers by name, and whether they are what they were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memplan.fusing.front.trace import has_hooks


def fetch(model: Any, name: str) -> Any:
    """The tensor at `name`, as in ``layer1.0.weight``."""
    owner, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(owner), attribute)


class Watch:
    """What a model was when its weights were packed: cheap to compare at every call.

    A change of a tensor in place is seen by its version, which every operation of
    torch raises, but for those through ``.data``; another tensor or module in a place
    by identity; training mode and hooks by looking.
    """

    def __init__(self, model: Any, names: Iterable[str]) -> None:
        self._model, self._names = model, list(names)
        self._tensors = []
        for name in self._names:
            owner, _, attribute = name.rpartition(".")
            module = model.get_submodule(owner)
            held = next(
                (
                    group
                    for group in (module._parameters, module._buffers)
                    if attribute in group
                ),
                vars(module),
            )
            tensor = held[attribute]
            self._tensors.append(
                (held, attribute, tensor, tensor._version, tensor.data_ptr())
            )
        self._modules = list(model.modules())
        self._places = [
            (module._modules, name, child)
            for module in self._modules
            for name, child in module._modules.items()
        ]
        self._states = [_state(module) for module in self._modules]

    def again(self) -> Watch:
        """The same model watched from now on."""
        return Watch(self._model, self._names)

    def same_weights(self) -> bool:
        """Whether every tensor holds what it held."""
        return all(
            held.get(name) is tensor
            and tensor._version == version
            and tensor.data_ptr() == pointer
            for held, name, tensor, version, pointer in self._tensors
        )

    def same_modules(self) -> bool:
        """Whether the model has the modules it had, in the modes they were in, and
        hooks where it had them."""
        return all(
            held.get(name) is child for held, name, child in self._places
        ) and self._states == [_state(module) for module in self._modules]


def _state(module: Any) -> tuple[bool, bool]:
    return module.training, has_hooks(module)
