"""The picture of a chunked model's activations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.chunking.curve import Curve, curve
from memplan.cli.chunk_report import place
from memplan.plotting.activations import Activations, activations

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(module: Any) -> Figure:
    """The activations of a model that runs in chunks: of all of it, or of the part
    whose peak was highest."""
    curves = {path: curve(each.original) for path, each in module.chunks.items()}
    path = max(curves, key=lambda path: max(curves[path].live))
    after = curve(module.chunks[path].program)
    name = type(module.model).__name__ + (f", {path}" if path else "")
    return activations(
        _drawn(curves[path]), _drawn(after), module.memplan.budget_bytes, name
    )


def _drawn(found: Curve) -> Activations:
    operator = found.operators[found.at].removeprefix("aten.")
    line = found.lines[found.at]
    return Activations(
        found.live,
        f"{operator}, {place(line)}" if line else operator,
        [(band.start, band.stop, band.times) for band in found.bands],
    )
