"""A network's layers (BrainSlug, 4.1), its stacks, and the nodes that compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from memplan.fusing.operators import Operation
from memplan.graph.program import Op, refs


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

    @property
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
    outputs: object
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class FusedConv:
    """A convolution with what is computed while its tiles are in cache.

    value, source: names of what it makes and takes. before: a normalisation of the
    input, then ReLU where `rectified`. norms: folded into its weights, in order. added:
    a value added to the result. activation: clamp to (low, high) at the end; None for
    none. layers: names of the layers it stands for.
    """

    value: str
    source: str
    convolution: Convolution
    norms: list[Norm] = field(default_factory=list)
    before: Norm | None = None
    rectified: bool = False
    added: str | None = None
    activation: tuple[float, float] | None = None
    layers: list[str] = field(default_factory=list)

    def inputs(self) -> list[str]:
        return [self.source, *([self.added] if self.added else [])]


Operand = Norm | str | FusedConv


@dataclass(slots=True, eq=False)
class StackNode:
    """Consecutive operations that run depth-first as one kernel.

    operands: of every operand of the operations in order, a Norm (whose scale and shift
    are two), the name of a value, or the convolution whose weights and bias it is.
    """

    value: str
    source: str
    operations: list[Operation]
    operands: list[Operand]
    layers: list[str] = field(default_factory=list)

    def inputs(self) -> list[str]:
        named = [each for each in self.operands if isinstance(each, str)]
        return [self.source, *named]


@dataclass(slots=True, eq=False)
class DepthwiseStack(StackNode):
    """A depthwise convolution between element-wise operations, as one kernel.

    convolution: as it is by itself. named: of every operation the layer that it is of.
    """

    convolution: FusedConv = field(kw_only=True)
    named: list[str] = field(kw_only=True)


@dataclass(slots=True, eq=False)
class Concat:
    """Values side by side along the channels."""

    value: str
    pieces: list[str]
    layers: list[str] = field(default_factory=list)

    def inputs(self) -> list[str]:
        return list(self.pieces)


@dataclass(slots=True, eq=False)
class EagerOp:
    """What torch computes."""

    value: str
    op: Op
    reason: str
    layers: list[str] = field(default_factory=list)

    def inputs(self) -> list[str]:
        return self.op.operands()


Node = FusedConv | StackNode | Concat | EagerOp


def gates(node: Node) -> list[str]:
    """The values that a stack multiplies with channel by channel of each image."""
    if not isinstance(node, StackNode):
        return []
    operands = iter(node.operands)
    found = []
    for operation in node.operations:
        kinds = operation.operands
        operand = next(operands) if kinds else None  # scale and shift are one Norm
        if kinds == ("image",) and isinstance(operand, str):
            found.append(operand)
    return found


def tensors(nodes: list[Node]) -> Iterator[str]:
    """Names of the model's tensors that kernels are made from."""
    for node in nodes:
        if isinstance(node, FusedConv):
            yield from _tensors_of(node)
        elif isinstance(node, StackNode):
            for operand in node.operands:
                if isinstance(operand, Norm):
                    yield from operand.tensors
                elif isinstance(operand, FusedConv):
                    yield from _tensors_of(operand)


def _tensors_of(node: FusedConv) -> Iterator[str]:
    yield node.convolution.weight
    if node.convolution.bias is not None:
        yield node.convolution.bias
    for norm in (*node.norms, *([node.before] if node.before else [])):
        yield from norm.tensors


def stacks(network: Network) -> list[list[Layer]]:
    """Maximal runs of element-wise and pooling layers, each of which takes the result
    of the one before and is the only one to.

    What computes nothing in inference, as dropout does, is of the run that it is in.
    Where a layer joins two runs, as an addition does, it carries on the later one.
    """
    users = Counter(name for layer in network.layers for name in layer.op.operands())
    users.update(refs(network.outputs))
    runs: list[list[Layer]] = []
    ends: dict[str, list[Layer]] = {}
    for layer in network.layers:
        if layer.kind not in ("operation", "same"):
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
    return [run for run in runs if any(layer.kind == "operation" for layer in run)]
