"""A network's layers (BrainSlug, 4.1), its stacks, and the nodes that compute them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from memplan.fusing.operators import Operation
from memplan.graph.program import Argument, Op, refs


@dataclass(frozen=True)
class Norm:
    """A batch normalisation in inference: x * scale + shift of each channel.

    mean, var, weight, bias: names of tensors in the model; None for 1 and for 0.
    """

    mean: str
    var: str
    weight: str | None
    bias: str | None
    eps: float

    def tensors(self) -> tuple[str, ...]:
        names = (self.mean, self.var, self.weight, self.bias)
        return tuple(name for name in names if name is not None)


@dataclass(frozen=True)
class Convolution:
    """A convolution's numbers, (height, width), and its tensors' names."""

    weight: str
    bias: str | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    behind: tuple[int, int] = (0, 0)  # rows, columns of padding more than in front

    def padded(self, pad: tuple[int, int, int, int]) -> Convolution:
        """The same of what these rows above and below, and columns left and right, of
        zeros were taken from."""
        above, below, left, right = pad
        down, across = self.padding
        return replace(
            self,
            padding=(down + above, across + left),
            behind=(below - above, right - left),
        )


@dataclass(slots=True, eq=False)
class Layer:
    """One operator of a network, and what it is: `kind` says which fields count.

    kind: "convolution"; "operation", of a stack, element-wise or pooling; "cat" along
    the channels; "same", whose value is its first input's; "pad", zeros around planes;
    "call", left to torch, for the reason given. inputs: names of the values it takes,
    in order. op: how torch computes it. place: where it stands in the model: a module's
    path, or a line of source and a name. operator: the module's class, or the
    function's name. shape: of its value; empty if that is none.

    became: what became of it in a network that runs: "convolution", run as `kernel`;
    "joined" with the convolution named `into`; in the "stack" named `into`; "placed", a
    concatenation that nobody copies; "nothing", for there is no computation; or left to
    "torch".
    """

    name: str
    kind: str
    inputs: list[str]
    op: Op
    place: str
    operator: str
    shape: tuple[int, ...] = ()
    convolution: Convolution | None = None
    operation: Operation | None = None
    norm: Norm | None = None
    reason: str = ""
    pad: tuple[int, int, int, int] | None = None  # above, below, left, right
    became: str = "nothing"
    into: str = ""
    kernel: str = ""

    @property
    def does(self) -> str:
        """Its kind; of an operation the operation's."""
        if self.operation is None:
            return self.kind
        pool = self.operation.pool
        return self.operation.kind if pool is None else f"{pool.mode} pool"


@dataclass(slots=True, eq=False)
class Network:
    """Layers in the order they run in.

    inputs: names of the arguments. constants: value -> name of a tensor in the model.
    outputs: a nest of Ref and plain values. shapes, dtypes, strides: of every tensor
    in it, as the model has them.
    """

    inputs: list[str]
    constants: dict[str, str]
    layers: list[Layer]
    outputs: Argument
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class StackNode:
    """Consecutive operations that run depth-first as one kernel.

    operands: of every operand of the operations in order, a Norm (whose scale and shift
    are two), the name of a value, or the convolution whose weights and bias it is.
    layers: of every operation the name of the layer that it is of.
    """

    value: str
    source: str
    operations: list[Operation] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)

    def inputs(self) -> list[str]:
        return [self.source, *self.values()]

    def values(self) -> list[str]:
        """Operands that are values, by their names."""
        return [each for each in self.operands if isinstance(each, str)]

    def names(self) -> list[str]:
        """Names of the layers that a node stands for."""
        return self.layers

    def append(self, layer: Layer, others: list[str]) -> None:
        """Compute a layer, too, which takes `others` beside the value."""
        assert layer.operation is not None
        self.operations.append(layer.operation)
        self.operands += [*([layer.norm] if layer.norm else []), *others]
        self.layers.append(layer.name)


@dataclass(slots=True, eq=False)
class FusedConv:
    """A convolution with what is computed while its tiles are in cache.

    value, source: names of what it makes and takes. norms: folded into its weights, in
    order. before: what is done to the input, a normalisation and at times ReLU. after:
    what is done to the result: an addition, a clamp, or both. layers: names of the
    layers that are neither in `before` nor in `after`, its own first.
    """

    value: str
    source: str
    convolution: Convolution
    layers: list[str]
    norms: list[Norm] = field(default_factory=list)
    before: StackNode | None = None
    after: StackNode = field(default_factory=lambda: StackNode("", ""))

    def inputs(self) -> list[str]:
        return [self.source, *self.after.values()]

    def names(self) -> list[str]:
        front = [] if self.before is None else self.before.layers
        return [*self.layers, *self.after.layers, *front]

    @property
    def added(self) -> str | None:
        """The value that is added to the result."""
        return next(iter(self.after.values()), None)

    @property
    def activation(self) -> tuple[float, float] | None:
        """What the result is clamped to at the end, (low, high)."""
        last = self.after.operations[-1:]
        if not last or last[0].kind == "add":
            return None
        if last[0].kind == "relu":
            return 0.0, math.inf
        low, high = last[0].numbers
        return low, high

    def tensors(self) -> Iterator[str]:
        """Names of the model's tensors that it is made of."""
        bias = self.convolution.bias
        yield from (self.convolution.weight, *([] if bias is None else [bias]))
        for norm in (*self.norms, *(self.before.operands if self.before else ())):
            yield from norm.tensors()


Operand = Norm | str | FusedConv


@dataclass(slots=True, eq=False)
class DepthwiseStack(StackNode):
    """A depthwise convolution between element-wise operations, as one kernel.

    convolution: as it is by itself. around: the stacks that were taken in.
    """

    convolution: FusedConv = field(kw_only=True)
    around: list[StackNode] = field(kw_only=True)

    def names(self) -> list[str]:
        taken = [name for stack in self.around for name in stack.layers]
        return [*taken, *self.convolution.names()]


@dataclass(slots=True, eq=False)
class Concat:
    """Values side by side along the channels."""

    value: str
    pieces: list[str]
    layers: list[str] = field(default_factory=list)

    def inputs(self) -> list[str]:
        return list(self.pieces)

    def names(self) -> list[str]:
        return self.layers


@dataclass(slots=True, eq=False)
class EagerOp:
    """What torch computes."""

    value: str
    op: Op
    reason: str
    layers: list[str] = field(default_factory=list)

    def inputs(self) -> list[str]:
        return self.op.operands()

    def names(self) -> list[str]:
        return self.layers


Node = FusedConv | StackNode | Concat | EagerOp


def gates(node: Node) -> list[str]:
    """The values that a stack multiplies with channel by channel of each image."""
    if not isinstance(node, StackNode):
        return []
    kinds = [each.operands for each in node.operations if each.operands]
    pairs = zip(kinds, node.operands, strict=True)  # scale and shift are one Norm
    return [str(operand) for kind, operand in pairs if kind == ("image",)]


def pointwise(node: StackNode) -> list[str]:
    """The values that a stack without pools reads where it writes its result: it may
    write over them. Those of `gates` it reads elsewhere, too."""
    if not all(operation.elementwise for operation in node.operations):
        return []
    return list(dict.fromkeys(node.inputs()))


def tensors(nodes: list[Node]) -> Iterator[str]:
    """Names of the model's tensors that kernels are made from."""
    for node in nodes:
        made = node.operands if isinstance(node, StackNode) else [node]
        for each in made:
            if isinstance(each, Norm | FusedConv):
                yield from each.tensors()


def stacks(network: Network) -> list[list[Layer]]:
    """Maximal runs of element-wise and pooling layers, each of which takes the result
    of the one before and is the only one to.

    Where a layer joins two runs, as an addition does, it carries on the later one.
    """
    layers = [layer for layer in network.layers if layer.kind != "same"]
    users = Counter(name for layer in layers for name in layer.op.operands())
    users.update(refs(network.outputs))
    runs: list[list[Layer]] = []
    ends: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.kind != "operation":
            continue
        open_ = [ends[name] for name in layer.inputs if name in ends]
        open_ = [run for run in open_ if users[run[-1].name] == 1]
        run = max(open_, key=runs.index, default=None)
        if run is None:
            run = []
            runs.append(run)
        else:
            ends.pop(run[-1].name, None)
        run.append(layer)
        ends[layer.name] = run
    return runs
