"""The inputs on which a model is run and checked, and what restores them afterwards."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from memplan.errors import InputError, UsageError
from memplan.graph.measure import other_inputs

SEED = 20240511

Call = tuple[tuple[object, ...], dict[str, object]]
"""The arguments of a call, by position and by name."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of a forward: args by position, kwargs by name."""

    args: tuple[object, ...]
    kwargs: dict[str, object]

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

    def others(self) -> Inputs:
        """Arguments of the same shapes with random values."""
        leaves, spec = tree_flatten((self.args, self.kwargs))
        args, kwargs = tree_unflatten(other_inputs(leaves, SEED), spec)
        return Inputs(args, kwargs)

    def results(self, model: Callable[..., object], required: int = 1) -> list[object]:
        """What the model returns for these inputs, and for random ones.

        A model may reject random inputs, which need not be valid indices, say; then
        there is one result. required: results without which the model's exception
        propagates.
        """
        snapshot = self.snapshot(model)
        with torch.no_grad(), _seeded():
            try:
                found = [self.run(model)]
                snapshot.restore()
                others = self.others()
                try:
                    found.append(others.run(model))
                except Exception:
                    if required > 1:
                        raise
            finally:
                snapshot.restore()
        return found

    def run(self, model: Callable[..., object]) -> object:
        """What the model returns for these inputs."""
        return model(*self.args, **self.kwargs)

    def snapshot(self, model: nn.Module) -> BufferSnapshot:
        """The inputs and the model's buffers as they are now."""
        return BufferSnapshot([*self.leaves(), *model.buffers()])

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


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Draw the same random numbers each time; the user's generators are restored."""
    devices: list[int] | None = None if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(SEED)
        yield


class BufferSnapshot:
    """Copies of tensors that restore what a run has written to.

    Only tensors whose version counter changed are written back.
    """

    def __init__(self, tensors: Iterable[object]) -> None:
        self._held = [
            (tensor, tensor.detach().clone())
            for tensor in tensors
            if isinstance(tensor, Tensor) and not tensor.is_inference()
        ]
        self._versions = [tensor._version for tensor, _ in self._held]

    def restore(self) -> None:
        """Write back what has changed since the snapshot, or the last restore."""
        with torch.no_grad():
            for i, (tensor, copy) in enumerate(self._held):
                if tensor._version != self._versions[i]:
                    tensor.copy_(copy)
                    self._versions[i] = tensor._version


POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


class Signature:
    """Which arguments a forward was called with, by position or by name."""

    def __init__(
        self, forward: Callable[..., object], count: int, names: list[str]
    ) -> None:
        """count: how many arguments were passed by position; names: those by name."""
        self._signature = inspect.signature(forward)
        parameters = self._signature.parameters.values()
        positional = [each.name for each in parameters if each.kind in POSITIONAL]
        self._positions, self._names = positional[:count], names
        self._plain = len(self._positions) == count and set(names) <= {
            each.name
            for each in parameters
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        }

    def arranged(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Call:
        """The same call, with the arguments by position or name as at first.

        An argument that equals its default and was not passed at first is dropped; one
        that was passed at first and is missing now becomes its default. A call with
        other arguments, or that forward would reject, is returned as it is.
        """
        if not self._plain:
            return args, kwargs
        try:
            passed = self._signature.bind(*args, **kwargs).arguments
        except TypeError:
            return args, kwargs
        parameters = self._signature.parameters
        wanted = {*self._positions, *self._names}
        for name in wanted - passed.keys():
            if parameters[name].default is inspect.Parameter.empty:
                return args, kwargs
            passed[name] = parameters[name].default
        if not all(
            _is_default(value, parameters[name])
            for name, value in passed.items()
            if name not in wanted
        ):
            return args, kwargs
        positions = tuple(passed[name] for name in self._positions)
        return positions, {name: passed[name] for name in self._names}


def _is_default(value: object, parameter: inspect.Parameter) -> bool:
    """Whether a value is a parameter's default, of the same type."""
    default = parameter.default
    if value is default:
        return True
    plain = isinstance(value, bool | int | float | str)
    return plain and type(value) is type(default) and bool(value == default)
