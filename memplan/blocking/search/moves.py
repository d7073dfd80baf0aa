"""Moves from one nest to others: all that improve it, and one at random."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np

from memplan.arrays import Int64Array
from memplan.blocking.cost.many import BatchEvaluator
from memplan.blocking.nest.orders import WINDOW, Blocking, Extents, Order, divisors
from memplan.blocking.search.incumbent import Incumbent

_ROWS = 1 << 15  # of one move, after which no more loops of a dimension are tried


def improve(
    evaluate: BatchEvaluator,
    blocking: Blocking,
    incumbent: Incumbent,
    order: Order,
    extents: Extents,
) -> tuple[Order, Extents]:
    """The nest after moves that each help, offered to the incumbent on the way.

    A move takes out all loops of one dimension, or the window's block, and puts loops
    of it wherever, in whatever number and extents, they serve best. The end is where
    no move helps.
    """
    energy = float(evaluate(order, np.array(extents, dtype=np.int64)[:, None])[0])
    moves = [*blocking.dims, *(WINDOW,) * bool(blocking.window)]
    failed = 0
    while moves and failed < len(moves):
        dim = moves[0]
        moves = [*moves[1:], dim]
        template, rows = _moved(blocking, dim, order, extents)
        energies = evaluate(template, rows)
        incumbent.offer(energies, template, rows)
        best = int(np.argmin(energies))
        failed += 1
        if energies[best] < energy * (1 - 1e-12):
            energy, failed = float(energies[best]), 1
            order, extents = blocking.tidied(template, tuple(rows[:, best].tolist()))
    return order, extents


def _moved(
    blocking: Blocking, dim: str, order: Order, extents: Extents
) -> tuple[Order, Int64Array]:
    """An order with a place for `dim` in every gap between the other loops, and the
    extents of all ways to fill them; an empty place is a loop of one trip."""
    taken = blocking.window if dim == WINDOW else (dim,)
    others = [
        (d, n)
        for d, n in zip(order, extents, strict=True)
        if d not in taken and d != "G"
    ]
    # Nothing goes between the loops of the window's block.
    closed = {i for i in range(1, len(others)) if _inside(blocking, others, i)}
    gaps = len(others) + 1 - len(closed)
    slots = (
        _block_slots(gaps)
        if dim == WINDOW
        else _slots(blocking.base[dim], blocking.size[dim], gaps)
    )
    template: list[str] = []
    rows: list[Int64Array] = []
    gap = iter(slots)
    for place in range(len(others) + 1):
        if place not in closed:
            reached = next(gap)
            for own in taken:
                template.append(own)
                whole = np.where(reached, blocking.size[own], blocking.base[own])
                rows.append(whole if dim == WINDOW else reached)
        for own, extent in others[place : place + 1]:
            template.append(own)
            rows.append(np.full(slots.shape[1], extent, dtype=np.int64))
    for own in blocking.groups:
        template.append(own)
        rows.append(np.full(slots.shape[1], blocking.size[own], dtype=np.int64))
    return tuple(template), np.stack(rows)


def _inside(blocking: Blocking, loops: Sequence[tuple[str, int]], place: int) -> bool:
    """Whether the gap before `place` is in the window's block."""
    return {loops[place - 1][0], loops[place][0]} <= set(blocking.window)


def _block_slots(gaps: int) -> Int64Array:
    """1 from the gap on that the block is in, shape (gaps, gaps)."""
    return np.tri(gaps, dtype=np.int64)


@lru_cache(maxsize=256)
def _slots(base: int, size: int, gaps: int) -> Int64Array:
    """The extent reached in each gap, of all ways to get from `base` to `size` in
    divisors, shape (gaps, n); those with fewer loops first, and as many as _ROWS."""
    parts: list[Int64Array] = []
    count = 0
    for loops in range(1, gaps + 1):
        chains = _chains(base, size, loops)
        if not len(chains):
            break
        places = np.array(list(combinations(range(gaps), loops)), dtype=np.int64)
        count += len(chains) * len(places)
        if parts and count > _ROWS:
            break
        # How many of the loops each gap lies outside of, or at.
        passed = (places[:, :, None] <= np.arange(gaps)).sum(axis=1)
        parts.append(chains[:, passed].reshape(-1, gaps))
    return np.ascontiguousarray(np.concatenate(parts).T)


@lru_cache(maxsize=256)
def _chains(base: int, size: int, loops: int) -> Int64Array:
    """Extents of so many loops that grow from `base` to `size`, both with them, each a
    proper divisor of the next, shape (n, loops + 1)."""
    chains: Sequence[tuple[int, ...]] = [(size,)]
    for _ in range(loops - 1):
        chains = [
            (base * int(n), *chain)
            for chain in chains
            for n in divisors(chain[0] // base)
            if base < base * n < chain[0]
        ]
    return np.array([(base, *chain) for chain in chains], dtype=np.int64).reshape(
        -1, loops + 1
    )


def changed_at_random(
    blocking: Blocking, random: np.random.Generator, order: Order, extents: Extents
) -> tuple[Order, Extents]:
    """The nest with two adjacent loops exchanged, or one extent drawn anew.

    The window's loops move as one. The same nest, where there is nothing to change.
    """
    blocks = _blocks(blocking, order, extents)
    swaps = [i for i in range(1, len(blocks)) if blocks[i - 1][0][0] != blocks[i][0][0]]
    redrawn = _redrawable(blocking, order, extents)
    chosen = random.integers(max(len(swaps) + len(redrawn), 1))
    if chosen < len(swaps):
        place = swaps[chosen]
        blocks[place - 1 : place + 1] = blocks[place], blocks[place - 1]
        loops = [loop for block in blocks for loop in block]
        outer = [(d, n) for d, n in zip(order, extents, strict=True) if d == "G"]
        loops += outer
        return tuple(d for d, _ in loops), tuple(n for _, n in loops)
    if not redrawn:
        return order, extents
    place, choices = redrawn[chosen - len(swaps)]
    drawn = choices[random.integers(len(choices))]
    return order, (*extents[:place], drawn, *extents[place + 1 :])


def _blocks(
    blocking: Blocking, order: Order, extents: Extents
) -> list[list[tuple[str, int]]]:
    """The loops but for groups, the window's together."""
    blocks: list[list[tuple[str, int]]] = []
    for loop in zip(order, extents, strict=True):
        if loop[0] == "G":
            continue
        if blocks and {loop[0], blocks[-1][0][0]} <= set(blocking.window):
            blocks[-1].append(loop)
        else:
            blocks.append([loop])
    return blocks


def _redrawable(
    blocking: Blocking, order: Order, extents: Extents
) -> list[tuple[int, list[int]]]:
    """Loops inside others of their dimension, and what else they may reach."""
    found = []
    for place, dim in enumerate(order):
        outside = [i for i in range(place + 1, len(order)) if order[i] == dim]
        if dim not in blocking.dims or not outside:
            continue
        inside = [i for i in range(place) if order[i] == dim]
        inner = extents[inside[-1]] if inside else blocking.base[dim]
        others = [
            inner * int(n)
            for n in divisors(extents[outside[0]] // inner)
            if inner * n != extents[place]
        ]
        found.append((place, others))
    return found
