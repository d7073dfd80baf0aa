"""Layers joined into nodes: convolutions with what surrounds them, and stacks.

The rest of the network stays as it is; a value that several layers take is computed
once, by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from memplan.fusing.generate import DTYPES
from memplan.fusing.layers import (
    Concat,
    Convolution,
    DepthwiseStack,
    EagerOp,
    FusedConv,
    Layer,
    Network,
    Node,
    StackNode,
)
from memplan.fusing.operators import Operation, Pool
from memplan.fusing.options import Joining
from memplan.graph.program import refs
from memplan.graph.weights import Weights

DEFAULT = Joining()


def join(network: Network, joining: Joining = DEFAULT) -> list[Node]:
    """The nodes of a network, in an order that they can run in."""
    return _Joiner(network, joining).nodes()


class _Joiner:
    def __init__(self, network: Network, joining: Joining) -> None:
        self._network, self._joining = network, joining
        self._layers = [each for each in network.layers if each.kind != "same"]
        self._users = Counter(name for each in self._layers for name in each.inputs)
        self._users.update(refs(network.outputs))
        self._nodes: list[Node] = []
        self._pads: dict[str, Layer] = {}
        self._made: dict[str, Node] = {}  # value -> the last node that makes it

    def nodes(self) -> list[Node]:
        for layer in self._layers:
            self._take(layer)
        if self._joining.pools:
            self._move_pools()
        if self._joining.prologues:
            self._join_prologues()
        return self._nodes

    def _take(self, layer: Layer) -> None:
        """Make a node of a layer, or join it to the node before."""
        if layer.kind == "convolution":
            assert layer.convolution is not None
            self._convolution(layer, layer.convolution)
        elif layer.kind == "operation":
            if not (self._into_convolution(layer) or self._onto_stack(layer)):
                stack = StackNode(layer.name, layer.inputs[0])
                stack.append(layer, layer.inputs[1:])
                self._add(stack)
        elif layer.kind == "cat":
            self._add(Concat(layer.name, layer.inputs, [layer.name]))
        else:
            self._add(EagerOp(layer.name, layer.op, layer.reason, [layer.name]))
            if layer.kind == "pad" and self._joining.prologues:
                self._pads[layer.name] = layer

    def _convolution(self, layer: Layer, convolution: Convolution) -> None:
        """A node of its own; it pads what was padded before it by itself."""
        source, names = layer.inputs[0], [layer.name]
        pad, node = self._pads.get(source), self._only(source)
        if pad is not None and pad.pad is not None and node is not None:
            padded = convolution.padded(pad.pad)
            one = padded.groups == 1
            if not any(padded.behind) or one or self._apart(layer, padded):
                convolution, source = padded, pad.inputs[0]
                self._remove(node)
                names.append(pad.name)
        self._add(FusedConv(layer.name, source, convolution, names))

    def _apart(self, layer: Layer, convolution: Convolution) -> bool:
        """Whether a convolution takes every channel by itself."""
        shapes = self._network.shapes
        channels = {shapes[name][1] for name in (layer.name, layer.inputs[0])}
        return channels == {convolution.groups} and convolution.groups > 1

    def _add(self, node: Node) -> None:
        self._nodes.append(node)
        self._made[node.value] = node

    def _remove(self, node: Node) -> None:
        self._nodes.remove(node)
        del self._made[node.value]

    def _again(self, node: Node, value: str) -> None:
        """A node computes more, and runs when all that it takes is there."""
        self._remove(node)
        node.value = value
        self._add(node)

    def _only(self, value: str) -> Node | None:
        """The node that makes a value which one layer takes, once."""
        return self._made.get(value) if self._users[value] == 1 else None

    def _into_convolution(self, layer: Layer) -> bool:
        """Join an operation to the convolution whose result it takes, if it can be."""
        assert layer.operation is not None
        kind, epilogues = layer.operation.kind, self._joining.epilogues
        if kind == "add" and epilogues and layer.inputs[0] != layer.inputs[1]:
            # Of two convolutions, the later one takes the other's result in.
            found = [self._only(name) for name in layer.inputs]
            plain = [each for each in found if each and _is_convolution(each)]
            node = max(plain, key=self._nodes.index, default=None)
        else:
            node = self._only(layer.inputs[0])
        if not isinstance(node, FusedConv) or node.activation is not None:
            return False
        if kind in ("add", "relu", "clamp") and epilogues:
            others = [name for name in layer.inputs if name != node.value]
            node.after.append(layer, others)
        elif layer.norm and self._joining.norms and _is_convolution(node):
            node.norms.append(layer.norm)
            node.layers.append(layer.name)
        else:
            return False
        self._again(node, layer.name)
        return True

    def _onto_stack(self, layer: Layer) -> bool:
        assert layer.operation is not None
        turns = (0, 1) if layer.operation.kind == "add" else (0,)
        for position, name in enumerate(layer.inputs):
            node = self._only(name)
            if position in turns and isinstance(node, StackNode):
                others = layer.inputs[:1] if position else layer.inputs[1:]
                node.append(layer, others)
                self._again(node, layer.name)
                return True
        return False

    def _move_pools(self) -> None:
        """Average pooling commutes with a 1×1 convolution, and then there is less of
        it; the sums are taken in another order."""
        for node in list(self._nodes):
            if not isinstance(node, StackNode) or len(node.operations) != 1:
                continue
            convolution = self._only(node.source)
            if not (isinstance(convolution, FusedConv) and _averages(node)):
                continue
            source = self._only(convolution.source)
            if not (isinstance(source, StackNode) and self._is_pointwise(convolution)):
                continue
            self._remove(node)
            self._pool(source, node)
            convolution.source = source.value
            self._remove(convolution)
            convolution.value = node.value
            self._made[node.value] = convolution
            self._nodes.insert(self._nodes.index(source) + 1, convolution)

    def _is_pointwise(self, node: FusedConv) -> bool:
        """Whether it is a 1×1 convolution without anything behind it: one without
        strides or padding whose planes stay as large."""
        before, after = (self._network.shapes[x] for x in (node.source, node.value))
        given = node.convolution
        plain = (given.stride, given.padding, given.behind) == ((1, 1), (0, 0), (0, 0))
        return plain and _is_convolution(node) and before[2:] == after[2:]

    def _pool(self, source: StackNode, node: StackNode) -> None:
        """Give a stack the pooling of another, and its value, a new one, a shape."""
        n, c, *_ = self._network.shapes[source.value]
        pooled = f"{source.value}.pooled"  # no captured value has a name with a dot
        self._network.shapes[pooled] = (n, c, *self._network.shapes[node.value][2:])
        self._network.dtypes[pooled] = self._network.dtypes[source.value]
        source.operations += node.operations
        source.layers += node.layers
        del self._made[source.value]
        source.value = pooled
        self._made[pooled] = source
        self._users[pooled] = 1

    def _join_prologues(self) -> None:
        for node in list(self._nodes):
            source = self._only(node.source) if isinstance(node, FusedConv) else None
            if not isinstance(node, FusedConv) or not isinstance(source, StackNode):
                continue
            kinds = [each.kind for each in source.operations]
            if kinds in (["affine"], ["affine", "relu"]):
                node.before, node.source = source, source.source
                self._remove(source)


def _is_convolution(node: Node) -> bool:
    """Whether it is a convolution without anything behind it but normalisations."""
    return isinstance(node, FusedConv) and not node.after.operations


def _averages(node: StackNode) -> bool:
    """Whether its pooling is of windows side by side, without padding."""
    pool = node.operations[0].pool
    return pool is not None and pool._replace(count_padding=True) == Pool(
        "average", pool.kernel, pool.kernel
    )


def without_prologues(nodes: list[Node], kernels: dict[str, str]) -> list[Node]:
    """The nodes with the stack before each convolution that runs by oneDNN and has a
    normalisation joined in front."""
    found: list[Node] = []
    for node in nodes:
        split = isinstance(node, FusedConv) and kernels[node.value] == "onednn"
        if split and isinstance(node, FusedConv) and node.before is not None:
            front = node.before
            found += [front, replace(node, source=front.value, before=None)]
        else:
            found.append(node)
    return found


def is_depthwise(node: Node, network: Network, weights: Weights) -> bool:
    """Whether a node is a convolution of each channel by itself, of a type that stacks
    are compiled for."""
    if not isinstance(node, FusedConv) or node.convolution.groups < 2:
        return False
    weight = weights[node.convolution.weight]
    return (
        weight.dim() in (3, 4)
        and tuple(weight.shape[:2]) == (node.convolution.groups, 1)
        and len(network.shapes[node.value]) == 4
        and str(network.dtypes[node.value]).removeprefix("torch.") in DTYPES
    )


def with_depthwise(
    nodes: list[Node],
    weights: Weights,
    outputs: object,
    chosen: Collection[str],
    joining: Joining,
) -> list[Node]:
    """The nodes with each depthwise convolution of `chosen`, by value, as a stack that
    takes in the element-wise stacks before and behind it, where nothing else takes
    what is between and `joining` has it. It runs where the last of them ran."""
    users = Counter(name for node in nodes for name in node.inputs())
    users.update(refs(outputs))
    makers = {node.value: node for node in nodes}
    takers = {node.source: node for node in nodes if isinstance(node, StackNode)}
    gone: set[str] = set()  # values of nodes that were taken in
    put: dict[str, Node] = {}  # nodes in the place of others, by their values

    def joined(node: Node | None, between: str, wanted: bool) -> list[StackNode]:
        """A stack, if it is element-wise, and no other convolution took it in."""
        joins = (
            isinstance(node, StackNode)
            and wanted
            and users[between] == 1
            and node.value not in gone
            and all(operation.elementwise for operation in node.operations)
        )
        return [node] if joins and isinstance(node, StackNode) else []

    for node in nodes:
        if isinstance(node, FusedConv) and node.value in chosen:
            front = joined(makers.get(node.source), node.source, joining.prologues)
            behind = joined(takers.get(node.value), node.value, joining.epilogues)
            stack = _stack(node, weights, front, behind)
            gone |= {node.value, *(each.value for each in (*front, *behind))}
            put[stack.value] = stack
    return [
        put.get(node.value, node)
        for node in nodes
        if node.value in put or node.value not in gone
    ]


def _stack(
    node: FusedConv, weights: Weights, front: list[StackNode], behind: list[StackNode]
) -> DepthwiseStack:
    """One stack of all that is to be computed, in order."""
    given = node.convolution
    height, width = (1, *weights[given.weight].shape[2:])[-2:]
    pool = Pool(
        "depthwise",
        (int(height), int(width)),
        given.stride,
        given.padding,
        given.dilation,
        behind=given.behind,
    )
    operation = Operation("pool", pool=pool)
    window = StackNode(node.value, node.source, [operation], [node], node.layers[:1])
    before = [] if node.before is None else [node.before]
    parts = [*front, *before, window, node.after, *behind]
    return DepthwiseStack(
        behind[0].value if behind else node.value,
        parts[0].source,
        [each for part in parts for each in part.operations],
        [each for part in parts for each in part.operands],
        [each for part in parts for each in part.layers],
        convolution=node,
        around=[*front, *behind],
    )
