"""Layers of a program as memplan's own kernels, several in one (BrainSlug, 4.1)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor, nn

from memplan.compiling.layouts import Relaying, channels_last
from memplan.compiling.passes import Flat
from memplan.fusing.concatenate import Place, copies, place
from memplan.fusing.decide import Decisions, Timed
from memplan.fusing.join import join
from memplan.fusing.kernel import Kernel as StackKernel
from memplan.fusing.kernel import spacing
from memplan.fusing.layers import (
    Concat,
    DepthwiseStack,
    FusedConv,
    Network,
    Node,
    StackNode,
    gates,
    pointwise,
)
from memplan.fusing.options import FuseOptions
from memplan.fusing.origins import Origins
from memplan.fusing.packs import Packs, as_4d
from memplan.fusing.planes import LINEAR, ROWS, with_planes
from memplan.fusing.recognise import recognise
from memplan.graph.infer import Inference, meta_of
from memplan.graph.native import OUT, Assembled, Bound, Native, Play
from memplan.graph.program import Meta, Op, Program, Ref, Step, refs
from memplan.graph.weights import Weights

aten = torch.ops.aten


@dataclass(frozen=True)
class Joined:
    """A program's layers as the nodes that compute them.

    packs: the nodes, and what their kernels need. layout: of values in memory, see
    `fusing.generate.LAYOUTS`. native: nodes that run as kernels, by their values.
    origins: of the layers that rewrites made.
    """

    packs: Packs
    layout: str
    native: frozenset[str]
    origins: Origins

    @property
    def nodes(self) -> list[Node]:
        """What computes the network's values, in order."""
        return self.packs.nodes

    @property
    def network(self) -> Network:
        """The program's layers."""
        return self.packs.network

    @property
    def kernels(self) -> dict[str, str]:
        """The algorithm of each convolution, by value."""
        return self.packs.kernels


class Kernel(Native):
    """What a node of a network computes, as the target of an operator.

    layout: of all that it takes and makes, see `fusing.generate.LAYOUTS`. into: see
    Native. layers: how many operators it stands for.
    """

    def __init__(
        self,
        node: FusedConv | StackNode,
        packs: Packs,
        layout: str,
        into: bool = False,
    ) -> None:
        self.node, self._packs, self.layout = node, packs, layout
        self.into = into
        self.layers = len(node.names())
        self.names = list(dict.fromkeys(node.inputs()))
        self.shape = packs.network.shapes[node.value]
        self.dtype = packs.network.dtypes[node.value]
        kind = "convolution" if isinstance(node, FusedConv) else "stack"
        self.__name__ = f"memplan.{kind}"
        self._rows = set(gates(node))
        over = [node.added] if isinstance(node, FusedConv) else pointwise(node)
        aside = {node.source} if isinstance(node, FusedConv) else self._rows
        wanted = [name for name in over if name is not None and name not in aside]
        self.over = tuple(self.names.index(name) for name in wanted)

    @property
    def play(self) -> Play:
        assert self._packs.play is not None
        return self._packs.play

    def empty(self) -> Tensor:
        order = self.order(len(self.shape))
        return torch.empty(self.shape, dtype=self.dtype, memory_format=order)

    def order(self, dims: int) -> torch.memory_format:
        """Of the tensors with so many dimensions that it takes and makes."""
        last = self.layout == "channels_last" and dims == 4
        return torch.channels_last if last else torch.contiguous_format

    @property
    def scratch(self) -> int:
        kernel = self._packs.stacks.get(self.node.value)
        if not isinstance(kernel, StackKernel):
            return 0
        return kernel.between_bytes(as_4d(self._packs.network.shapes[self.node.source]))

    def call(self, operands: Sequence[Tensor], out: Tensor, scratch: Tensor) -> Bound:
        given = operands[:-1] if self.into else operands
        tensors = dict(zip(self.names, map(_planes, given), strict=True))
        tensors[self.node.value] = _planes(out)
        bound = self._packs.bind(self.node, tensors.__getitem__, scratch)
        positions = {name: i for i, name in enumerate(self.names)}
        positions[self.node.value] = OUT
        bound.given = [
            slot._replace(value=positions[slot.value]) for slot in bound.given
        ]
        return bound

    def takes(self, position: int, meta: Meta) -> bool:
        """Whether a value that lies so can be the operand at a position."""
        if position == len(self.names):  # where the result goes
            return True
        images, channels, *planes = meta.shape
        if not planes or self.names[position] in self._rows:
            rows = meta._replace(shape=(images, channels), strides=meta.strides[:2])
            return rows.contiguous
        return spacing(meta.shape, meta.strides, self.layout) is not None

    def __call__(self, *operands: Tensor) -> Tensor:
        laid = list(operands)
        for i, x in enumerate(operands):
            if not self.takes(i, meta_of(x)):
                laid[i] = x.contiguous(memory_format=self.order(x.dim()))
        return super().__call__(*laid)


def _planes(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 4 else tensor[:, :, None, None]


def with_kernels(
    flat: Flat,
    inference: Inference,
    inputs: Sequence[Tensor],
    options: FuseOptions,
    anywhere: bool = False,
    origins: Origins | None = None,
) -> tuple[Flat, Joined | None]:
    """The program with what can be joined as kernels, if it has a convolution of images
    that gains by that; `anywhere`: any layer.

    flat: its operators as torch.export has them. inputs: of the program. origins: of
    the operators that rewrites made. What no kernel runs stays as it is. Results are
    equal to the program's but for rounding.
    """
    if not inputs:
        return flat, None
    origins = Origins() if origins is None else origins
    viewed = replace(flat, program=with_planes(flat.program, inference, origins))
    timed: Timed = {}
    found = _joined(viewed, inputs, options, anywhere, timed)
    # Averaging in front of a convolution is for kernels: it is no operator of torch's.
    if found is not None and not _all_known(found.packs, viewed):
        unmoved = replace(options, joining=replace(options.joining, pools=False))
        found = _joined(viewed, inputs, unmoved, anywhere, timed)
    if found is None:
        return flat, None
    fusing = _Fusing(viewed, inference, found.packs, found.layout)
    made, native = fusing.fused(), frozenset(fusing.native)
    return made, replace(found, native=native, origins=origins)


def _all_known(packs: Packs, flat: Flat) -> bool:
    """Whether nodes that no kernel runs make and take values of the program."""
    others = (each for each in packs.nodes if not packs.native(each))
    names = {name for node in others for name in (node.value, *node.inputs())}
    return flat.program.metas.keys() >= names


def _joined(
    flat: Flat,
    inputs: Sequence[Tensor],
    options: FuseOptions,
    anywhere: bool,
    timed: Timed,
) -> Joined | None:
    """Nodes and their kernels; None if no kernel is of a convolution of images, or
    `anywhere` none at all."""
    network = recognise(named(flat.program), nn.Module())
    nodes = join(network, options.joining)
    if not (anywhere or any(_is_of_images(node, network) for node in nodes)):
        return None
    weights = Weights(nn.Module(), flat.constants)
    decisions = Decisions(weights, network, nodes, inputs, options, timed)
    packs = decisions.packs()
    native = [each for each in packs.nodes if packs.native(each)]
    if not (native if anywhere else any(_is_of_images(x, network) for x in native)):
        return None
    return Joined(packs, decisions.layout, frozenset(), Origins())


def named(program: Program) -> Program:
    """The program, its weights by the names that they have in it."""
    return replace(program, constants={name: name for name in program.constants})


def _is_of_images(node: Node, network: Network) -> bool:
    convolves = isinstance(node, FusedConv | DepthwiseStack)
    return convolves and len(network.shapes[node.value]) == 4


class _Fusing(Relaying):
    """Writes native nodes as kernels, and pieces of concatenations where these lie."""

    def __init__(
        self, flat: Flat, inference: Inference, packs: Packs, layout: str
    ) -> None:
        super().__init__(flat, inference)
        self._packs, self._layout = packs, layout
        self._ops = {layer.name: layer.op for layer in packs.network.layers}
        self._places = self._placed() if layout == "channels_last" else {}
        self._joint: dict[str, Ref] = {}  # buffers of concatenations, by their values
        self.native: set[str] = set()  # what kernels have computed

    def fused(self) -> Flat:
        packs, order = self._packs, {name: i for i, name in enumerate(self._ops)}
        for node in packs.nodes:
            if self._is_kernel(node):
                self.values[node.value] = self._kernel(node)
                self.native.add(node.value)
            elif isinstance(node, Concat) and node.value in self._places:
                self.values[node.value] = self._assembled(node)
            else:
                for name in sorted(node.names(), key=order.__getitem__):
                    op = self._ops[name]
                    by = self._unviewed if op.target in {LINEAR, ROWS} else self.again
                    self.values[name] = by(op)
        program = self.old.program
        pairs = zip(refs(program.outputs), refs(packs.network.outputs), strict=True)
        for own, other in pairs:  # that of a layer that computes nothing is its input
            self.values.setdefault(own, self.values[other])
        return self.flat(program.outputs)

    def _unviewed(self, op: Op) -> Ref:
        """A linear layer of planes or a convolution of rows, by torch."""
        x, weight, bias = (each and self.values[each.name] for each in op.args[:3])
        if op.target is LINEAR:
            x = self.to.add(op, f"{op.name}_of", aten.permute.default, x, [0, 2, 3, 1])
            made = f"{op.name}_rows"
            y = self.to.add(op, made, aten.linear.default, x, weight, bias)
            return self.to.add(op, op.name, aten.permute.default, y, [0, 3, 1, 2])
        planes = self.to.add(op, f"{op.name}_by", aten.unsqueeze.default, weight, 2)
        given = planes, bias, *op.args[3:]
        return self.to.add(op, op.name, aten.conv2d.default, x, *given)

    def _placed(self) -> dict[str, Place]:
        """The places of concatenations, and of pieces that kernels write."""
        packs, shapes = self._packs, self._packs.network.shapes
        made = {node.value for node in packs.nodes if packs.native(node)}

        def writes(node: Node) -> bool:
            if isinstance(node, Concat):
                return len(shapes[node.value]) == 4 and not made.isdisjoint(node.pieces)
            return packs.native(node)

        apart = {name for node in packs.nodes for name in gates(node)}
        return {
            value: each
            for value, each in place(packs.nodes, shapes, writes, apart).items()
            if value not in made or each.buffer != value
        }

    def _is_kernel(self, node: Node) -> TypeGuard[FusedConv | StackNode]:
        """Whether a kernel runs it. A copy for one operator alone, as of attention's
        scores, which are no images, would cost more than its kernel saves."""
        if not isinstance(node, FusedConv | StackNode) or not self._packs.native(node):
            return False
        if isinstance(node, FusedConv) or len(node.names()) > 1:
            return True
        target = Kernel(node, self._packs, self._layout)
        metas = [self.to.meta(self.values[name]) for name in target.names]
        in_place = node.value in self._places
        return in_place or all(target.takes(*each) for each in enumerate(metas))

    def _kernel(self, node: FusedConv | StackNode) -> Ref:
        into = node.value in self._places
        target = Kernel(node, self._packs, self._layout, into)
        # The value of an average that was moved has no name in the program.
        op = self._ops.get(node.value) or self._ops[node.names()[-1]]
        values = [self.values[name] for name in target.names]
        if into:
            values.append(self._part(op, node.value))
        return self.to.add(op, node.value, target, *values)

    def _assembled(self, node: Concat) -> Ref:
        """The concatenation: a view of its buffer when all pieces are there."""
        places, shapes = self._places, self._packs.network.shapes
        lacking = [value for value, _ in copies(node, places, shapes)]
        moved, channel = {}, 0
        for i, piece in enumerate(node.pieces):
            if piece in lacking:
                moved[i + 1] = 1, channel, channel + shapes[piece][1]
            channel += shapes[piece][1]
        op = self._ops[node.value]
        pieces = [self.values[piece] for piece in node.pieces]
        whole = self._part(op, node.value)
        return self.to.add(op, node.value, Assembled(moved), whole, *pieces)

    def _part(self, op: Op, value: str) -> Ref:
        """Where a value lies, as a view of its buffer."""
        at, network = self._places[value], self._packs.network
        if at.buffer not in self._joint:
            shape, dtype = network.shapes[at.buffer], network.dtypes[at.buffer]
            meta = channels_last(Meta(shape, shape, dtype, "cpu"))
            self._joint[at.buffer] = self.empty(op, f"{at.buffer}_buffer", meta)
        buffer, channels = self._joint[at.buffer], network.shapes[value][1]
        if channels == at.pixel:
            return buffer
        ends = at.channel, at.channel + channels
        return self.to.add(op, f"{value}_part", aten.slice.Tensor, buffer, 1, *ends)


def converted(
    flat: Flat, inference: Inference, astray: Container[str] = frozenset()
) -> Flat:
    """The program with the operands of kernels copied where they lie otherwise than
    kernels read them, or are `astray`: lie otherwise than their metas say."""
    program = flat.program
    ops: list[Step] = []
    done: dict[tuple[str, str], Ref] = {}  # copies, by value and layout
    for op in program.ops:
        target = op.target if isinstance(op, Op) else None
        if not isinstance(target, Kernel):
            ops.append(op)
            continue
        taken = []
        for i, name in enumerate(op.operands()):
            meta, key = program.metas[name], (name, target.layout)
            if target.takes(i, meta) and name not in astray:
                taken.append(Ref(name))
                continue
            if key not in done:
                copied = _copy(name, target.order(len(meta.shape)), program.metas)
                inference.add(program, copied)
                ops.append(copied)
                done[key] = Ref(copied.name)
            taken.append(done[key])
        ops.append(Op(op.name, target, tuple(taken), {}, op.line))
    return replace(flat, program=replace(program, ops=ops))


def _copy(name: str, order: torch.memory_format, taken: Container[str]) -> Op:
    free = f"{name}_lying"
    while free in taken:
        free += "_"
    return Op(free, aten.clone.default, (Ref(name),), {"memory_format": order})
