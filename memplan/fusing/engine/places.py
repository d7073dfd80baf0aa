"""Where every value lies: concatenations without copies, an arena with offsets planned.

Values that kernels make are channels last. Those that are joined along the channels are
written side by side into one wider buffer, at its pixel stride, so that joining them
costs nothing. Buffers get their offsets from best fit on their lifespans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from memplan.core.problem import Problem
from memplan.fusing.front.anew import makes_anew
from memplan.fusing.nodes import Called, Catenated, Node
from memplan.solving.bestfit import best_fit

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

    bound: bytes that are live at some moment: no plan takes less.
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

    native: whether a node writes where it is told to; what others make has no place.
    apart: values that are to have a buffer of their own, whatever they are joined to.
    A piece that has another place than its concatenation's is to be copied.
    """
    places: dict[str, Place] = {}
    makers = {node.value: node for node in nodes if native(node)}
    cats = [each for each in makers.values() if isinstance(each, Catenated)]
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
    cat: Catenated, cats: list[Catenated], places: dict[str, Place]
) -> Place | None:
    """The place of a concatenation that is how another one begins."""
    count = len(cat.pieces)
    for other in cats:
        longer = len(other.pieces) > count and other.value in places
        if longer and other.pieces[:count] == cat.pieces:
            return places[other.value]
    return None


def copies(
    cat: Catenated, places: dict[str, Place], shapes: dict[str, tuple[int, ...]]
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

    size: bytes of a buffer. kept: values that are wanted at the end. What torch makes
    of a value may be a view of it, so the value then lives as long.
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
        if isinstance(node, Called) and not makes_anew(node.op):
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
        _most_live(first, last, size),
    )


def _most_live(
    first: dict[str, int], last: dict[str, int], size: Callable[[str], int]
) -> int:
    events = sorted(
        [(first[name], size(name)) for name in first]
        + [(last[name] + 1, -size(name)) for name in first]
    )
    live = most = 0
    for _, change in events:
        live += change
        most = max(most, live)
    return most
