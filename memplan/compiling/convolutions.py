"""Convolutions with weights in the layout of their kernels, and their neighbours' work.

oneDNN reorders weights into blocks of channels at every call, and inputs and results
that are not channels last. With weights packed once and channels-last results it needs
no memory for that. What follows a convolution alone, a scale and shift or an
activation, becomes part of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memplan.compiling.passes import Builder, Flat
from memplan.graph.infer import Inference, ShapeError
from memplan.graph.program import Argument, Meta, Op, Program, Ref, mapped, refs

aten = torch.ops.aten

TRANSPOSED = aten.conv_transpose2d.input
CONVOLUTIONS = {aten.conv2d.default, aten.convolution.default, TRANSPOSED}
CONTIGUOUS = {aten.native_group_norm.default}  # refuse an input that lies otherwise
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
    return _Packing(flat, found, inference).flat()


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


class _Packing:
    def __init__(
        self, flat: Flat, found: dict[str, _Convolution], inference: Inference
    ) -> None:
        self._flat, self._found = flat, found
        self._to = Builder(flat.program, inference)
        self._values: dict[str, Argument] = {}
        self._made: dict[str, Tensor] = {}
        self._buffers = _buffers(flat.program)
        self._known: dict[tuple[object, ...], tuple[Ref, Ref | None]] = {}

    def flat(self) -> tuple[Flat, int]:
        program = self._flat.program
        inner = {name for each in self._found.values() for name in each.inner}
        for name in (*program.inputs, *program.constants):
            self._values[name] = Ref(name)
        for op in program.ops:
            assert isinstance(op, Op)
            if op.name in self._found:
                convolution = self._found[op.name]
                self._values[convolution.inner[-1]] = self._packed(convolution)
            elif op.name not in inner:
                self._values[op.name] = self._again(op)
        made = self._to.program
        made.outputs = mapped(program.outputs, self._result)
        constants = {**self._flat.constants, **self._made}
        wanted = {name for op in made.ops for name in op.operands()}
        wanted.update(refs(made.outputs))
        made.constants = {n: p for n, p in made.constants.items() if n in wanted}
        kept = {name: constants[name] for name in made.constants}
        nbytes = sum(each.numel() * each.itemsize for each in self._made.values())
        return replace(self._flat, program=made, constants=kept), nbytes

    def _result(self, ref: Ref) -> Argument:
        """A result of the program, which lies as before."""
        value, was = self._values[ref.name], self._flat.program.metas[ref.name]
        if not was.contiguous or self._to.meta(value).contiguous:
            return value
        origin = Op(ref.name, aten.contiguous.default, (value,))
        return self._to.add(origin, f"{ref.name}_lying", origin.target, value)

    def _again(self, op: Op) -> Ref:
        """The operator on operands that may lie otherwise now."""
        args, kwargs = mapped((op.args, op.kwargs), lambda ref: self._values[ref.name])
        if op.name in self._buffers:
            args = (
                args[0],
                list(_channels_last(self._flat.program.metas[op.name]).strides),
            )
        if op.target in CONTIGUOUS and not self._to.meta(args[0]).contiguous:
            name = f"{op.name}_contiguous"
            args = (self._to.add(op, name, aten.contiguous.default, args[0]), *args[1:])
        try:
            return self._to.add(op, op.name, op.target, *args, **kwargs)
        except ShapeError:
            if op.target is not aten.view.default:
                raise
            return self._to.add(op, op.name, aten.reshape.default, *args)

    def _packed(self, each: _Convolution) -> Ref:
        op, program = each.op, self._flat.program
        transposed = op.target is TRANSPOSED
        x, weight, bias = (*op.args, None)[:3]
        meta: Meta = program.metas[op.name]
        numbers = _numbers(op)
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
            held = self._constant(f"{op.name}_weight", stored, parts[0])
            added = None
            if parts[1] is not None:
                added = self._constant(f"{op.name}_bias", parts[1], parts[1])
            self._known[key] = held, added
        held, added = self._known[key]
        args = (self._values[x.name], held, added, *given, each.activation, [], "")
        placed = Op(op.name, target, args, {}, op.line)
        return self._to.put(placed, _channels_last(meta))

    def _folded(
        self, each: _Convolution, weight: str, bias: str | None
    ) -> tuple[Tensor, Tensor | None]:
        """Weight and bias with scale and shift in them."""
        constants = self._flat.constants
        kernel = constants[weight].detach()
        offset = constants[bias].detach() if bias else None
        if each.scale is None or each.shift is None:
            return kernel, offset
        scale, shift = constants[each.scale].flatten(), constants[each.shift].flatten()
        if each.op.target is TRANSPOSED:
            groups = _numbers(each.op)["groups"]
            by = scale.view(groups, 1, -1, 1, 1)
            parts = kernel.view(groups, -1, *kernel.shape[1:])
            kernel = (parts * by).view(kernel.shape)
        else:
            kernel = kernel * scale.view(-1, 1, 1, 1)
        return kernel, shift if offset is None else offset * scale + shift

    def _constant(self, name: str, stored: Tensor, plain: Tensor) -> Ref:
        """A new constant; `plain` has the shape that operators see."""
        program = self._to.program
        program.constants[name] = name
        program.roots[name] = name
        shape, strides = tuple(plain.shape), plain.contiguous().stride()
        program.metas[name] = Meta(shape, strides, plain.dtype, "cpu")
        self._made[name] = stored
        return Ref(name)


def _buffers(program: Program) -> set[str]:
    """Buffers of pictures that loops fill and other operators read, so that they may
    lie channels last; those of the program's results stay as they are."""
    filled = {
        op.name: op.operands()[0]
        for op in program.ops
        if isinstance(op, Op) and op.key == "aten.slice_scatter"
    }
    given = set(refs(program.outputs))
    while more := {filled[name] for name in given & filled.keys()} - given:
        given |= more
    return {
        op.name
        for op in program.ops
        if isinstance(op, Op)
        and op.key == "aten.empty_strided"
        and op.name not in given
        and len(program.metas[op.name].shape) == 4
        and program.metas[op.name].contiguous
    }


def _numbers(op: Op) -> dict[str, Any]:
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
    return {k: v if k == "groups" else _both(v) for k, v in found.items() if k}


def _both(value: int | list[int]) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * 2 if len(values) == 1 else values


def _channels_last(meta: Meta) -> Meta:
    _, channels, height, width = meta.shape
    strides = (channels * height * width, 1, width * channels, channels)
    return meta._replace(strides=strides)
