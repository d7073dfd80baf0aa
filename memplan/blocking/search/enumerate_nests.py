"""The paper's first optimizer: every string of two extents a dimension, evaluated.

The window's block may stand anywhere: 4566 orders of X, Y, C and K (paper, section
3.5, has "approximately 3000", and does not say how it counts). A loop of a single trip
is none, so shorter strings are among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from memplan.arrays import Int64Array
from memplan.blocking.cost.many import BatchEvaluator
from memplan.blocking.cost.objective import Objective
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.orders import WINDOW, Blocking, Order, all_orders
from memplan.blocking.search.incumbent import Incumbent, SearchProgress, found_by
from memplan.blocking.search.result import Options, Result

_PART = 1 << 16  # nests between two looks at the clock
_MAX_LEVELS = 4
ENUMERATE = Options("enumerate")


def enumerate_nests(
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
    options: Options = ENUMERATE,
    progress: Callable[[SearchProgress], None] | None = None,
) -> Result:
    """The best nest with up to so many loops a dimension, and one window block.

    Ctrl-C, or the end of the time, returns the best so far. With a batch there are
    many more orders: for more than 2 levels, or batched convolutions, set a limit.
    Raises UsageError where levels is not in [1, 4].
    """
    levels = options.levels_within(2, _MAX_LEVELS)
    blocking = Blocking(layer, unroll)
    incumbent = Incumbent(options.time_limit, progress)
    search = partial(_search, blocking, objective, levels, incumbent)
    return found_by(options.method, blocking, incumbent, search)


def _search(
    blocking: Blocking,
    objective: Objective,
    levels: int,
    incumbent: Incumbent,
) -> None:
    evaluate = BatchEvaluator(blocking.layer, blocking.unroll, objective)
    block = {WINDOW: 1} if blocking.window else {}
    counts = dict.fromkeys(blocking.dims, levels) | block
    if next(all_orders(counts), None) is None:
        # Nothing to put between two loops of a dimension: one does as well.
        levels, counts = 1, dict.fromkeys(blocking.dims, 1) | block
    rows = _extents(blocking, levels)
    seen: set[Order] = set()
    chains = [rows[dim].shape[1] for dim in blocking.dims]
    count = math.prod(chains)
    for short in all_orders(counts):
        if blocking.symmetric and _mirrored(short) in seen:
            continue
        seen.add(short)
        order = blocking.spelled(short)
        for begin in range(0, count, _PART):
            numbers = np.arange(begin, min(begin + _PART, count))
            part = np.unravel_index(numbers, chains) if chains else ()
            extents = _spread(blocking, order, rows, part, len(numbers))
            incumbent.offer(evaluate(order, extents), order, extents)


def _extents(blocking: Blocking, levels: int) -> dict[str, Int64Array]:
    """By dimension, every chain of extents inner to outer, shape (levels, m)."""
    found = {}
    for dim in blocking.dims:
        chains: list[tuple[int, ...]] = [()]
        for _ in range(levels - 1):
            chains = [
                (*chain, int(n))
                for chain in chains
                for n in blocking.extents(dim, chain[-1] if chain else None)
            ]
        whole = [(*chain, blocking.size[dim]) for chain in chains]
        found[dim] = np.array(whole, dtype=np.int64).T
    return found


def _spread(
    blocking: Blocking,
    order: Order,
    rows: Mapping[str, Int64Array],
    part: Sequence[Int64Array],
    count: int,
) -> Int64Array:
    """Extents of the loops of `order`, where `part` chooses each dimension's chain."""
    chosen = dict(zip(blocking.dims, part, strict=True))
    used = dict.fromkeys(blocking.dims, 0)
    extents = np.empty((len(order), count), dtype=np.int64)
    for place, dim in enumerate(order):
        if dim not in used:
            extents[place] = blocking.size[dim]
            continue
        extents[place] = rows[dim][used[dim], chosen[dim]]
        used[dim] += 1
    return extents


def _mirrored(order: Order) -> Order:
    """The order with columns and rows exchanged, as it is given."""
    swapped = [{"X": "Y", "Y": "X"}.get(dim, dim) for dim in order]
    for place in range(1, len(swapped)):
        if swapped[place - 1 : place + 1] == ["Y", "X"]:
            swapped[place - 1 : place + 1] = ["X", "Y"]
    return tuple(swapped)
