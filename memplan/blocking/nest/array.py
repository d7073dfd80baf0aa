"""Arrays of multipliers, and what a search for spatial mappings says of itself."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from memplan.errors import UsageError

MAX_SIDES = 3
MAX_MULTIPLIERS = 1 << 20
_AUTO = "auto"


@dataclass(frozen=True)
class Array:
    """Multipliers that work at once, in rows and columns: `sides` of so many each.

    Along a side lie counts of one or more dimensions, whose product is no more than it
    is long; a dimension may lie along several. With one side any counts fit whose
    product is no more than the multipliers.
    Raises UsageError where there are no sides, too many, or too long ones.
    """

    sides: tuple[int, ...] = (16, 16)

    def __post_init__(self) -> None:
        if not 1 <= len(self.sides) <= MAX_SIDES or min(self.sides) < 1:
            raise UsageError(
                f"an array has 1 to {MAX_SIDES} sides of 1 multiplier or more"
            )
        if self.multipliers > MAX_MULTIPLIERS:
            raise UsageError(
                f"an array of {self.multipliers:,} multipliers: it may have "
                f"{MAX_MULTIPLIERS:,}"
            )

    @property
    def multipliers(self) -> int:
        """All of them."""
        return math.prod(self.sides)

    def __str__(self) -> str:
        """ "16 x 16", or "256 multipliers"."""
        if len(self.sides) == 1:
            return f"{self.multipliers:,} multipliers"
        return " x ".join(map(str, self.sides))


# What the datapath does at once, or the array that a search chooses it for.
Datapath: TypeAlias = Mapping[str, int] | Array


@dataclass(frozen=True)
class MappingSearch:
    """How the datapath of a nest was chosen: the spatial mappings that an array can
    take, of counts with which nests are the same (`search.mappings`) the least.

    mappings: how many there are; complete: whether these are all that fit, or, of a
    large array, those with few dimensions along a side that fill it. pruned: those
    that bounds show to do no better than the result; searched: those whose nests were
    searched for. What is left, `open`, has but a bound.
    """

    array: Array
    mappings: int
    pruned: int
    searched: int
    complete: bool = True

    @property
    def open(self) -> int:
        """Mappings that were neither searched nor shown to do no better."""
        return self.mappings - self.pruned - self.searched

    def share(self, unroll: Mapping[str, int]) -> float:
        """The part of the array that a mapping occupies, whether it idles or not."""
        return math.prod(unroll.values()) / self.array.multipliers


def parse_array(text: str) -> Array | None:
    """The array that ``auto``, ``auto:256`` or ``auto:16x16`` stands for; None of other
    texts. ``auto`` is 16 x 16. Raises UsageError where the array makes no sense."""
    name, colon, shape = text.strip().lower().partition(":")
    if name.strip() != _AUTO:
        return None
    if not colon:
        return Array()
    sides = [part.strip() for part in shape.split("x")]
    if not all(re.fullmatch(r"[0-9]{1,7}", part) for part in sides):
        raise UsageError(
            f"unrolling {text!r}: give auto, auto:256 for so many multipliers, or "
            "auto:16x16 for the sides of their array"
        )
    return Array(tuple(map(int, sides)))
