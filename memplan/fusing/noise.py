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

    run: the model. images: rows of every input and result, of which the model computes
    the first alone; 0 where all. The model runs when it is asked first.
    """

    inputs: dict[str, Any]
    run: Callable[[dict[str, Any]], Any]
    images: int
    _first: list[Any] | None = None
    _whole: list[Any] | None = None
    _at_once: list[Any] | None = None  # what an engine of all images found

    @classmethod
    def like(
        cls,
        inputs: dict[str, Any],
        run: Callable[[dict[str, Any]], Any],
        images: int,
    ) -> Noise:
        """images: of a call, if each stands for itself as far as shapes tell, else 0.

        An image all alike tells little by itself: then all images of the noise do.
        """
        values = other_inputs(list(inputs.values()), seed=1)
        alone = images > 1 and all(varied(x, images) for x in inputs.values())
        return cls(dict(zip(inputs, values, strict=True)), run, images if alone else 0)

    def error(self, found: Any, batch: int, tolerance: float) -> float:
        """The largest relative error of what an engine of so many images at a time
        found on `inputs`.

        The model's own first image says nothing of whether images are mixed, which all
        of them at once do as they should: fewer at a time are compared with that, too.
        Beyond `tolerance`, all are compared with the model's own.
        """
        leaves = leaves_of(found)
        if self._whole is None and self.images:
            error = self._first_error(leaves)
            if batch < self.images:
                error = max(error, self._apart(leaves))
            if error <= tolerance:
                if batch >= self.images:
                    self._at_once = leaves
                return error
        if self._whole is None:
            self._whole = leaves_of(self.run(self.inputs))
        return relative_error(self._whole, leaves)

    def _apart(self, found: list[Any]) -> float:
        """How far results are from those of all images at once; infinite if there are
        none to compare with."""
        if self._at_once is None:
            return float("inf")
        return relative_error(self._at_once, found)

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


def varied(value: Any, images: int = 1) -> bool:
    """Whether elements differ within each of so many parts of a tensor: results on
    others tell little."""
    rows = value.reshape(images, -1)
    return rows.shape[1] > 1 and bool((rows != rows[:, :1]).any(1).all())
