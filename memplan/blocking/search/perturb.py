"""Small random changes of a nest, so that a search does not stay where it is."""

from __future__ import annotations

import numpy as np

from memplan.blocking.nest.orders import Blocking, Extents, Order, divisors


def perturbed(
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
