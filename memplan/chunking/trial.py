"""The inputs on which chunked modules are tried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memplan.chunking.kept import Kept
from memplan.chunking.measure import tolerance
from memplan.errors import InputError, UsageError
from memplan.graph.measure import other_inputs

SEED = 20240511


@dataclass(frozen=True)
class Inputs:
    """The arguments of a forward, and the same in shape with other values."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, inputs: Any) -> Inputs:
        """From a tuple or list of arguments, a mapping of keyword arguments, or one
        tensor. Raises UsageError for anything else."""
        import torch

        if isinstance(inputs, torch.Tensor):
            return cls((inputs,), {})
        if isinstance(inputs, Mapping):
            return cls((), dict(inputs))
        if isinstance(inputs, tuple | list):
            return cls(tuple(inputs), {})
        raise UsageError(
            "inputs are a tuple of arguments, a mapping of keyword arguments or one "
            f"tensor, and not {type(inputs).__name__}"
        )

    def leaves(self) -> list[Any]:
        """All that is in the arguments, tensors and plain values."""
        from torch.utils._pytree import tree_leaves

        leaves: list[Any] = tree_leaves((self.args, self.kwargs))
        return leaves

    def others(self) -> Inputs:
        """Arguments of the same shapes with random values."""
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, spec = tree_flatten((self.args, self.kwargs))
        args, kwargs = tree_unflatten(other_inputs(leaves, SEED), spec)
        return Inputs(args, kwargs)

    def results(self, model: Any) -> list[Any]:
        """What the model gives for these inputs, and for random ones.

        Where it cannot take random ones (they are no valid indices, say), only for
        these.
        """
        import torch

        kept = self.kept(model)
        with torch.no_grad(), _seeded():
            try:
                found = [self.run(model)]
                kept.restore()
                others = self.others()
                with contextlib.suppress(Exception):
                    found.append(others.run(model))
            finally:
                kept.restore()
        return found

    def run(self, model: Any) -> Any:
        """What the model gives for these inputs."""
        return model(*self.args, **self.kwargs)

    def kept(self, model: Any) -> Kept:
        """The inputs and the model's buffers as they are, to be restored."""
        return Kept([*self.leaves(), *model.buffers()])

    def check_device(self, model: Any) -> str:
        """The one device of inputs and model, "cpu" where there are no tensors.

        Raises InputError if there are several, naming two.
        """
        import torch

        places: dict[str, str] = {}
        for i, leaf in enumerate(self.leaves()):
            if isinstance(leaf, torch.Tensor):
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
    """The same random numbers each time, and the user's own after it."""
    import torch

    devices: list[int] | None = None if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(SEED)
        yield


def tolerance_of(results: Any) -> float:
    """The relative error up to which results count as the same."""
    import torch
    from torch.utils._pytree import tree_leaves

    dtypes = {
        leaf.dtype for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)
    }
    return tolerance(dtypes)
