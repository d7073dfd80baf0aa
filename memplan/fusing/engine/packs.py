"""What kernels need of a model, made once: packed weights, vectors, compiled stacks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from memplan.fusing.convolution import Packed, pack
from memplan.fusing.engine import onednn
from memplan.fusing.kernel import Kernel, taps
from memplan.fusing.kernels import tape
from memplan.fusing.layers import FusedConv, Network, Node, Norm, StackNode
from memplan.fusing.memory import PageAllocator
from memplan.graph.weights import Weights

PIECE = 1 << 16  # weights that are scaled at a time


def scale_and_shift(weights: Weights, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each channel, float64: x * scale + shift is the normalised x."""
    mean, var = weights[norm.mean].double(), weights[norm.var].double()
    scale = (var + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * weights[norm.weight].double()
    shift = -mean * scale
    if norm.bias is not None:
        shift = shift + weights[norm.bias].double()
    return scale, shift


def as_planes(weight: torch.Tensor) -> torch.Tensor:
    """A weight (k, c, h, w): that of a linear layer (k, c) as one of a 1×1 kernel."""
    return weight if weight.dim() == 4 else weight[:, :, None, None]


def folded(
    weights: Weights, node: FusedConv
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight (k, c / groups, h, w) and bias (k) or None of a convolution, with the
    normalisations behind it: in the weight's own type, computed in float64."""
    weight = as_planes(weights[node.convolution.weight])
    bias = node.convolution.bias
    added = None if bias is None else weights[bias]
    if not node.norms:
        return weight.detach(), None if added is None else added.detach()
    factor = weight.new_ones(weight.shape[0], dtype=torch.float64)
    total = torch.zeros_like(factor) if added is None else added.detach().double()
    for norm in node.norms:
        scale, shift = scale_and_shift(weights, norm)
        factor, total = factor * scale, total * scale + shift
    return _scaled(weight.detach(), factor), total.to(weight.dtype)


def _scaled(weight: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Each output channel times its factor; the wide products stay in cache."""
    found = torch.empty_like(weight, memory_format=torch.contiguous_format)
    rows = max(1, PIECE // max(1, factor.numel() and weight[0].numel()))
    pieces = (each.split(rows) for each in (found, weight, factor.view(-1, 1, 1, 1)))
    for target, part, scale in zip(*pieces, strict=True):
        target.copy_(part * scale)  # in float64
    return found


PackedWeights = Packed | onednn.Packed
# What computes each stack, by its value: a kernel, or a function of input and operands.
Stacks = dict[str, Kernel | Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]]


def as_4d(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A shape (n, c, h, w): that of vectors (n, c) with planes of one element."""
    n, c, *plane = shape
    height, width = plane or (1, 1)
    return n, c, height, width


class Packs:
    """The packed weights of a network's nodes; `fill` takes them anew.

    nodes: of `network`, in the order that they run in. kernels: the algorithm of each
    convolution, by value. stacks: see Stacks. made: weights packed before, by value and
    algorithm, of the model as it is; it gets those that are packed now.
    """

    def __init__(
        self,
        weights: Weights,
        network: Network,
        nodes: list[Node],
        kernels: dict[str, str],
        stacks: Stacks,
        made: dict[tuple[str, str], PackedWeights] | None = None,
    ) -> None:
        self.weights, self.network, self.nodes = weights, network, nodes
        self.kernels, self.stacks = kernels, stacks
        self.convolutions: dict[str, PackedWeights] = {}
        self._made: dict[Norm | FusedConv, list[torch.Tensor]] = {}  # for stacks
        own = any(kernel != "onednn" for kernel in kernels.values())
        own = own or any(isinstance(each, Kernel) for each in stacks.values())
        self.play = tape() if own else None
        self.fill({} if made is None else made)

    def fill(self, made: dict[tuple[str, str], PackedWeights]) -> None:
        """Pack the model's weights as they are now, but for those in `made`."""
        room = PageAllocator()
        for node in self.nodes:
            if isinstance(node, FusedConv):
                key = node.value, self.kernels[node.value]
                if key not in made:
                    made[key] = self._packed(node, room)
                self.convolutions[node.value] = made[key]
                if node.before is not None:
                    self._add(node.before)
            elif isinstance(node, StackNode):
                self._add(node)

    def _packed(self, node: FusedConv, room: PageAllocator) -> PackedWeights:
        weight, bias = folded(self.weights, node)
        kernel = self.kernels[node.value]
        if kernel == "onednn":
            size = as_4d(self.network.shapes[node.source])
            return onednn.pack(weight, bias, node.convolution, size)
        return pack(weight, bias, node.convolution, kernel, room=room)

    def _add(self, stack: StackNode) -> None:
        for operand in stack.operands:
            if isinstance(operand, Norm):
                vectors = scale_and_shift(self.weights, operand)
                self._made[operand] = [each.float().contiguous() for each in vectors]
            elif isinstance(operand, FusedConv):
                self._made[operand] = [taps(*folded(self.weights, operand))]

    def native(self, value: str) -> bool:
        """Whether a stack runs as a kernel, not by torch."""
        return isinstance(self.stacks[value], Kernel)

    def operands(self, node: StackNode) -> list[torch.Tensor | str]:
        """A stack's operands in order: vectors, taps, and names of values."""
        found: list[torch.Tensor | str] = []
        for operand in node.operands:
            found += [operand] if isinstance(operand, str) else self._made[operand]
        return found
