"""Matrix products as layers: of modules, of attention, of recurrent networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memplan.blocking.nest.layer import MAX_SIZE, Layer


@dataclass(frozen=True)
class Reading:
    """What one operation comes to: layers, each with how often it is run.

    note: how they differ from the operation, where they do not move the same elements;
    their multiply-adds are those of the operation in any case.
    """

    parts: tuple[tuple[Layer, int], ...]
    note: str = ""

    @property
    def macs(self) -> int:
        """Multiply-adds of all layers with weights; of others the operations are no
        multiply-adds."""
        return sum(layer.macs * count for layer, count in self.parts if layer.kernel)

    @property
    def without_weights(self) -> Reading:
        """The same windows reduced without weights: pooling."""
        parts = ((replace(layer, kernel=False), n) for layer, n in self.parts)
        return replace(self, parts=tuple(parts))


def product(rows: int, inner: int, columns: int, groups: int = 1) -> Layer:
    """`groups` products of (rows, inner) and (inner, columns) matrices, none of which
    shares anything with another.

    Rows are the batch; those beyond MAX_SIZE are pixels, too, which is the same.
    Raises InputError where a size is 0 or too large.
    """
    pixels = 1
    if rows > MAX_SIZE:
        least = -(-rows // MAX_SIZE)
        pixels = next((n for n in range(least, MAX_SIZE) if rows % n == 0), 1)
    return Layer("", pixels, 1, inner, columns, B=rows // pixels, G=groups)


def matrix_product(left: Sequence[int], right: Sequence[int]) -> Layer:
    """Shapes (..., rows, inner) and (..., inner, columns), broadcast over the others.

    Where only one of the two has a dimension, the other is used again along it.
    """
    outer = max(len(left), len(right)) - 2
    lefts, rights = ([1] * (outer + 2 - len(own)) + [*own] for own in (left, right))
    rows, inner, columns, groups = lefts[-2], lefts[-1], rights[-1], 1
    for ours, theirs in zip(lefts[:outer], rights[:outer], strict=True):
        if ours == theirs:
            groups *= ours
        elif theirs == 1:
            rows *= ours
        else:
            columns *= theirs
    return product(rows, inner, columns, groups)


def attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int]
) -> Reading:
    """Queries by keys, and what comes of it by values; shapes (..., heads, length,
    width). Where there are fewer keys' heads, each serves several of the queries'.

    A mask saves nothing here, nor does causality: all products are counted.
    """
    groups = math.prod(key[:-2])
    rows = math.prod(query[:-1]) // groups
    scores = product(rows, query[-1], key[-2], groups)
    taken = product(rows, key[-2], value[-1], groups)
    note = "attention, counted as two products: what lies between them is moved, too"
    return Reading(((scores, 1), (taken, 1)), note)


def recurrent(gates: int, steps: int, batch: int, inputs: int, hidden: int) -> Reading:
    """One layer and direction: all steps' inputs at once, then step after step."""
    first = product(steps * batch, inputs, gates * hidden)
    return Reading(((first, 1), (product(batch, hidden, gates * hidden), steps)))
