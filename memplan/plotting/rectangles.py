"""The rectangles of a packing: what buffers use, in ticks and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from memplan.arrays import BoolArray, Float64Array, Int64Array
from memplan.core.problem import Problem, pieces

INCHES = (12, 7)  # of the picture
BOX = (0.085, 0.155, 0.785, 0.72)  # of it the axes

_LIMITS = (0.01, 0.1, 0.5)  # of the clock: what parts the lifetime classes


@dataclass(frozen=True)
class Rectangles:
    """Rectangles, shape (m,) each: ticks, bytes, class; a wrapped buffer has two, one
    with gaps as many as it has pieces."""

    left: Int64Array
    right: Int64Array
    bottom: Int64Array
    height: Int64Array
    kind: npt.NDArray[np.intp]

    @classmethod
    def of(cls, problem: Problem, offsets: Int64Array) -> Rectangles:
        """Of a plan's buffers, the short-lived ones last."""
        start, end = clock(problem)
        used = pieces(problem)
        wraps = used.lower > used.upper
        again = np.flatnonzero(wraps & (used.upper > 0))
        rows = np.concatenate([np.arange(len(used)), again])
        left = np.concatenate([used.lower, np.full(len(again), start)])
        right = np.where(wraps, end, used.upper)
        right = np.concatenate([right, used.upper[again]])
        # Short-lived ones last: drawn at least a pixel wide, they stay in sight.
        order = np.argsort(left - right, kind="stable")
        rows = rows[order]
        owner, begin = used.owner[rows], used.begin[rows]
        return cls(
            left[order],
            right[order],
            offsets[owner] + begin,
            used.end[rows] - begin,
            lifetime_classes(problem)[owner],
        )

    def __len__(self) -> int:
        return len(self.left)

    def chosen(self, mask: BoolArray) -> Rectangles:
        """Those of the rectangles."""
        columns = (self.left, self.right, self.bottom, self.height, self.kind)
        return Rectangles(*(column[mask] for column in columns))

    def points(self, axes: Axes) -> tuple[Float64Array, Float64Array]:
        """Widths and heights on paper, in points, shape (m,) each."""
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        across = np.float64(72 * INCHES[0] * BOX[2] / (right - left))
        up = np.float64(72 * INCHES[1] * BOX[3] / (high - low))
        return (self.right - self.left) * across, self.height * up

    def corners(self) -> Any:
        """The rectangles' corners, float, shape (m, 4, 2)."""
        top = self.bottom + self.height
        x = np.stack([self.left, self.right, self.right, self.left], axis=1)
        y = np.stack([self.bottom, self.bottom, top, top], axis=1)
        return np.stack([x, y], axis=2).astype(float)


def lifetime_classes(problem: Problem) -> npt.NDArray[np.intp]:
    """0 to 3 by the part of the clock a buffer lives, 4 if it wraps; shape (n,)."""
    start, end = clock(problem)
    part = (problem.upper - problem.lower) / (end - start)
    return np.where(problem.wraps, 4, np.searchsorted(_LIMITS, part, side="right"))


def clock(problem: Problem) -> tuple[int, int]:
    """The ticks that the picture begins and ends with."""
    if problem.length is not None:
        return 0, problem.length
    return int(problem.lower.min()), int(problem.upper.max())
