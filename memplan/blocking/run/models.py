"""The layers of a PyTorch model, as it runs them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from memplan.blocking.nest.layer import Layer, fully_connected, pooling
from memplan.errors import EnvironmentUnfitError, InputError
from memplan.factory import UserFile, blaming, parse_spec

IMAGE_DIMS = 4  # N, C, H, W
# Parts of names of operations that multiply matrices inside, out of sight.
_HEAVY = ("rnn", "lstm", "gru", "scaled_dot_product")


@dataclass(frozen=True)
class ModelLayer:
    """A layer, named after the first module that ran it, and how often it is run."""

    layer: Layer
    count: int


@dataclass(frozen=True)
class ModelLayers:
    """layers: each once, in the order they first ran; skipped: operations that are no
    loop nest of this kind, with the reason."""

    layers: tuple[ModelLayer, ...]
    skipped: tuple[str, ...]


def layers_of_model(spec: str) -> ModelLayers:
    """The layers that ``model.py:factory`` runs.

    The factory is called without arguments, and returns the model and its inputs, as a
    pair. The model runs once, without gradients.
    Raises UsageError or InputError where that fails, with the reason.
    """
    model, inputs = _made(spec)
    return layers_of(model, inputs, f"{spec}: the model")


def layers_of(
    model: Any, inputs: tuple[Any, ...], name: str = "the model"
) -> ModelLayers:
    """The layers that `model`, a torch.nn.Module, runs on `inputs`.

    Convolutions in one or two dimensions, matrix products and pooling, whether they
    come from modules or from functions. Raises InputError where the model, called
    `name`, fails.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found = _Found()

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            found.note(str(func.overloadpacket.__name__), args, kwargs or {}, result)
            return result

    failing = blaming(f"{name} failed on its inputs")
    with failing, torch.no_grad(), found.following(model), Watch():
        model(*inputs)
    return found.all()


class _Found:
    """Collects layers; equal ones are counted."""

    def __init__(self) -> None:
        self._module: list[str] = []
        self._layers: dict[Layer, tuple[str, int]] = {}
        self._skipped: dict[str, None] = {}

    @contextmanager
    def following(self, model: Any) -> Iterator[None]:
        """While this lasts, know which module of `model` is running."""
        hooks = []
        for name, module in model.named_modules():
            label = name or type(model).__name__

            def enter(*_: object, label: str = label) -> None:
                self._module.append(label)

            def leave(*_: object) -> None:
                self._module.pop()

            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def note(self, operation: str, args: Any, kwargs: Any, result: Any) -> None:
        """One operation that ran."""
        where = self._module[-1] if self._module else operation
        read = _READERS.get(operation)
        if read is None:
            if any(part in operation for part in _HEAVY):
                self._skipped[f"{where}: {operation} is one operation to torch"] = None
            return
        try:
            layer = read(*args, result=result, **kwargs)
        except _NotALoopNestError as reason:
            self._skipped[f"{where}: {reason}"] = None
            return
        except InputError as error:
            self._skipped[f"{where}: {error}"] = None
            return
        name, count = self._layers.get(layer, (where, 0))
        self._layers[layer] = name, count + 1

    def all(self) -> ModelLayers:
        """Everything noted so far."""
        layers = tuple(
            ModelLayer(replace(layer, name=name), count)
            for layer, (name, count) in self._layers.items()
        )
        return ModelLayers(layers, tuple(self._skipped))


class _NotALoopNestError(Exception):
    """Why an operation is left out."""


def _convolution(  # noqa: PLR0913, PLR0917 - torch's own
    image: Any,
    weight: Any,
    bias: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    *,
    result: Any,
) -> Layer:
    if transposed:
        raise _NotALoopNestError("a transposed convolution")
    if any(step != 1 for step in dilation):
        raise _NotALoopNestError("a dilated convolution")
    if image.dim() > IMAGE_DIMS:
        raise _NotALoopNestError(f"a convolution in {image.dim() - 2} dimensions")
    flat = image.dim() < IMAGE_DIMS
    return Layer(
        "",
        X=result.shape[-1],
        Y=1 if flat else result.shape[-2],
        C=weight.shape[1],
        K=weight.shape[0] // groups,
        Fw=weight.shape[-1],
        Fh=1 if flat else weight.shape[-2],
        B=image.shape[0],
        G=groups,
        stride=(stride[-1], 1 if flat else stride[-2]),
    )


def _product(left: Any, right: Any, *, result: Any) -> Layer:
    return fully_connected("", right.shape[0], right.shape[1], left.shape[0])


def _sum_and_product(
    added: Any, left: Any, right: Any, *, result: Any, **_: object
) -> Layer:
    return _product(left, right, result=result)


def _products(left: Any, right: Any, *, result: Any) -> Layer:
    groups, rows, inner = left.shape
    return replace(fully_connected("", inner, right.shape[2], rows), G=groups)


def _pooling(
    image: Any,
    window: list[int],
    stride: list[int] | None = None,
    *_: object,
    result: Any,
    **__: object,
) -> Layer:
    reduced = result[0] if isinstance(result, tuple) else result
    steps = list(stride or window)
    batch = image.shape[0] if image.dim() == IMAGE_DIMS else 1
    layer = pooling(
        "",
        reduced.shape[-1],
        reduced.shape[-2],
        reduced.shape[-3],
        (window[-1], window[0]),
        1,
    )
    return replace(layer, B=batch, stride=(steps[-1], steps[0]))


_READERS: dict[str, Callable[..., Layer]] = {
    "convolution": _convolution,
    "mm": _product,
    "addmm": _sum_and_product,
    "bmm": _products,
    "max_pool2d_with_indices": _pooling,
    "avg_pool2d": _pooling,
}


def _made(spec: str) -> tuple[Any, tuple[Any, ...]]:
    """The model and its inputs, from ``model.py:factory``."""
    file, name = parse_spec(spec)
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentUnfitError(
            f"{spec} needs PyTorch: pip install 'memplan[torch]'"
        )
    made = UserFile(file).call(name)
    import torch

    pair = isinstance(made, tuple) and len(made) == 2
    if not pair or not isinstance(made[0], torch.nn.Module):
        raise InputError(f"{spec} must return a pair: the model, and its inputs")
    inputs = made[1] if isinstance(made[1], tuple) else (made[1],)
    return made[0], inputs
