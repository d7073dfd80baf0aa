"""What runs: layers joined into the kernels that compute them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from memplan.fusing.layers import Convolution, Layer, Norm
from memplan.fusing.operations import Operation
from memplan.graph.program import Op


@dataclass(slots=True, eq=False)
class Joined:
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


Operand = Norm | str | Joined


@dataclass(slots=True, eq=False)
class Stacked:
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
class Depthwise(Stacked):
    """A depthwise convolution between element-wise operations, as one kernel.

    convolution: as it is by itself. named: of every operation the layer that it is of.
    """

    convolution: Joined = field(kw_only=True)
    named: list[str] = field(kw_only=True)


@dataclass(slots=True, eq=False)
class Catenated:
    """Values side by side along the channels."""

    value: str
    pieces: list[str]
    layers: list[str] = field(default_factory=list)

    def inputs(self) -> list[str]:
        return list(self.pieces)


@dataclass(slots=True, eq=False)
class Called:
    """What torch computes."""

    value: str
    op: Op
    reason: str
    layers: list[str] = field(default_factory=list)

    def inputs(self) -> list[str]:
        return self.op.operands()


Node = Joined | Stacked | Catenated | Called


@dataclass(slots=True, eq=False)
class Joining:
    """Which rewrites are made; each can be left out, to see what it is worth.

    norms: normalisations folded into convolutions. epilogues: additions and activations
    with the convolution before. prologues: normalisation and ReLU with the convolution
    behind, and zeros around planes; with a depthwise one what is element-wise. pools:
    average pooling moved in front of 1×1 convolutions.
    """

    norms: bool = True
    epilogues: bool = True
    prologues: bool = True
    pools: bool = True


def gates(node: Node) -> list[str]:
    """The values that a stack multiplies with channel by channel of each image."""
    if not isinstance(node, Stacked):
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
        if isinstance(node, Joined):
            yield from _tensors_of(node)
        elif isinstance(node, Stacked):
            for operand in node.operands:
                if isinstance(operand, Norm):
                    yield from operand.tensors
                elif isinstance(operand, Joined):
                    yield from _tensors_of(operand)


def _tensors_of(node: Joined) -> Iterator[str]:
    yield node.convolution.weight
    if node.convolution.bias is not None:
        yield node.convolution.bias
    for norm in (*node.norms, *([node.before] if node.before else [])):
        yield from norm.tensors


def reasons(layers: list[Layer], nodes: list[Node]) -> dict[str, str]:
    """Of every layer, by name, what became of it."""
    said: dict[str, str] = {}
    for node in nodes:
        for name in node.layers:
            if isinstance(node, Called):
                said[name] = f"left to torch: {node.reason}"
            elif isinstance(node, Joined):
                said[name] = f"in the convolution {node.layers[0]}"
            elif isinstance(node, Depthwise):
                said[name] = f"in the convolution {node.convolution.layers[0]}"
            elif isinstance(node, Stacked):
                said[name] = f"in the stack {node.value}"
            else:
                said[name] = "no copy: its pieces are written side by side"
    for layer in layers:
        said.setdefault(layer.name, "nothing to compute")
    return said


__all__ = [
    "Any",
    "Called",
    "Catenated",
    "Depthwise",
    "Joined",
    "Joining",
    "Node",
    "Operand",
    "Stacked",
    "gates",
    "reasons",
    "tensors",
]
