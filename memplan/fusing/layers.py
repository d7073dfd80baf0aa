"""A network's layers, as depth-first execution sees them (BrainSlug, 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from memplan.fusing.operations import Operation
from memplan.graph.program import Op


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
    in order. op: how torch computes it. shape: of its value; empty if that is none.
    """

    name: str
    kind: str
    inputs: list[str]
    op: Op
    shape: tuple[int, ...] = ()
    convolution: Convolution | None = None
    operation: Operation | None = None
    norm: Norm | None = None
    reason: str = ""
    pad: tuple[int, int, int, int] | None = None  # above, below, left, right

    @property
    def place(self) -> str:
        """Where it stands in the model: a module's path, or a line of source."""
        return self.op.line or self.op.name


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
    outputs: Any
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, Any] = field(default_factory=dict)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
