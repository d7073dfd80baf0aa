"""Concatenations without copies: where their pieces lie.

Values that kernels compute are channels last. Those that are joined along the channels
are written side by side into one wider buffer, at its pixel stride, so that joining
them costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from memplan.fusing.layers import Concat, Node


@dataclass(frozen=True)
class Place:
    """Where a value of shape (n, c, h, w) lies.

    buffer: the value whose buffer it is in. channel: its first there. pixel: elements
    from one pixel to the next: the buffer's channels.
    """

    buffer: str
    channel: int
    pixel: int


def place(
    nodes: list[Node],
    shapes: dict[str, tuple[int, ...]],
    native: Callable[[Node], bool],
    apart: Collection[str] = (),
) -> dict[str, Place]:
    """The places of values in buffers.

    native: whether a node writes where it is told; values of others have no place.
    apart: values that need a buffer of their own, even if they are concatenated. A
    piece with another place than its concatenation's is copied.
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
