"""Other inputs that an engine is tried on, and what the model makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memplan.fusing.front.nest import leaves_of
from memplan.graph.measure import other_inputs, relative_error


@dataclass
class Noise:
    """Inputs of the shapes of those given, with other values.

    run: the model. images: rows of every input and result, of which the first is
    enough to be looked at; 0 where all are. The model runs when it is asked first.
    """

    inputs: dict[str, Any]
    run: Callable[[dict[str, Any]], Any]
    images: int
    _first: list[Any] | None = None
    _whole: list[Any] | None = None

    @classmethod
    def like(
        cls,
        inputs: dict[str, Any],
        run: Callable[[dict[str, Any]], Any],
        images: int,
    ) -> Noise:
        """images: of a call, if each stands for itself as far as shapes tell, else 0.

        Inputs all alike tell little by themselves: then all images of the noise do.
        """
        values = other_inputs(list(inputs.values()), seed=1)
        alone = images > 1 and all(map(varied, inputs.values()))
        return cls(dict(zip(inputs, values, strict=True)), run, images if alone else 0)

    def error(self, found: Any, tolerance: float) -> float:
        """The largest relative error of what was found on `inputs`.

        A model that mixes its images gives something else on the first alone: beyond
        `tolerance` all of them are compared.
        """
        leaves = leaves_of(found)
        error = self._first_error(leaves) if self.images else float("inf")
        if error <= tolerance:
            return error
        if self._whole is None:
            self._whole = leaves_of(self.run(self.inputs))
        return relative_error(self._whole, leaves)

    def _first_error(self, found: list[Any]) -> float:
        if self._first is None:
            try:
                first = self.run({name: x[:1] for name, x in self.inputs.items()})
            except Exception:  # it wants as many images as it was given
                self.images = 0
                return float("inf")
            self._first = leaves_of(first)
        return relative_error(self._first, [_first_row(value) for value in found])


def _first_row(value: Any) -> Any:
    import torch

    return value[:1] if isinstance(value, torch.Tensor) else value


def varied(value: Any) -> bool:
    """Whether a tensor's elements differ: results on others tell little."""
    return bool(value.numel() > 1 and (value != value.flatten()[0]).any())
