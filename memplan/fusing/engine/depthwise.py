"""Depthwise convolutions as stacks, with the element-wise operations around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from memplan.fusing.front.weights import fetch
from memplan.fusing.generate import DTYPES
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Depthwise, Joined, Joining, Node, Operand, Stacked
from memplan.fusing.operations import Operation, Pool
from memplan.graph.program import refs


def is_depthwise(node: Node, network: Network, model: Any) -> bool:
    """Whether a node is a convolution of each channel by itself, of a type that stacks
    are compiled for."""
    if not isinstance(node, Joined) or node.convolution.groups < 2:
        return False
    weight = fetch(model, node.convolution.weight)
    return (
        weight.dim() == 4
        and tuple(weight.shape[:2]) == (node.convolution.groups, 1)
        and len(network.shapes[node.value]) == 4
        and str(network.dtypes[node.value]).removeprefix("torch.") in DTYPES
    )


def with_depthwise(
    nodes: list[Node],
    model: Any,
    outputs: Any,
    chosen: Collection[str],
    joining: Joining,
) -> list[Node]:
    """The nodes with each depthwise convolution of `chosen`, by value, as a stack that
    takes in the element-wise stacks before and behind it, where nothing else takes
    what is between and `joining` has it. It runs where the last of them ran."""
    users = Counter(name for node in nodes for name in node.inputs())
    users.update(refs(outputs))
    makers = {node.value: node for node in nodes}
    takers = {node.source: node for node in nodes if isinstance(node, Stacked)}
    gone: set[str] = set()  # values of nodes that were taken in
    put: dict[str, Node] = {}  # nodes in the place of others, by their values
    for node in nodes:
        if not isinstance(node, Joined) or node.value not in chosen:
            continue
        before = makers.get(node.source)
        single = users[node.source] == 1 and joining.prologues
        if not (single and _can_join(before, gone)):
            before = None
        behind = takers.get(node.value)
        single = users[node.value] == 1 and joining.epilogues
        if not (single and _can_join(behind, gone)):
            behind = None
        stack = _stack(node, model, before, behind)
        gone.update(each.value for each in (before, node, behind) if each is not None)
        put[stack.value] = stack
    return [put.get(node.value, node) for node in nodes if _stays(node, gone, put)]


def _stays(node: Node, gone: Collection[str], put: Collection[str]) -> bool:
    return node.value in put or node.value not in gone


def _can_join(node: Node | None, gone: Collection[str]) -> bool:
    """Whether it is element-wise, and was not taken in by another convolution."""
    return (
        isinstance(node, Stacked)
        and node.value not in gone
        and all(operation.elementwise for operation in node.operations)
    )


def _stack(
    node: Joined, model: Any, before: Node | None, behind: Node | None
) -> Depthwise:
    """One stack of all that is to be computed, in order."""
    found = _Parts([], [], [])
    if isinstance(before, Stacked):
        found.add_all(before)
    prologue = (node.before is not None) + node.rectified
    main = node.layers[: len(node.layers) - prologue]
    if node.before is not None:
        found.add(Operation("affine"), node.layers[len(main)], node.before)
    if node.rectified:
        found.add(Operation("relu"), node.layers[-1])
    kernel = tuple(fetch(model, node.convolution.weight).shape[2:])
    given = node.convolution
    pool = Pool(
        "depthwise",
        (int(kernel[0]), int(kernel[1])),
        given.stride,
        given.padding,
        given.dilation,
        behind=given.behind,
    )
    found.add(Operation("pool", pool=pool), main[0], node)
    if node.added is not None:
        at = -1 - (node.activation is not None)
        found.add(Operation("add"), main[at], node.added)
    if node.activation is not None:
        found.add(_activation(*node.activation), main[-1])
    layers = list(node.layers)
    if isinstance(before, Stacked):
        layers = before.layers + layers
    if isinstance(behind, Stacked):
        found.add_all(behind)
        layers = layers + behind.layers
    last, first = behind or node, before if isinstance(before, Stacked) else node
    return Depthwise(
        *(last.value, first.source, found.operations, found.operands, layers),
        convolution=node,
        named=found.named,
    )


def _activation(low: float, high: float) -> Operation:
    if (low, high) == (0.0, float("inf")):
        return Operation("relu")
    return Operation("clamp", (low, high))


class _Parts:
    """Operations, their operands, and the layers that they are of, as they come."""

    def __init__(
        self, operations: list[Operation], operands: list[Operand], named: list[str]
    ) -> None:
        self.operations, self.operands, self.named = operations, operands, named

    def add(self, operation: Operation, layer: str, *operands: Operand) -> None:
        self.operations.append(operation)
        self.named.append(layer)
        self.operands.extend(operands)

    def add_all(self, stack: Stacked) -> None:
        self.operations += stack.operations
        self.named += stack.layers
        self.operands += stack.operands
