"""Spatial mappings: which dimensions lie along an array's sides, with which counts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import numpy as np
import numpy.typing as npt

from memplan.arrays import Float64Array, Int64Array
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.cost.timed_memories import weights_of
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.array import Array
from memplan.blocking.nest.layer import DIMS, Layer, Tensor, elements
from memplan.blocking.nest.precision import WORD_BITS, Precision
from memplan.blocking.search.exact import problem_of
from memplan.native import _nest

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


_NOTHING = 1e-10  # pJ, in place of none; prices are above 0
_MAIN = 1e-8  # likewise, of main memory
_CAPS = (128, 2048)  # bytes of a tensor's tile, of mappings that share a relaxation
_KNOTS = 96  # of a curve from which a price was taken
_PORTS = 2  # whose bandwidths bound cycles; main memory's is the first
_TINY = 1e-9
_SLACK = 1 - 1e-6  # for prices that stand for none
_SAFE = 1 - _TINY


@dataclass(frozen=True)
class MappingBounds:
    """By mapping, shape (n,): steps: cycles of the datapath; energy: pJ, at least."""

    steps: Int64Array
    energy: Float64Array


def bounds_of(
    layer: Layer,
    counts: Int64Array,
    objective: Objective,
    seconds: float,
    threads: int,
) -> MappingBounds:
    """Of the mappings with these `counts` of each of DIMS, shape (n, len(DIMS)).

    seconds: of the relaxation, after which the bound is lower.
    """
    n = {dim: counts[:, place] for place, dim in enumerate(DIMS)}
    trips = {dim: -(-layer.size(dim) // n[dim]) for dim in DIMS}
    steps = np.ones(len(counts), dtype=np.int64)
    for own in trips.values():
        steps = steps * own
    plain = np.zeros(len(counts))
    inner = np.zeros(len(counts))
    tiles: dict[Tensor, Float64Array] = {}
    prices: dict[Tensor, Float64Array] = {}
    for tensor in layer.tensors:
        main = objective.main_pj(tensor)
        asked, compulsory = _asked(layer, tensor, n, trips, objective.precision)
        tiles[tensor] = _tile_bytes(layer, tensor, n, objective.precision)
        prices[tensor] = _least_price(objective, tensor, tiles[tensor])
        served = asked * prices[tensor]
        inner += served
        plain += np.minimum(served + compulsory * main, asked * main)
    energy, stood_in = plain, _stood_in(layer, objective)
    left: npt.NDArray[np.bool_] = np.ones(len(counts), dtype=np.bool_)
    classes = list(_classes(objective, tiles, prices))
    begin = time.perf_counter()
    for number, (reduced, within) in enumerate(classes):
        mine = left & within
        left = left & ~within
        if not mine.any():
            continue
        spent = time.perf_counter() - begin
        part = max(seconds - spent, 0.0) / (len(classes) - number)
        rest = relaxed(layer, reduced, part, threads) - stood_in
        energy = np.where(mine, np.maximum(plain, inner + rest), energy)
    return MappingBounds(steps, energy * _SAFE)


def cycles_of(
    layer: Layer, counts: Int64Array, machine: Fixed, seconds: float, threads: int
) -> Float64Array:
    """Cycles of these mappings at least, shape (n,): the datapath's steps, or what has
    to pass the ports of main memory."""
    sizes = np.array([layer.size(dim) for dim in DIMS], dtype=np.int64)
    steps: Int64Array = (-(-sizes // counts)).prod(axis=1)
    found: Float64Array = steps.astype(np.float64)
    hierarchy = machine.hierarchy
    for weights in weights_of(hierarchy)[:_PORTS]:
        if not weights.adds:
            priced = Fixed(weights.alone(hierarchy))
            part = seconds / _PORTS
            passing = bounds_of(layer, counts, priced, part, threads).energy
            found = np.maximum(found, passing * _SLACK)
    return found


def _stood_in(layer: Layer, objective: Objective) -> float:
    """pJ that prices in place of none add to what passes further out, at most: each
    memory serves and takes in no more than one multiplication after the other asks."""
    one = {dim: np.ones(1, dtype=np.int64) for dim in DIMS}
    trips = {dim: one[dim] * layer.size(dim) for dim in DIMS}
    words = sum(
        float(_asked(layer, tensor, one, trips, objective.precision)[0][0])
        for tensor in layer.tensors
    )
    depths = len(objective.hierarchy.levels) if isinstance(objective, Fixed) else 1
    return 2 * words * _NOTHING * depths * (depths + 1) / 2


def _asked(
    layer: Layer,
    tensor: Tensor,
    n: Mapping[str, Int64Array],
    trips: Mapping[str, Int64Array],
    precision: Precision,
) -> tuple[Float64Array, float]:
    """16-bit words of `tensor` that the datapath asks for, and those of its one access
    to main memory."""
    alpha = elements(layer, tensor)
    if tensor is Tensor.INPUT:
        wide = _window(layer.X, n["X"], layer.Fw, n["Fw"], layer.stride[0])
        high = _window(layer.Y, n["Y"], layer.Fh, n["Fh"], layer.stride[1])
        moved = wide * high * (layer.C * layer.B * layer.G) * trips["K"]
    elif tensor is Tensor.KERNEL:
        moved = alpha * (trips["X"] * trips["Y"] * trips["B"]).astype(np.float64)
    else:
        updates = (trips["C"] * trips["Fw"] * trips["Fh"]).astype(np.float64)
        moved = 2 * alpha * updates - alpha
    held, narrower = precision.held(tensor), 0
    if tensor is Tensor.OUTPUT:
        narrower = (held - precision.last(tensor)) * alpha
    words = (held * moved - narrower) / WORD_BITS
    return words, (held * alpha - narrower) / WORD_BITS


def _window(
    size: int, count: Int64Array, window: int, part: Int64Array, stride: int
) -> Float64Array:
    """Columns of all tiles, each with the part of the window it is used with."""
    total = np.zeros(len(count))
    for of, times in _tiles(size, count):
        for by, each in _tiles(window, part):
            touched = np.where(by >= stride, (of - 1) * stride + by, of * by)
            total += touched * times * each
    return total


def _tiles(size: int, count: Int64Array) -> list[tuple[Int64Array, Int64Array]]:
    """Sizes of the tiles, and how many there are of each: whole ones, and the edge."""
    whole, edge = size // count, size % count
    return [(count, whole), (edge, (edge > 0).astype(np.int64))]


def _tile_bytes(
    layer: Layer, tensor: Tensor, n: Mapping[str, Int64Array], precision: Precision
) -> Float64Array:
    """Of what the datapath works on at once."""
    if tensor is Tensor.KERNEL:
        held = n["C"] * n["K"] * n["Fw"] * n["Fh"] * n["G"]
    elif tensor is Tensor.OUTPUT:
        held = n["X"] * n["Y"] * n["K"] * n["B"] * n["G"]
    else:
        held = n["C"] * n["B"] * n["G"]
        for along, window, stride in zip("XY", ("Fw", "Fh"), layer.stride, strict=True):
            of, by = n[along], n[window]
            held = held * np.where(by >= stride, (of - 1) * stride + by, of * by)
    found: Float64Array = np.ceil(precision.held(tensor) * held / 8)
    return found


def _least_price(
    objective: Objective, tensor: Tensor, nbytes: Float64Array
) -> Float64Array:
    """pJ of an access to the cheapest memory that holds so many bytes."""
    main = objective.main_pj(tensor)
    if isinstance(objective, Fixed):
        found = np.full(len(nbytes), main)
        for capacity, pj in _prices(objective.hierarchy, tensor):
            found = np.where(nbytes <= capacity, np.minimum(found, pj), found)
        return found
    curve = objective.curves[tensor]
    most = curve.dram_above
    if objective.budget is not None:
        most = min(most, objective.budget)
    own = np.minimum(curve.on_chips(np.maximum(nbytes, 1.0)), main)
    return np.where(nbytes <= most, own, main)


def _prices(hierarchy: Hierarchy, tensor: Tensor) -> list[tuple[int, float]]:
    return [
        (level.capacity(tensor), hierarchy.price(depth, tensor))
        for depth, level in enumerate(hierarchy.levels)
        if level.capacity(tensor)
    ]


def _classes(
    objective: Objective,
    tiles: Mapping[Tensor, Float64Array],
    prices: Mapping[Tensor, Float64Array],
) -> Iterator[tuple[Objective, npt.NDArray[np.bool_]]]:
    """Machines without what the datapath's tiles cost, and the mappings whose tiles
    cost no more than that, from the smallest tiles on."""
    if isinstance(objective, Fixed):
        own = {
            t: sorted({pj for _, pj in _prices(objective.hierarchy, t)}) for t in tiles
        }
        for depth in range(max(map(len, own.values()), default=0)):
            free = {
                t: pj[min(depth, len(pj) - 1)] if pj else objective.main_pj(t)
                for t, pj in own.items()
            }
            within = [prices[t] <= free[t] * (1 + _TINY) for t in tiles]
            yield _without(objective, free), np.logical_and.reduce(within)
        return
    for most in _CAPS:
        free = {t: objective.curves[t].on_chip(most) for t in tiles}
        within = [nbytes <= most for nbytes in tiles.values()]
        yield _reduced(objective, most, free), np.logical_and.reduce(within)


def _without(objective: Fixed, free: Mapping[Tensor, float]) -> Fixed:
    """The hierarchy with prices less `free`."""
    hierarchy = objective.hierarchy
    levels = []
    for depth, level in enumerate(hierarchy.levels):
        pj = {
            tensor: max(hierarchy.price(depth, tensor) - less, _NOTHING * (1 + depth))
            for tensor, less in free.items()
        }
        levels.append(replace(level, pj={**level.pj, **pj}))
    main = {t: max(hierarchy.main_pj(t) - free.get(t, 0.0), _MAIN) for t in Tensor}
    reduced = replace(hierarchy, levels=tuple(levels), dram_by_tensor=main)
    return Fixed(reduced)


def _reduced(objective: Codesign, most: int, free: Mapping[Tensor, float]) -> Codesign:
    """Memories that cost next to nothing up to so many bytes, and `free` less above.

    The logarithm of what is left is concave between the knots of the curve, so straight
    lines between more of them lie below it.
    """
    curves = dict(objective.curves)
    for tensor, less in free.items():
        curve = curves[tensor]
        end = float(max(curve.dram_above, 2 * most))
        knots = {float(most), *np.geomspace(most, end, _KNOTS).tolist()}
        knots |= {nbytes for nbytes in curve.nbytes if most < nbytes < end}
        sizes = sorted(knots)
        pj = [max((curve.on_chip(b) - less) * _SAFE, _NOTHING) for b in sizes]
        main = max(curve.dram_pj - less, _MAIN)
        curves[tensor] = replace(curve, nbytes=tuple(sizes), pj=tuple(pj), dram_pj=main)
    return replace(objective, curves=curves)


def relaxed(
    layer: Layer,
    objective: Objective,
    seconds: float,
    threads: int,
    *,
    unroll: Mapping[str, int] | None = None,
    incumbent: float = math.inf,
) -> float:
    """pJ that no nest around `unroll`, or one multiplication, takes less than, where
    every tensor has the bytes for itself that it shares with others.

    incumbent: pJ above which the bound need not be. Raises KeyboardInterrupt.
    """
    found = _nest.optimum(
        problem_of(layer, unroll or {}, objective, shared=False),
        whole=True,
        incumbent=incumbent / layer.G,
        seconds=seconds,
        threads=threads,
    )
    if found.interrupted:
        raise KeyboardInterrupt
    return max(found.lower_bound, 0.0) * layer.G
