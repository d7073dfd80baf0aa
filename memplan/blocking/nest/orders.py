"""Orders and extents of loops that a search goes through.

Loops of X, Y and batch next to each other may change places without any count being
another, but for the input's stripes, which searches over these orders do not count; so
only one of them is given. The window is one block that is not
split, written "F" until `spelled` puts its loops there; groups are outermost, where
every tensor's accesses are those of one group times their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import TypeAlias

import numpy as np

from memplan.arrays import Int64Array
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest, nest_of

Order: TypeAlias = tuple[str, ...]  # dimensions, innermost first
Extents: TypeAlias = tuple[int, ...]  # of the loops of an order, cumulative
WINDOW = "F"
_ALONG_OUTPUT = "XYB"  # no tensor but the kernel is used again along these


class Blocking:
    """What there is to block in a layer: its dimensions, above what the datapath does.

    Sizes are rounded up to what that is, so that extents can divide each other.

    dims: those of X, Y, B, C and K that need a loop; window: those of Fw and Fh;
    groups: ("G",) if there are any.
    """

    def __init__(self, layer: Layer, unroll: Mapping[str, int]) -> None:
        self.layer, self.unroll = layer, dict(unroll)
        padded = layer.padded(unroll)
        self.size = {dim: padded.size(dim) for dim in ("Fw", "Fh", "G", *"XYBCK")}
        self.base = {dim: min(unroll.get(dim, 1), n) for dim, n in self.size.items()}
        long = [dim for dim, size in self.size.items() if size > self.base[dim]]
        self.dims: Order = tuple(dim for dim in "XYBCK" if dim in long)
        self.window: Order = tuple(dim for dim in ("Fw", "Fh") if dim in long)
        self.groups: Order = tuple(dim for dim in ("G",) if dim in long)

    def spelled(self, order: Sequence[str]) -> Order:
        """The order with the window's loops, and groups outside."""
        loops: list[str] = []
        for dim in order:
            loops.extend(self.window if dim == WINDOW else (dim,))
        return (*loops, *self.groups)

    def extents(self, dim: str, inner: int | None = None) -> Int64Array:
        """Those that a loop of `dim` around `inner` may have, ascending from `inner`
        itself, by default the datapath's, to the whole size."""
        inner = self.base[dim] if inner is None else inner
        return inner * divisors(self.size[dim] // inner)

    @property
    def symmetric(self) -> bool:
        """Whether columns and rows may be exchanged."""
        size, base, stride = self.size, self.base, self.layer.stride
        return (
            (size["X"], size["Fw"], stride[0]) == (size["Y"], size["Fh"], stride[1])
            and (base["X"], base["Fw"]) == (base["Y"], base["Fh"])
        )  # fmt: skip

    def tidied(self, order: Order, extents: Extents) -> tuple[Order, Extents]:
        """The same nest without loops of one trip, in the one order that is given."""
        loops: list[tuple[str, int]] = []
        reached = dict(self.base)
        for dim, extent in zip(order, extents, strict=True):
            if extent == reached[dim]:
                continue
            reached[dim] = extent
            loops.append((dim, extent))
            place = len(loops) - 1
            while place and _misplaced(loops[place - 1][0], loops[place][0]):
                loops[place - 1 : place + 1] = loops[place], loops[place - 1]
                place -= 1
            if place and loops[place - 1][0] == dim:
                del loops[place - 1]
        return tuple(dim for dim, _ in loops), tuple(extent for _, extent in loops)

    def nest(self, order: Order, extents: Extents) -> Nest:
        """The nest of these loops, over the layer as it was given."""
        loops = [(d, int(n)) for d, n in zip(order, extents, strict=True)]
        return nest_of(self.layer, loops, self.unroll)


@lru_cache(maxsize=4096)
def divisors(number: int) -> Int64Array:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return np.array(sorted({*small, *(number // d for d in small)}), dtype=np.int64)


def _misplaced(inner: str, outer: str) -> bool:
    """Whether two adjacent loops come in the order that is not given."""
    both = inner in _ALONG_OUTPUT and outer in _ALONG_OUTPUT
    return both and _ALONG_OUTPUT.index(inner) > _ALONG_OUTPUT.index(outer)


def level_orders(dims: Sequence[str]) -> list[Order]:
    """Orders of one loop of each dimension: 18 of X, Y, C and K."""
    return [
        order
        for order in permutations(dims)
        if not any(map(_misplaced, order, order[1:]))
    ]


def all_orders(counts: Mapping[str, int]) -> Iterator[Order]:
    """Orders of so many loops of each dimension, two of one never adjacent."""
    left = dict(counts)
    order: list[str] = []

    def extended() -> Iterator[Order]:
        if not any(left.values()):
            yield tuple(order)
            return
        for dim, more in left.items():
            if not more or (order and (dim == order[-1] or _misplaced(order[-1], dim))):
                continue
            left[dim] -= 1
            order.append(dim)
            yield from extended()
            order.pop()
            left[dim] += 1

    yield from extended()


def grid(choices: Sequence[Int64Array]) -> Int64Array:
    """Every combination of the choices, shape (len(choices), n)."""
    if not choices:
        return np.empty((0, 1), dtype=np.int64)
    return np.stack([axis.ravel() for axis in np.meshgrid(*choices, indexing="ij")])
