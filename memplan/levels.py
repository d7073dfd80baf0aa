"""Sums over time of what is alive: the one sweep behind every count of live bytes."""

from __future__ import annotations

import numpy as np

from memplan.arrays import Float64Array, Int64Array


def level(
    lower: Int64Array, upper: Int64Array, weight: Int64Array, ticks: int
) -> Int64Array:
    """The weight alive in each tick of the clock [0, ticks), shape (ticks,).

    lower, upper: half-open lives, shape (n,); ends past the clock count as its end.
    """
    change = np.zeros(ticks + 1, dtype=np.int64)
    np.add.at(change, np.minimum(lower, ticks), weight)
    np.add.at(change, np.minimum(upper, ticks), -weight)
    sums: Int64Array = np.cumsum(change[:-1])
    return sums


def levels(
    lower: Int64Array,
    upper: Int64Array,
    weight: Int64Array,
    also: Int64Array | None = None,
) -> tuple[Int64Array, Int64Array]:
    """Moments, ascending, and the weight alive from each to the next, shape (m,).

    lower, upper: half-open lives, shape (n,), at any moments; where lower > upper the
    weight counts from lower on and is subtracted before. also: moments to list even if
    nothing begins or ends there.
    """
    times = [lower, upper] if also is None else [lower, upper, also]
    moments = np.concatenate(times)
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    change = np.zeros(len(moments), dtype=np.int64)
    change[: 2 * len(weight)] = np.concatenate([weight, -weight])
    sums = np.cumsum(change[order])
    # The last of each run of equal moments, after which all of them have happened.
    last = np.ones(len(moments), dtype=np.bool_)
    np.not_equal(moments[1:], moments[:-1], out=last[:-1])
    return moments[last], sums[last]


def extremes(values: Int64Array | Float64Array, edges: Int64Array) -> Int64Array:
    """Which values keep the shape of a curve, ascending: of each stretch [edges[i],
    edges[i + 1]) the first, the lowest, the highest and the last.

    The edges ascend, from 0 to the number of values.
    """
    first, last = edges[:-1], edges[1:] - 1
    stretch = np.repeat(np.arange(len(first)), np.diff(edges))
    order = np.lexsort((values, stretch))
    kept: Int64Array = np.concatenate([first, last, order[first], order[last]])
    return np.unique(kept)
