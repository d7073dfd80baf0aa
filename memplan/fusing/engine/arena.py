"""Where every value lies: concatenations without copies, an arena with planned offsets.

Values that kernels compute are channels last. Those that are joined along the channels
are written side by side into one wider buffer, at its pixel stride, so that joining
them costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import torch

from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem
from memplan.fusing.layers import Concat, EagerOp, Node
from memplan.graph.program import Op
from memplan.graph.weights import has_hooks
from memplan.solving.bestfit import best_fit

FUNCTIONS = {
    *("conv1d", "conv2d", "conv3d", "linear", "matmul", "bmm", "convolution"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("pixel_shuffle", "pixel_unshuffle", "interpolate"),
    *("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    *("layer_norm", "group_norm", "softmax", "log_softmax", "gelu", "silu", "mish"),
    *("sigmoid", "tanh", "exp", "sqrt", "neg", "pow", "add", "sub", "mul", "div"),
    *("truediv", "mean", "sum", "amax", "cat", "stack"),
}
MODULES = {
    *("Conv1d", "Conv2d", "Conv3d", "Linear"),
    *("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
    *("PixelShuffle", "PixelUnshuffle"),
    *("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"),
    *("LayerNorm", "GroupNorm", "Softmax", "Softmax2d", "LogSoftmax"),
    *("GELU", "Sigmoid", "Tanh", "Softplus"),
}


def allocates_result(op: Op) -> bool:
    """Whether the result of `op` is known not to share memory with its operands."""
    target = op.target
    if not isinstance(target, torch.nn.Module):
        return op.key.rpartition(".")[2] in FUNCTIONS and "out" not in op.kwargs
    own = type(target).__module__.startswith("torch.nn.modules.")
    return own and type(target).__name__ in MODULES and not has_hooks(target)


ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass(frozen=True)
class Place:
    """Where a value of shape (n, c, h, w) lies.

    buffer: the value whose buffer it is in. channel: its first there. pixel: elements
    from one pixel to the next: the buffer's channels.
    """

    buffer: str
    channel: int
    pixel: int


@dataclass(frozen=True)
class Arena:
    """Offsets in bytes of buffers, by name, and how many bytes they take together.

    bound: see `core.bounds.lower_bound`.
    """

    offsets: dict[str, int]
    bytes: int
    bound: int


def place(
    nodes: list[Node],
    shapes: dict[str, tuple[int, ...]],
    native: Callable[[Node], bool],
    apart: Collection[str] = (),
) -> dict[str, Place]:
    """The places of values that lie in the arena.

    native: whether a node writes into the arena; values of others have no place. apart:
    values that need a buffer of their own, even if they are concatenated. A piece with
    another place than its concatenation's is copied.
    """
    places: dict[str, Place] = {}
    makers = {node.value: node for node in nodes if native(node)}
    cats = [each for each in makers.values() if isinstance(each, Concat)]
    for cat in reversed(cats):
        if cat.value not in places:
            places[cat.value] = _as_prefix(cat, cats, places) or Place(
                cat.value, 0, shapes[cat.value][1]
            )
        whole = places[cat.value]
        channel = whole.channel
        for piece in cat.pieces:
            if piece in makers and piece not in places and piece not in apart:
                places[piece] = Place(whole.buffer, channel, whole.pixel)
            channel += shapes[piece][1]
    for value in makers:
        places.setdefault(value, Place(value, 0, shapes[value][1]))
    return places


def _as_prefix(
    cat: Concat, cats: list[Concat], places: dict[str, Place]
) -> Place | None:
    """The place of a concatenation that is how another one begins."""
    count = len(cat.pieces)
    for other in cats:
        longer = len(other.pieces) > count and other.value in places
        if longer and other.pieces[:count] == cat.pieces:
            return places[other.value]
    return None


def copies(
    cat: Concat, places: dict[str, Place], shapes: dict[str, tuple[int, ...]]
) -> list[tuple[str, Place]]:
    """Pieces of a concatenation that lie elsewhere, and where they are to go."""
    whole = places[cat.value]
    channel, found = whole.channel, []
    for piece in cat.pieces:
        target = Place(whole.buffer, channel, whole.pixel)
        if places.get(piece) != target:
            found.append((piece, target))
        channel += shapes[piece][1]
    return found


def plan(
    nodes: list[Node],
    places: dict[str, Place],
    size: Callable[[str], int],
    kept: Iterable[str],
) -> Arena:
    """Offsets of the buffers that `places` names.

    size: bytes of a buffer. kept: values that live until the end. What torch
    computes from a value may be a view of it, so the value lives as long.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    holders: dict[str, set[str]] = {
        value: {each.buffer} for value, each in places.items()
    }

    def touch(value: str, moment: int) -> None:
        for buffer in holders.get(value, ()):
            first.setdefault(buffer, moment)
            last[buffer] = max(last.get(buffer, 0), moment)

    for moment, node in enumerate(nodes):
        if isinstance(node, EagerOp) and not allocates_result(node.op):
            holders[node.value] = set().union(
                *(holders.get(name, set()) for name in node.inputs())
            )
        for value in (*node.inputs(), node.value):
            touch(value, moment)
    for value in kept:
        touch(value, len(nodes))
    if not first:
        return Arena({}, 0, 0)
    names = list(first)
    problem = Problem.of(
        [first[name] for name in names],
        [last[name] + 1 for name in names],
        [size(name) for name in names],
        alignment=ALIGNMENT,
    )
    offsets = best_fit(problem)
    top = max(int(each) + size(name) for each, name in zip(offsets, names, strict=True))
    return Arena(
        {name: int(each) for name, each in zip(names, offsets, strict=True)},
        top,
        lower_bound(problem),
    )
