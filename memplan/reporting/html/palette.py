"""What colour a buffer has: its category's, or, where none is known, its life's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.trace.category import Category
from memplan.trace.lives import Lives

# From what stays to what passes, as layers lie on one another. Told apart with any
# colour vision by hue or lightness.
_COLOURS = {
    Category.PARAMETERS: "#2f4b8f",
    Category.OPTIMIZER_STATE: "#7c5cb8",
    Category.GRADIENTS: "#e07b26",
    Category.INPUTS: "#e3bd3d",
    Category.ACTIVATIONS: "#2f9e8f",
    Category.TEMPORARIES: "#d1537a",
    Category.UNKNOWN: "#98a1ab",
}
NOBODYS = "#98a1ab"  # of a plan's buffer that stands for none of the trace's
_LIVES = (
    ("outlives steps", "#253494"),
    ("freed in the next step", "#e6750d"),
    ("freed in its step", "#41b6c4"),
)
_PARTS = (
    ("alive > 50 % of the run", "#253494"),
    ("alive 10–50 %", "#2c7fb8"),
    ("alive 1–10 %", "#41b6c4"),
    ("alive < 1 %", "#86cfa0"),
)
_LIMITS = (0.01, 0.1, 0.5)


@dataclass(frozen=True, eq=False)
class Colouring:
    """Names and colours, the lowest layer first; which one each buffer has, (n,)."""

    entries: tuple[tuple[str, str], ...]
    of_buffer: Int64Array
    by_category: bool


def colouring(lives: Lives) -> Colouring:
    """By category; by life in steps where no category is known; or else by duration."""
    if (lives.category != Category.UNKNOWN).any():
        order = list(_COLOURS)
        used = [c for c in order if (lives.category == c).any()]
        code = np.zeros(max(Category) + 1, dtype=np.int64)
        code[used] = np.arange(len(used))
        entries = tuple((c.label, _COLOURS[c]) for c in used)
        return Colouring(entries, code[lives.category], True)
    if len(lives.bounds):
        freed = np.searchsorted(lives.bounds, lives.end, side="right")
        crossed = freed - lives.step
        crossed[lives.end >= len(lives.events)] = 2  # never freed
        return _used(_LIVES, 2 - np.minimum(crossed, 2), False)
    part = (lives.end - lives.row) / max(len(lives.events), 1)
    return _used(_PARTS, 3 - np.searchsorted(_LIMITS, part, side="right"), False)


def _used(
    entries: tuple[tuple[str, str], ...], code: Int64Array, by_category: bool
) -> Colouring:
    """Only those entries that a buffer has."""
    used, of_buffer = np.unique(code, return_inverse=True)
    chosen = tuple(entries[k] for k in used.tolist())
    return Colouring(chosen, of_buffer.astype(np.int64), by_category)
