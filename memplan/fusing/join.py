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
    Norm,
    Operand,
    StackNode,
)
from memplan.fusing.operators import Operation, Pool
from memplan.fusing.options import Joining
from memplan.graph.program import Op, Ref, mapped, refs
from memplan.graph.weights import Weights

DEFAULT = Joining()


def join(network: Network, joining: Joining = DEFAULT) -> tuple[list[Node], object]:
    """The nodes of a network, in an order that they can run in, and its outputs."""
    same = _same(network)
    layers = [_renamed(each, same) for each in network.layers if each.kind != "same"]
    outputs = mapped(network.outputs, lambda ref: Ref(same.get(ref.name, ref.name)))
    users = Counter(name for layer in layers for name in layer.inputs)
    for layer in layers:
        if layer.kind == "call":
            users.subtract(layer.inputs)
            users.update(layer.op.operands())
    users.update(refs(outputs))
    nodes = _Joiner(network, joining, layers, users).nodes()
    return nodes, outputs


def _same(network: Network) -> dict[str, str]:
    """Of values that are others', whose they are."""
    same: dict[str, str] = {}
    for layer in network.layers:
        if layer.kind == "same":
            source = layer.inputs[0]
            same[layer.name] = same.get(source, source)
    return same


def _renamed(layer: Layer, same: dict[str, str]) -> Layer:
    if not same:
        return layer
    old = layer.op
    args, kwargs = mapped(
        (old.args, old.kwargs), lambda ref: Ref(same.get(ref.name, ref.name))
    )
    op = Op(old.name, old.target, args, kwargs, old.line)
    inputs = [same.get(name, name) for name in layer.inputs]
    return replace(layer, inputs=inputs, op=op)


class _Joiner:
    def __init__(
        self,
        network: Network,
        joining: Joining,
        layers: list[Layer],
        users: Counter[str],
    ) -> None:
        self._network, self._joining = network, joining
        self._layers, self._users = layers, users
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
            return
        elif layer.kind == "operation":
            if not (self._into_convolution(layer) or self._onto_stack(layer)):
                self._start_stack(layer)
        elif layer.kind == "cat":
            self._add(Concat(layer.name, layer.inputs))
        else:
            self._add(EagerOp(layer.name, layer.op, layer.reason))
            if layer.kind == "pad" and self._joining.prologues:
                self._pads[layer.name] = layer
        self._nodes[-1].layers.append(layer.name)

    def _convolution(self, layer: Layer, convolution: Convolution) -> None:
        """A node of its own; it pads what was padded before it by itself."""
        source, names = layer.inputs[0], [layer.name]
        pad, node = self._pads.get(source), self._only(source)
        if pad is not None and pad.pad is not None and node is not None:
            padded = convolution.padded(pad.pad)
            if not any(padded.behind) or self._apart(layer, padded):
                convolution, source = padded, pad.inputs[0]
                self._nodes.remove(node)
                del self._made[node.value]
                names.append(pad.name)
        self._add(FusedConv(layer.name, source, convolution, layers=names))

    def _apart(self, layer: Layer, convolution: Convolution) -> bool:
        """Whether a convolution takes every channel by itself."""
        shapes = self._network.shapes
        channels = {shapes[name][1] for name in (layer.name, layer.inputs[0])}
        return channels == {convolution.groups} and convolution.groups > 1

    def _add(self, node: Node) -> None:
        self._nodes.append(node)
        self._made[node.value] = node

    def _again(self, node: Node, value: str) -> None:
        """A node computes more, and runs when all that it takes is there."""
        self._nodes.remove(node)
        del self._made[node.value]
        node.value = value
        self._add(node)

    def _only(self, value: str) -> Node | None:
        """The node that makes a value which one layer takes, once."""
        return self._made.get(value) if self._users[value] == 1 else None

    def _into_convolution(self, layer: Layer) -> bool:
        """Join an operation to the convolution whose result it takes, if it can be."""
        operation = layer.operation
        assert operation is not None
        node = self._only(layer.inputs[0])
        epilogues = self._joining.epilogues
        if operation.kind == "add" and epilogues:
            node = self._latest_convolution(layer)
            if node is None or layer.inputs[0] == layer.inputs[1]:
                return False
            others = [name for name in layer.inputs if name != node.value]
            node.added = others[0]
        elif not isinstance(node, FusedConv) or node.activation is not None:
            return False
        elif operation.kind == "affine" and self._joining.norms and layer.norm:
            if node.added is not None:
                return False
            node.norms.append(layer.norm)
        elif operation.kind == "relu" and epilogues:
            node.activation = (0.0, float("inf"))
        elif operation.kind == "clamp" and epilogues:
            node.activation = (operation.numbers[0], operation.numbers[1])
        else:
            return False
        self._again(node, layer.name)
        return True

    def _latest_convolution(self, layer: Layer) -> FusedConv | None:
        """Of an addition's two operands, the convolution that can take the other in."""
        found = [
            node
            for node in (self._only(name) for name in layer.inputs)
            if isinstance(node, FusedConv)
            and node.added is None
            and node.activation is None
        ]
        return max(found, key=self._nodes.index, default=None)

    def _onto_stack(self, layer: Layer) -> bool:
        assert layer.operation is not None
        for position, name in enumerate(layer.inputs):
            node = self._only(name)
            turned = position == 1
            if turned and layer.operation.kind != "add":
                continue
            if isinstance(node, StackNode):
                node.operations.append(layer.operation)
                if layer.norm is not None:
                    node.operands.append(layer.norm)
                others = layer.inputs[:1] if turned else layer.inputs[1:]
                node.operands.extend(others)
                self._again(node, layer.name)
                return True
        return False

    def _start_stack(self, layer: Layer) -> None:
        assert layer.operation is not None
        norms = [] if layer.norm is None else [layer.norm]
        operands: list[Operand] = [*norms, *layer.inputs[1:]]
        self._add(StackNode(layer.name, layer.inputs[0], [layer.operation], operands))

    def _move_pools(self) -> None:
        """Average pooling commutes with a 1×1 convolution, and then there is less of
        it; the sums are taken in another order."""
        for node in list(self._nodes):
            if not isinstance(node, StackNode) or len(node.operations) != 1:
                continue
            convolution = self._only(node.source)
            if not _averages(node) or not _is_plain_pointwise(convolution):
                continue
            assert isinstance(convolution, FusedConv)
            source = self._only(convolution.source)
            if not isinstance(source, StackNode):
                continue
            self._nodes.remove(node)
            self._pool(source, node)
            convolution.source = source.value
            self._made[node.value] = convolution
            del self._made[convolution.value]
            self._nodes.remove(convolution)
            convolution.value = node.value
            self._nodes.insert(self._nodes.index(source) + 1, convolution)

    def _pool(self, source: StackNode, node: StackNode) -> None:
        """Give a stack the pooling of another, and its value, a new one, a shape."""
        n, c, *_ = self._network.shapes[source.value]
        pooled = f"{source.value}.pooled"  # no traced value has a name with a dot
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
            if not isinstance(node, FusedConv) or node.before is not None:
                continue
            source = self._only(node.source)
            if not isinstance(source, StackNode):
                continue
            kinds = [each.kind for each in source.operations]
            norms = source.operands
            if kinds not in (["affine"], ["affine", "relu"]):
                continue
            assert isinstance(norms[0], Norm)
            node.before, node.rectified = norms[0], len(kinds) == 2
            node.source = source.source
            node.layers += source.layers
            self._nodes.remove(source)
            del self._made[source.value]


def _averages(node: StackNode) -> bool:
    """Whether its pooling is of windows side by side, without padding."""
    pool = node.operations[0].pool
    return (
        pool is not None
        and pool.mode == "average"
        and pool.padding == (0, 0)
        and pool.kernel == pool.stride
        and not pool.ceil
        and pool.divisor is None
    )


def _is_plain_pointwise(node: Node | None) -> bool:
    """Whether it is a 1×1 convolution without anything behind it."""
    return (
        isinstance(node, FusedConv)
        and node.convolution.stride == (1, 1)
        and node.convolution.padding == (0, 0)
        and node.convolution.behind == (0, 0)
        and node.activation is None
        and node.added is None
    )


def without_prologues(
    nodes: list[Node], network: Network, kernels: dict[str, str]
) -> list[Node]:
    """The nodes with a stack before each convolution that runs by oneDNN and has a
    normalisation joined in front; the stacks' values get shapes in `network`."""
    found: list[Node] = []
    for node in nodes:
        own = not isinstance(node, FusedConv) or kernels[node.value] != "onednn"
        if own or not isinstance(node, FusedConv) or node.before is None:
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
        found.append(StackNode(value, node.source, operations, [node.before], layers))
        found.append(
            replace(node, source=value, before=None, rectified=False, layers=rest)
        )
    return found


def is_depthwise(node: Node, network: Network, weights: Weights) -> bool:
    """Whether a node is a convolution of each channel by itself, of a type that stacks
    are compiled for."""
    if not isinstance(node, FusedConv) or node.convolution.groups < 2:
        return False
    weight = weights[node.convolution.weight]
    return (
        weight.dim() == 4
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
    for node in nodes:
        if not isinstance(node, FusedConv) or node.value not in chosen:
            continue
        before = makers.get(node.source)
        single = users[node.source] == 1 and joining.prologues
        if not (single and _can_join(before, gone)):
            before = None
        behind = takers.get(node.value)
        single = users[node.value] == 1 and joining.epilogues
        if not (single and _can_join(behind, gone)):
            behind = None
        stack = _stack(node, weights, before, behind)
        gone.update(each.value for each in (before, node, behind) if each is not None)
        put[stack.value] = stack
    return [
        put.get(node.value, node)
        for node in nodes
        if node.value in put or node.value not in gone
    ]


def _can_join(node: Node | None, gone: Collection[str]) -> bool:
    """Whether it is element-wise, and was not taken in by another convolution."""
    return (
        isinstance(node, StackNode)
        and node.value not in gone
        and all(operation.elementwise for operation in node.operations)
    )


def _stack(
    node: FusedConv, weights: Weights, before: Node | None, behind: Node | None
) -> DepthwiseStack:
    """One stack of all that is to be computed, in order."""
    found = _Parts()
    if isinstance(before, StackNode):
        found.add_all(before)
    prologue = (node.before is not None) + node.rectified
    main = node.layers[: len(node.layers) - prologue]
    if node.before is not None:
        found.add(Operation("affine"), node.layers[len(main)], node.before)
    if node.rectified:
        found.add(Operation("relu"), node.layers[-1])
    kernel = tuple(weights[node.convolution.weight].shape[2:])
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
        relu = node.activation == (0.0, float("inf"))
        activation = Operation("relu") if relu else Operation("clamp", node.activation)
        found.add(activation, main[-1])
    layers = list(node.layers)
    if isinstance(before, StackNode):
        layers = before.layers + layers
    if isinstance(behind, StackNode):
        found.add_all(behind)
        layers = layers + behind.layers
    last, first = behind or node, before if isinstance(before, StackNode) else node
    return DepthwiseStack(
        *(last.value, first.source, found.operations, found.operands, layers),
        convolution=node,
        named=found.named,
    )


class _Parts:
    """Operations in order, their operands and their layers."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.operands: list[Operand] = []
        self.named: list[str] = []

    def add(self, operation: Operation, layer: str, *operands: Operand) -> None:
        self.operations.append(operation)
        self.named.append(layer)
        self.operands.extend(operands)

    def add_all(self, stack: StackNode) -> None:
        self.operations += stack.operations
        self.named += stack.layers
        self.operands += stack.operands
