"""Spatial mappings: which dimensions lie along an array's sides, with which counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from memplan.arrays import Int64Array
from memplan.blocking.nest.array import Array
from memplan.blocking.nest.layer import DIMS, Layer

_MOST = 1 << 23  # combinations of what lies along each side; of more, those that fill
_FEW = 3  # dimensions along the sides that are filled


@dataclass(frozen=True)
class Mappings:
    """counts: of each of DIMS in each mapping, shape (n, len(DIMS)); complete: whether
    these are all that fit, but for equivalents."""

    counts: Int64Array
    complete: bool

    def unroll(self, number: int) -> dict[str, int]:
        """One of them, as a datapath."""
        row = self.counts[number].tolist()
        return {dim: n for dim, n in zip(DIMS, row, strict=True) if n > 1}


def mappings_of(layer: Layer, array: Array) -> Mappings:
    """The mappings of `layer` on `array` that differ.

    Of counts with which a dimension takes the same number of trips the least stands for
    all: to each nest around one of the others there is one around it whose every count
    of accesses is the same, and whose buffers are no larger. Not of a window in steps:
    of the input, parts narrower than its step leave columns out, so that 4 and 1 of 5
    touch fewer than 3 and 2. Where columns and rows may be exchanged, one of both is
    left out.
    """
    sizes = [layer.size(dim) for dim in DIMS]
    stepping = dict(zip(("Fw", "Fh"), layer.stride, strict=True))
    least = [
        _least(layer.size(dim), array.multipliers)
        if stepping.get(dim, 1) == 1
        else np.arange(min(layer.size(dim), array.multipliers) + 1, dtype=np.int64)
        for dim in DIMS
    ]
    sides = [_all(sizes, side, _MOST) for side in array.sides]
    complete = all(own is not None for own in sides)
    if complete and math.prod(len(own) for own in sides if own is not None) > _MOST:
        complete = False
    few = min(_FEW, 2 if len(array.sides) > 1 else _FEW)
    found = np.ones((1, len(DIMS)), dtype=np.int64)
    for side, own in zip(array.sides, sides, strict=True):
        along = own if complete and own is not None else _filled(sizes, side, few)
        found = _combined(found, along, least)
    if _symmetric(layer):
        found = _one_of_mirrored(found)
    return Mappings(found, complete)


def usual(layer: Layer, array: Array) -> dict[str, int]:
    """Input channels along an array's first side and output channels along the second;
    of one side, as near to a square as there is."""
    if len(array.sides) > 1:
        across, along = array.sides[:2]
    else:
        across = int(array.multipliers**0.5)
        along = array.multipliers // across
    found = {}
    for dim, count in (("C", across), ("K", along)):
        least = int(_least(layer.size(dim), count)[-1])
        if least > 1:
            found[dim] = least
    return found


def _least(size: int, most: int) -> Int64Array:
    """For every count up to `most` the least with as many trips; itself of 0."""
    counts = np.arange(1, min(size, most) + 1, dtype=np.int64)
    least = -(-size // -(-size // counts))
    return np.concatenate([np.zeros(1, dtype=np.int64), least])


def _all(sizes: Sequence[int], side: int, most: int) -> Int64Array | None:
    """Counts along one side, shape (n, dimensions); None if there are more."""
    rows = np.ones((1, 0), dtype=np.int64)
    products = np.ones(1, dtype=np.int64)
    for size in sizes:
        parts, reached = [], []
        for count in range(1, min(size, side) + 1):
            fits = products * count <= side
            if not fits.any():
                break
            column = np.full((int(fits.sum()), 1), count, dtype=np.int64)
            parts.append(np.concatenate([rows[fits], column], axis=1))
            reached.append(products[fits] * count)
        rows, products = np.concatenate(parts), np.concatenate(reached)
        if len(rows) > most:
            return None
    return rows


def _filled(sizes: Sequence[int], side: int, few: int) -> Int64Array:
    """Counts of up to `few` dimensions along one side, the last as much as fits."""
    found = {(1,) * len(sizes)}
    long = [i for i, size in enumerate(sizes) if size > 1]
    for number in range(1, few + 1):
        for chosen in combinations(long, number):
            for order in {(*rest, last) for *rest, last in permutations(chosen)}:
                for counts in _fills([sizes[i] for i in order], side):
                    row = [1] * len(sizes)
                    for place, count in zip(order, counts, strict=True):
                        row[place] = count
                    found.add(tuple(row))
    return np.array(sorted(found), dtype=np.int64)


def _fills(sizes: Sequence[int], side: int) -> Iterator[tuple[int, ...]]:
    size, *rest = sizes
    if not rest:
        yield (min(size, side),)
        return
    for count in np.unique(_least(size, side)[1:]).tolist():
        for others in _fills(rest, side // count):
            yield (count, *others)


def _combined(
    one: Int64Array, other: Int64Array, least: Sequence[Int64Array]
) -> Int64Array:
    """What lies along two sides together, each once."""
    columns = []
    for dim, table in enumerate(least):
        count = np.multiply.outer(one[:, dim], other[:, dim]).ravel()
        columns.append(table[np.minimum(count, len(table) - 1)])
    return _distinct(np.stack(columns, axis=1))


def _distinct(rows: Int64Array) -> Int64Array:
    if math.prod(int(n) + 1 for n in rows.max(axis=0)) >= 1 << 62:
        return np.unique(rows, axis=0)
    keys = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        keys = keys * (int(column.max()) + 1) + column
    _, first = np.unique(keys, return_index=True)
    return rows[first]


def _symmetric(layer: Layer) -> bool:
    wide = layer.X, layer.Fw, layer.stride[0]
    return wide == (layer.Y, layer.Fh, layer.stride[1])


def _one_of_mirrored(rows: Int64Array) -> Int64Array:
    """Those with more columns than rows; of as many, with no less of the window."""
    x, y, fw, fh = (rows[:, DIMS.index(dim)] for dim in ("X", "Y", "Fw", "Fh"))
    kept: Int64Array = rows[(x > y) | ((x == y) & (fw >= fh))]
    return kept
