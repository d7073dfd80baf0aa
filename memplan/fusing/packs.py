"""What kernels need of a model, made once: packed weights, vectors, compiled stacks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from weakref import WeakValueDictionary

import torch

from memplan.fusing.convolution import Packed, Prologue, bind, pack
from memplan.fusing.kernel import Kernel, taps
from memplan.fusing.kernels import tape
from memplan.fusing.layers import FusedConv, Network, Node, Norm, StackNode
from memplan.graph.arenas import PageAllocator
from memplan.graph.native import Bound, Play, PointerSlot
from memplan.graph.weights import Weights, digest

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
    """A weight (k, c, h, w): that of a linear layer (k, c) as one of a 1×1 kernel, and
    of a convolution of one dimension (k, c, w) as one with a height of 1."""
    if weight.dim() == 3:
        return weight.unsqueeze(2)
    return weight if weight.dim() == 4 else weight[:, :, None, None]


def folded(
    weights: Weights, node: FusedConv
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight (k, c / groups, h, w) and bias (k) or None of a convolution, with the
    normalisations behind it: in the weight's own type, computed in float64."""
    weight = as_planes(weights[node.convolution.weight]).detach()
    factor, bias = _factor_and_bias(weights, node)
    if factor is None:
        return weight, bias
    assert bias is not None
    return _scaled(weight, factor), bias.to(weight.dtype)


def _factor_and_bias(
    weights: Weights, node: FusedConv
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What the normalisations behind a convolution multiply its channels by, float64,
    or None; and its bias (k) with them, or None."""
    bias = node.convolution.bias
    added = None if bias is None else weights[bias].detach()
    factor: torch.Tensor | None = None
    for norm in node.norms:
        scale, shift = scale_and_shift(weights, norm)
        factor = scale if factor is None else factor * scale
        added = shift if added is None else added.double() * scale + shift
    return factor, added


def _scaled(weight: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Each output channel times its factor; the wide products stay in cache."""
    found = torch.empty_like(weight, memory_format=torch.contiguous_format)
    rows = max(1, PIECE // max(1, factor.numel() and weight[0].numel()))
    pieces = (each.split(rows) for each in (found, weight, factor.view(-1, 1, 1, 1)))
    for target, part, scale in zip(*pieces, strict=True):
        target.copy_(part * scale)  # in float64
    return found


Made = dict[Hashable, Packed]  # by what they are packed of, and for which kernel
# By contents: programs for other input shapes pack the same weights, as may other
# modules of the same model. An entry lives as long as what uses it.
_shared: WeakValueDictionary[Hashable, Packed] = WeakValueDictionary()
# Likewise, of weights that do not lie by rows: copies that do.
_copies: WeakValueDictionary[Hashable, torch.Tensor] = WeakValueDictionary()
# What computes each stack, by its value: a kernel, or a function of input and operands.
Stacks = dict[str, Kernel | Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]]


def as_4d(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A shape (n, c, h, w): that of vectors (n, c) with planes of one element."""
    n, c, *plane = shape
    height, width = plane or (1, 1)
    return n, c, height, width


class Packs:
    """The packed weights of a network's nodes that kernels run.

    nodes: of `network`, in the order that they run in. kernels: the algorithm of each
    convolution, by value. stacks: see Stacks. made: weights packed before, of the model
    as it is; it gets those that are packed now.
    """

    def __init__(
        self,
        weights: Weights,
        network: Network,
        nodes: list[Node],
        kernels: dict[str, str],
        stacks: Stacks,
        made: Made | None = None,
    ) -> None:
        self.weights, self.network, self.nodes = weights, network, nodes
        self.kernels, self.stacks = kernels, stacks
        self.convolutions: dict[str, Packed] = {}
        self._held: list[Packed] = []  # what they are made of, as it is shared
        self._vectors: dict[Norm | FusedConv, list[torch.Tensor]] = {}  # for stacks
        own = any(kernel != "onednn" for kernel in kernels.values())
        own = own or any(isinstance(each, Kernel) for each in stacks.values())
        self.play: Play | None = tape() if own else None
        self._fill({} if made is None else made)

    def _fill(self, made: Made) -> None:
        """Pack the weights, but for those in `made`."""
        room = PageAllocator()
        for node in self.nodes:
            if isinstance(node, FusedConv):
                if not self.native(node):
                    continue
                key = packing(node, self.kernels[node.value])
                if key not in made:
                    made[key] = self._packed(node, room)
                found = replace(made[key], convolution=node.convolution)
                self.convolutions[node.value] = found
                if node.before is not None:
                    self._add(node.before)
            elif isinstance(node, StackNode):
                self._add(node)

    def _packed(self, node: FusedConv, room: PageAllocator) -> Packed:
        kernel, given = self.kernels[node.value], node.convolution
        names = [given.weight, given.bias]
        for norm in node.norms:
            names += [norm.mean, norm.var, norm.weight, norm.bias]
        weights = [None if name is None else self.weights[name] for name in names]
        key = digest(weights), kernel, *(norm.eps for norm in node.norms)
        found = _shared.get(key)
        if found is None:
            found = pack(*folded(self.weights, node), given, kernel, room=room)
            found = _shared[key] = replace(found, plain=None)  # each model has its own
        self._held.append(found)
        if kernel == "direct":
            return found
        factor, _ = _factor_and_bias(self.weights, node)
        factor = None if factor is None else factor.float().contiguous()
        weight = as_planes(self.weights[given.weight]).detach()
        if not weight.is_contiguous():
            copied = _copies.get(key[0])
            weight = weight.contiguous() if copied is None else copied
            _copies[key[0]] = weight
        return replace(found, plain=weight, factor=factor)

    def _add(self, stack: StackNode) -> None:
        for operand in stack.operands:
            if isinstance(operand, Norm):
                vectors = scale_and_shift(self.weights, operand)
                self._vectors[operand] = [each.float().contiguous() for each in vectors]
            elif isinstance(operand, FusedConv):
                self._vectors[operand] = [taps(*folded(self.weights, operand))]

    def native(self, node: Node) -> bool:
        """Whether a convolution or stack runs as a kernel, not by torch."""
        if isinstance(node, FusedConv):
            return self.kernels[node.value] != "onednn"
        return isinstance(node, StackNode) and isinstance(
            self.stacks[node.value], Kernel
        )

    @property
    def bytes(self) -> int:
        """Of all weights that are packed, those that nodes share once, and of copies of
        the model's own."""
        kinds = (node for node in self.nodes if isinstance(node, FusedConv))
        own = {self.weights[node.convolution.weight].data_ptr() for node in kinds}
        packed = {
            id(tensor): tensor
            for each in self.convolutions.values()
            for tensor in (each.weights, each.bias, each.plain, each.factor)
            if tensor is not None and tensor.data_ptr() not in own
        }
        others = [tensor for made in self._vectors.values() for tensor in made]
        return sum(x.numel() * x.itemsize for x in (*packed.values(), *others))

    def operands(self, node: StackNode) -> list[torch.Tensor | str]:
        """A stack's operands in order: vectors, taps, and names of values."""
        found: list[torch.Tensor | str] = []
        for operand in node.operands:
            found += [operand] if isinstance(operand, str) else self._vectors[operand]
        return found

    def bind(
        self,
        node: FusedConv | StackNode,
        tensor_of: Callable[[str], torch.Tensor],
        between: torch.Tensor | None = None,
    ) -> Bound:
        """The call of a node's kernel on tensors (n, c, h, w) by their names. `given`
        has the place of each address. between: see `Kernel.bind`."""
        fields: dict[str, str | None] = {"input": node.source, "output": node.value}
        x, out = tensor_of(node.source), tensor_of(node.value)
        if isinstance(node, FusedConv):
            packed = self.convolutions[node.value]
            prologue = Prologue()
            if node.before is not None:
                scale, shift = self.tensors(node.before, tensor_of)
                prologue = Prologue(scale, shift, len(node.before.operations) > 1)
            added = None if node.added is None else tensor_of(node.added)
            bound = bind(packed, x, out, prologue, added, node.activation)
            fields["add"] = node.added
            entries = []
        else:
            kernel = self.stacks[node.value]
            assert isinstance(kernel, Kernel)
            bound = kernel.bind(x, self.tensors(node, tensor_of), out, between)
            entries = [
                PointerSlot(entry, "data", each)
                for entry, each in zip(bound.held[0], self.operands(node), strict=False)
                if isinstance(each, str)
            ]
        bound.given = [
            PointerSlot(bound.call, field, name)
            for field, name in fields.items()
            if name is not None
        ] + entries
        return bound

    def tensors(
        self, node: StackNode, tensor_of: Callable[[str], torch.Tensor]
    ) -> list[torch.Tensor]:
        """A stack's operands in order, those by name as `tensor_of` has them."""
        return [
            tensor_of(each) if isinstance(each, str) else each
            for each in self.operands(node)
        ]


def packing(node: FusedConv, kernel: str) -> Hashable:
    """What a convolution's packed weights depend on: nodes with the same share them."""
    given = node.convolution
    return given.weight, given.bias, tuple(node.norms), kernel
