"""Normalisation in front of a convolution, in a pass of its own again."""

from __future__ import annotations

from dataclasses import replace

from memplan.fusing.layers import Network
from memplan.fusing.nodes import Joined, Node, Stacked
from memplan.fusing.operations import Operation


def without_prologues(
    nodes: list[Node], network: Network, kernels: dict[str, str]
) -> list[Node]:
    """The nodes with a stack before each convolution that runs by oneDNN and has a
    normalisation joined in front; the stacks' values get shapes in `network`."""
    found: list[Node] = []
    for node in nodes:
        own = not isinstance(node, Joined) or kernels[node.value] != "onednn"
        if own or not isinstance(node, Joined) or node.before is None:
            found.append(node)
            continue
        value = f"{node.value}.normed"  # no traced value has a name with a dot
        network.shapes[value] = network.shapes[node.source]
        network.dtypes[value] = network.dtypes[node.source]
        operations = [Operation("affine")]
        if node.rectified:
            operations.append(Operation("relu"))
        count = len(operations)  # the layers in front stand last
        layers, rest = node.layers[-count:], node.layers[:-count]
        found.append(Stacked(value, node.source, operations, [node.before], layers))
        found.append(
            replace(node, source=value, before=None, rectified=False, layers=rest)
        )
    return found
