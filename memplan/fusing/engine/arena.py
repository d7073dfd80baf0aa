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
from memplan.solving.bestfit import best_fit

# What torch composes of other operators, whose schemas do not say what is a view: these
# results have memory of their own.
COMPOSED = {
    *("conv1d", "conv2d", "conv3d", "linear", "matmul", "layer_norm", "group_norm"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "instance_norm"),
    *("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    *("softmax", "log_softmax", "batch_norm", "scaled_dot_product_attention"),
}


# Views although their schemas do not say so.
UNSAID = {
    *("aten._unsafe_view", "aten.unsafe_split", "aten.unsafe_split_with_sizes"),
    *("aten.lift", "aten.lift_fresh"),
}


def allocates_result(op: Op) -> bool:
    """Whether the result of `op` is known not to share memory with its operands: by
    its schema, or as one of COMPOSED, whose schemas say nothing."""
    target = op.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    ):
        return op.key.rpartition(".")[2] in COMPOSED
    returns = target._schema.returns
    return op.key not in UNSAID and all(each.alias_info is None for each in returns)


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
