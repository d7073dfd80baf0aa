"""What kernels need of a model, made once: packed weights, vectors, compiled stacks."""

from __future__ import annotations

from typing import Any

from memplan.fusing.engine import onednn
from memplan.fusing.engine.fold import as_planes, folded, scale_and_shift
from memplan.fusing.front.weights import fetch
from memplan.fusing.geometry import Geometry
from memplan.fusing.kernel import Kernel
from memplan.fusing.kernels import tape
from memplan.fusing.layers import Convolution, Network, Norm
from memplan.fusing.memory import Room
from memplan.fusing.nodes import Joined, Node, Stacked
from memplan.fusing.operands import taps
from memplan.fusing.packing import Packed, pack

Weights = Packed | onednn.Packed


def four(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A shape (n, c, h, w): that of vectors (n, c) with planes of one element."""
    n, c, *plane = shape
    height, width = plane or (1, 1)
    return n, c, height, width


def geometry(convolution: Convolution, model: Any) -> Geometry:
    """A convolution without groups, its channels those of its weight now."""
    weight = as_planes(fetch(model, convolution.weight))
    out, channels, height, width = weight.shape
    return Geometry(
        channels,
        out,
        (height, width),
        convolution.stride,
        convolution.padding,
        convolution.dilation,
    )


class Packs:
    """The packed weights of a network's nodes; `fill` takes them anew.

    kernels: the algorithm of each convolution, by value. stacks: the kernel of each
    stack, by value; the stack itself where torch runs it. made: weights packed before,
    by value and algorithm, of the model as it is; it gets those that are packed now.
    """

    def __init__(
        self,
        model: Any,
        network: Network,
        nodes: list[Node],
        kernels: dict[str, str],
        stacks: dict[str, Any],
        made: dict[tuple[str, str], Weights] | None = None,
    ) -> None:
        self.model, self._network, self._nodes = model, network, nodes
        self.kernels, self.stacks = kernels, stacks
        self.convolutions: dict[str, Weights] = {}
        self.vectors: dict[Norm, tuple[Any, Any]] = {}
        self.taps: dict[str, Any] = {}  # of depthwise convolutions, by their values
        own = any(kernel != "onednn" for kernel in kernels.values())
        own = own or any(isinstance(each, Kernel) for each in stacks.values())
        self.play = tape() if own else None
        self._fill({} if made is None else made)

    def fill(self) -> None:
        """Pack the model's weights as they are now."""
        self._fill({})

    def _fill(self, made: dict[tuple[str, str], Weights]) -> None:
        room = Room()
        for node in self._nodes:
            if isinstance(node, Joined):
                key = node.value, self.kernels[node.value]
                if key not in made:
                    made[key] = self._packed(node, room)
                self.convolutions[node.value] = made[key]
                if node.before is not None:
                    self._add(node.before)
            elif isinstance(node, Stacked):
                for operand in node.operands:
                    if isinstance(operand, Norm):
                        self._add(operand)
                    elif isinstance(operand, Joined):
                        self.taps[operand.value] = taps(*folded(self.model, operand))

    def _packed(self, node: Joined, room: Room) -> Weights:
        weight, bias = folded(self.model, node)
        kernel = self.kernels[node.value]
        if kernel == "onednn":
            size = four(self._network.shapes[node.source])
            return onednn.pack(weight, bias, node.convolution, size)
        shape = geometry(node.convolution, self.model)
        return pack(weight, bias, shape, kernel, room=room)

    def _add(self, norm: Norm) -> None:
        scale, shift = scale_and_shift(self.model, norm)
        self.vectors[norm] = scale.float().contiguous(), shift.float().contiguous()

    def native(self, value: str) -> bool:
        """Whether a stack runs as a kernel, and not by torch."""
        return isinstance(self.stacks[value], Kernel)

    def operands(self, node: Stacked) -> list[Any]:
        """A stack's operands in order: vectors, taps, and names of values."""
        found: list[Any] = []
        for operand in node.operands:
            if isinstance(operand, Norm):
                found.extend(self.vectors[operand])
            elif isinstance(operand, Joined):
                found.append(self.taps[operand.value])
            else:
                found.append(operand)
        return found
