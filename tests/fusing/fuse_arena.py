"""Nodes and the arena that their values lie in, checked by brute force."""

from __future__ import annotations

from typing import Any

import torch

from memplan.fusing.engine.arena import Place, allocates_result, copies, place, plan
from memplan.fusing.join import join
from memplan.fusing.layers import Concat, EagerOp, FusedConv, Node, StackNode
from memplan.graph.program import refs


def check_nodes(network: Any) -> None:
    """Nodes take what is made before them, make each value once, and stand for every
    layer once."""
    nodes, outputs = join(network), network.outputs
    there = {*network.inputs, *network.constants}
    for node in nodes:
        assert set(node.inputs()) <= there
        assert node.value not in there
        there.add(node.value)
    assert set(refs(outputs)) <= there
    named = [name for node in nodes for name in node.names()]
    assert len(named) == len(set(named))
    wanted = {each.name for each in network.layers if each.kind != "same"}
    assert set(named) == wanted
    check_places(nodes, network.shapes, list(refs(outputs)))


def check_places(
    nodes: list[Node], shapes: dict[str, tuple[int, ...]], kept: list[str]
) -> None:
    """Nothing that is still wanted is written over: each node is run on an arena of
    numbers, where every element says whose value it is."""
    torchs = place(nodes, shapes, lambda node: isinstance(node, FusedConv | StackNode))
    assert not any(node.value in torchs for node in nodes if isinstance(node, Concat))
    places = place(nodes, shapes, lambda node: not isinstance(node, EagerOp))
    widths = {each.buffer: each.pixel for each in places.values()}

    def size(buffer: str) -> int:
        n, _, h, w = shapes[buffer]
        return n * h * w * widths[buffer]

    arena = plan(nodes, places, size, kept)
    assert arena.bytes >= arena.bound or arena.bytes == 0
    memory = torch.zeros(arena.bytes + 1, dtype=torch.long)
    numbers = {name: index + 1 for index, name in enumerate(shapes)}

    def view(name: str, where: Place) -> Any:
        n, c, h, w = shapes[name]
        row = w * where.pixel
        start = arena.offsets[where.buffer] + where.channel
        return memory.as_strided((n, c, h, w), (h * row, 1, row, where.pixel), start)

    pieces = {node.value: node.pieces for node in nodes if isinstance(node, Concat)}

    def intact(name: str) -> None:
        if name in pieces:
            whole, at = view(name, places[name]), 0
            for piece in pieces[name]:
                part = whole[:, at : at + shapes[piece][1]]
                assert written(part, piece)
                at += shapes[piece][1]
        elif name in places:
            assert written(view(name, places[name]), name)

    def written(part: Any, name: str) -> bool:
        if name not in pieces:
            return bool((part == numbers[name]).all())
        at, good = 0, True
        for piece in pieces[name]:
            count = shapes[piece][1]
            good = good and written(part[:, at : at + count], piece)
            at += count
        return good

    held: dict[str, set[str]] = {}  # what views of torch may lie in
    for node in nodes:
        for name in node.inputs():
            for each in held.get(name, {name}):
                intact(each)
        if isinstance(node, EagerOp):
            held[node.value] = set().union(
                *(
                    held.get(name, {name})
                    for name in node.inputs()
                    if not allocates_result(node.op)
                )
            )
        elif isinstance(node, Concat):
            for piece, target in copies(node, places, shapes):
                fill(view(piece, target), piece, pieces, numbers, shapes)
        else:
            view(node.value, places[node.value]).fill_(numbers[node.value])
    for name in kept:
        for each in held.get(name, {name}):
            intact(each)


def fill(
    part: Any,
    name: str,
    pieces: dict[str, list[str]],
    numbers: dict[str, int],
    shapes: dict[str, tuple[int, ...]],
) -> None:
    if name not in pieces:
        part.fill_(numbers[name])
        return
    at = 0
    for piece in pieces[name]:
        fill(part[:, at : at + shapes[piece][1]], piece, pieces, numbers, shapes)
        at += shapes[piece][1]
