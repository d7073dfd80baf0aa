"""Small layers and strings that block them, by hypothesis; traffic made by hand."""

from __future__ import annotations

from hypothesis import strategies as st

from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import DIMS, Layer, Tensor
from memplan.blocking.nest.nest import Nest, parse_nest

WINDOW = ("Fw", "Fh")
_LARGEST = {"X": 8, "Y": 8, "C": 8, "K": 8, "Fw": 4, "Fh": 4, "B": 3, "G": 3}


@st.composite
def layers(draw: st.DrawFn, macs: int = 100) -> Layer:
    """Layers of at most `macs` multiplications, also strided and without weights."""
    sizes, left = {}, macs
    for dim in draw(st.permutations(DIMS)):
        sizes[dim] = draw(st.integers(1, min(_LARGEST[dim], left)))
        left //= sizes[dim]
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    return Layer("random", **sizes, stride=stride, kernel=draw(st.booleans()))


@st.composite
def sliding_layers(draw: st.DrawFn) -> Layer:
    """Layers of at most 400 multiplications whose window slides along X, perhaps Y."""
    sizes = {"X": draw(st.integers(3, 7)), "Fw": draw(st.integers(2, 4))}
    left = 400 // (sizes["X"] * sizes["Fw"])
    for dim in draw(st.permutations(["Y", "Fh", "C", "K", "B", "G"])):
        sizes[dim] = draw(st.integers(1, min(4, left)))
        left //= sizes[dim]
    stride = (draw(st.integers(1, sizes["Fw"] - 1)), draw(st.integers(1, 2)))
    return Layer("sliding", **sizes, stride=stride, kernel=draw(st.booleans()))


@st.composite
def nests(
    draw: st.DrawFn,
    *,
    window_innermost: bool,
    divisors: bool,
    macs: int = 100,
    sliding: bool = False,
) -> Nest:
    """Nests of one to three loops a dimension, in any order; some are unrolled.

    window_innermost: window loops, perhaps several, come before all others.
    divisors: every extent divides the next, and the datapath the sizes; otherwise the
    last tiles may be smaller. sliding: of `sliding_layers`, otherwise of `layers`.
    """
    layer = draw(sliding_layers() if sliding else layers(macs))
    unroll = draw(st.just({}) | st.dictionaries(_DIM, st.integers(1, 3), max_size=3))
    if divisors:
        layer = layer.padded(unroll)
    chains = {}
    for dim in DIMS:
        unit = unroll.get(dim, 1)
        counts = draw(_chain(-(-layer.size(dim) // unit), divisors))
        chains[dim] = [unit * count for count in counts]
    order = draw(st.permutations([dim for dim in DIMS for _ in chains[dim]]))
    if window_innermost:
        order = sorted(order, key=lambda dim: dim not in WINDOW)
    tokens = (f"{dim}{chains[dim].pop(0)}" for dim in order)
    return parse_nest(" ".join(tokens), layer, unroll)


_DIM = st.sampled_from(DIMS)


@st.composite
def _chain(draw: st.DrawFn, size: int, divisors: bool) -> list[int]:
    """One to three ascending extents, the last of which is `size`."""
    chain = [size]
    while len(chain) < 3 and chain[0] > 2 and draw(st.booleans()):
        inner = [n for n in range(2, chain[0]) if not (divisors and chain[0] % n)]
        if not inner:
            break
        chain.insert(0, draw(st.sampled_from(inner)))
    return chain


def traffic_of(tensor: Tensor, demand: int, *buffers: tuple[int, int]) -> Traffic:
    """A tensor of one element that the datapath reads `demand` times, and its buffers
    from the inside out: the elements each holds, and those it fetches."""
    made, served = [], demand
    for place, (elements, fills) in enumerate(buffers):
        made.append(Buffer(place, place + 1, elements, served, 0, fills, 0))
        served = fills
    return Traffic(tensor, 1, demand, tuple(made), served)
