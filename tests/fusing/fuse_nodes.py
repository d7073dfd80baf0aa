"""Nodes and the places of their pieces, checked by brute force."""

from __future__ import annotations

from typing import Any

from memplan.fusing.concatenate import copies, place
from memplan.fusing.join import join
from memplan.fusing.layers import Concat, EagerOp, Node
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
    check_places(nodes, network.shapes)


def check_places(nodes: list[Node], shapes: dict[str, tuple[int, ...]]) -> None:
    """Every concatenation has its pieces, in order, where it lies: buffers are lists of
    channels, and every channel says whose it is."""
    places = place(nodes, shapes, lambda node: not isinstance(node, EagerOp))
    buffers: dict[str, list[tuple[str, int]]] = {}
    for each in places.values():
        buffers.setdefault(each.buffer, [("", 0)] * each.pixel)
        assert len(buffers[each.buffer]) == each.pixel

    def write(name: str, buffer: str, channel: int) -> None:
        for i in range(shapes[name][1]):
            buffers[buffer][channel + i] = content(name)[i]

    pieces = {node.value: node.pieces for node in nodes if isinstance(node, Concat)}

    def content(name: str) -> list[tuple[str, int]]:
        if name not in pieces:
            return [(name, i) for i in range(shapes[name][1])]
        return [channel for piece in pieces[name] for channel in content(piece)]

    for node in nodes:
        if isinstance(node, Concat):
            for piece, target in copies(node, places, shapes):
                write(piece, target.buffer, target.channel)
        elif node.value in places:
            write(node.value, places[node.value].buffer, places[node.value].channel)
        for name in (*node.inputs(), node.value):
            if name in places:
                at = places[name]
                ends = at.channel, at.channel + shapes[name][1]
                assert buffers[at.buffer][slice(*ends)] == content(name)
