"""Convolutions with weights in the layout of their kernels, and their neighbours' work.

oneDNN reorders weights into blocks of channels at every call, and inputs and results
that are not channels last. With weights packed once and channels-last results it needs
no memory for that. What follows a convolution alone, a scale and shift or an
activation, becomes part of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memplan.compiling.layouts import Relaying, channels_last
from memplan.compiling.passes import Flat
from memplan.fusing.given import each_of
from memplan.graph.infer import Inference
from memplan.graph.program import Meta, Op, Program, Ref, refs

aten = torch.ops.aten

TRANSPOSED = aten.conv_transpose2d.input
CONVOLUTIONS = {aten.conv2d.default, aten.convolution.default, TRANSPOSED}
# Activations that oneDNN applies to what it has computed, and its names for them. Of a
# NaN its relu and hardtanh make a number, so they are not among them.
ACTIVATIONS = {
    aten.sigmoid.default: "sigmoid",
    aten.tanh.default: "tanh",
    aten.hardswish.default: "hardswish",
    aten.silu.default: "swish",
}


class _Convolution(NamedTuple):
    """A convolution of a constant weight, and what it takes in.

    scale, shift: names of constants by channel, or None. activation: oneDNN's name of
    what follows, or "none". inner: the operators that it is, the convolution first.
    """

    op: Op
    scale: str | None
    shift: str | None
    activation: str
    inner: list[str]


def packed(flat: Flat, inference: Inference) -> tuple[Flat, int]:
    """The program with packed convolutions, and the bytes of their weights.

    Only of float32; others, and those whose weights are not constant, stay as they are.
    Results are equal to the program's but for rounding.
    """
    if not torch.backends.mkldnn.is_available():
        return flat, 0
    found = {each.op.name: each for each in _convolutions(flat)}
    if not found:
        return flat, 0
    packing = _Packing(flat, found, inference)
    return packing.packed(), packing.bytes


def _convolutions(flat: Flat) -> list[_Convolution]:
    program = flat.program
    uses = Counter(name for op in program.ops for name in op.operands())
    uses.update(refs(program.outputs))
    users = {name: op for op in program.ops for name in op.operands()}

    def follower(op: Op) -> Op | None:
        after = users.get(op.name) if uses[op.name] == 1 else None
        return after if isinstance(after, Op) else None

    found = []
    for op in program.ops:
        assert isinstance(op, Op)
        if not _packs(program, flat.constants, op):
            continue
        scale, shift, activation, inner = None, None, "none", [op.name]
        after = follower(op)
        if after is not None and _is_affine(program, flat.constants, op, after):
            shift, scale = after.args[0].name, after.args[2].name
            inner.append(after.name)
            after = follower(after)
        if after is not None and after.target in ACTIVATIONS:
            activation = ACTIVATIONS[after.target]
            inner.append(after.name)
        found.append(_Convolution(op, scale, shift, activation, inner))
    return found


def _packs(program: Program, constants: dict[str, Tensor], op: Op) -> bool:
    if op.target not in CONVOLUTIONS or op.kwargs:
        return False
    if op.target is aten.convolution.default and op.args[6]:  # a transposed one
        return False
    x, weight, bias = (*op.args, None)[:3]
    meta: Meta = program.metas[x.name]
    if len(meta.shape) != 4 or meta.dtype != torch.float32 or 0 in meta.shape:
        return False
    known = weight.name in constants and (bias is None or bias.name in constants)
    return known and constants[weight.name].dtype == torch.float32


def _is_affine(
    program: Program, constants: dict[str, Tensor], op: Op, after: Op
) -> bool:
    """Whether `after` is `op` times a scale, plus a shift, by channel."""
    if after.target is not aten.addcmul.default or after.kwargs or len(after.args) != 3:
        return False
    shift, x, scale = after.args
    by_channel = (1, program.metas[op.name].shape[1], 1, 1)
    return x.name == op.name and all(
        each.name in constants and constants[each.name].shape == by_channel
        for each in (shift, scale)
    )


class _Packing(Relaying):
    def __init__(
        self, flat: Flat, found: dict[str, _Convolution], inference: Inference
    ) -> None:
        super().__init__(flat, inference)
        self._found = found
        self._known: dict[tuple[object, ...], tuple[Ref, Ref | None]] = {}

    def packed(self) -> Flat:
        program = self.old.program
        inner = {name for each in self._found.values() for name in each.inner}
        for op in program.ops:
            assert isinstance(op, Op)
            if op.name in self._found:
                convolution = self._found[op.name]
                self.values[convolution.inner[-1]] = self._packed(convolution)
            elif op.name not in inner:
                self.values[op.name] = self.again(op)
        return self.flat(program.outputs)

    def _packed(self, each: _Convolution) -> Ref:
        op, program = each.op, self.old.program
        transposed = op.target is TRANSPOSED
        x, weight, bias = (*op.args, None)[:3]
        meta: Meta = program.metas[op.name]
        numbers = numbers_of(op)
        shape = list(program.metas[x.name].shape)
        names = ["padding", "stride", "dilation", "groups"]
        if transposed:
            names.insert(1, "output_padding")
            pack = torch.ops.mkldnn._reorder_convolution_transpose_weight.default
            target = torch.ops.mkldnn._convolution_transpose_pointwise.default
        else:
            pack = torch.ops.mkldnn._reorder_convolution_weight.default
            target = torch.ops.mkldnn._convolution_pointwise.default
        given = [numbers[name] for name in names]
        key = (weight, bias, each.scale, each.shift, repr(given), target)
        if key not in self._known:  # the same in each iteration of a loop
            parts = self._folded(each, weight.name, bias.name if bias else None)
            with torch.no_grad():
                stored = pack(parts[0], *given, shape)
            held = self.constant(f"{op.name}_weight", stored, parts[0])
            added = None
            if parts[1] is not None:
                added = self.constant(f"{op.name}_bias", parts[1], parts[1])
            self._known[key] = held, added
        held, added = self._known[key]
        args = (self.values[x.name], held, added, *given, each.activation, [], "")
        placed = Op(op.name, target, args, {}, op.line)
        return self.to.put(placed, channels_last(meta))

    def _folded(
        self, each: _Convolution, weight: str, bias: str | None
    ) -> tuple[Tensor, Tensor | None]:
        """Weight and bias with scale and shift in them."""
        constants = self.old.constants
        kernel = constants[weight].detach()
        offset = constants[bias].detach() if bias else None
        if each.scale is None or each.shift is None:
            return kernel, offset
        scale, shift = constants[each.scale].flatten(), constants[each.shift].flatten()
        if each.op.target is TRANSPOSED:
            groups = numbers_of(each.op)["groups"]
            by = scale.view(groups, 1, -1, 1, 1)
            parts = kernel.view(groups, -1, *kernel.shape[1:])
            kernel = (parts * by).view(kernel.shape)
        else:
            kernel = kernel * scale.view(-1, 1, 1, 1)
        return kernel, shift if offset is None else offset * scale + shift


def numbers_of(op: Op) -> dict[str, Any]:
    """The numbers of a convolution by name, of two dimensions each but `groups`."""
    given: list[Any] = list(op.args[3:])
    if op.target is TRANSPOSED:
        names = ["stride", "padding", "output_padding", "groups", "dilation"]
    elif op.target is aten.convolution.default:
        names = ["stride", "padding", "dilation", "", "output_padding", "groups"]
    else:
        names = ["stride", "padding", "dilation", "groups"]
    found: dict[str, Any] = {"stride": 1, "padding": 0, "output_padding": 0}
    found |= {"groups": 1, "dilation": 1} | dict(zip(names, given, strict=False))
    return {k: v if k == "groups" else each_of(v, 2) for k, v in found.items() if k}
