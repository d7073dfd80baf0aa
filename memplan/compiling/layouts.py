"""A program written anew in which some values lie channels last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from memplan.chunking.buffers import dense_strides
from memplan.compiling.passes import Flat
from memplan.graph.build import Builder
from memplan.graph.execute import COPIES, writers
from memplan.graph.infer import Inference, ShapeError
from memplan.graph.native import Assembled
from memplan.graph.nest import overlapping
from memplan.graph.program import (
    Argument,
    Meta,
    Op,
    Program,
    Ref,
    is_pointwise,
    mapped,
    refs,
)
from memplan.graph.script import NoTapeError

aten = torch.ops.aten

# Operators that refuse an input which lies otherwise than it did, read it otherwise, or
# whose results then lie otherwise than torch says.
STRICT = {
    *(aten.native_group_norm.default, aten.as_strided.default, aten.view.dtype),
    *(aten.view_as_real.default, aten.view_as_complex.default),
    aten.max_pool1d.default,
}
# Views that are copies of what lies otherwise.
VIEWS = {aten.view.default, aten._unsafe_view.default}


class Relaying:
    """Writes a program's operators anew, one after another.

    values: by a value's name in the old program, what it is in the new one, at first
    its inputs and constants. to: builds the new one. made: constants that it gets.
    """

    def __init__(self, flat: Flat, inference: Inference) -> None:
        self.old, self.to = flat, Builder(flat.program, inference)
        given = (*flat.program.inputs, *flat.program.constants)
        self.values: dict[str, Argument] = {name: Ref(name) for name in given}
        self.made: dict[str, Tensor] = {}
        self._buffers = _buffers(flat.program)
        # By roots of results and what else the caller holds, what they are in the old.
        self._roots = {name: name for name in given}
        self._results: dict[str, Argument] = {}

    def constant(self, name: str, stored: Tensor, plain: Tensor) -> Ref:
        """A new constant; `plain` has the shape that operators see."""
        program = self.to.program
        program.constants[name] = name
        program.roots[name] = name
        shape, strides = tuple(plain.shape), plain.contiguous().stride()
        program.metas[name] = Meta(shape, strides, plain.dtype, "cpu")
        self.made[name] = stored
        return Ref(name)

    def again(self, op: Op) -> Ref:
        """The operator, on operands that may lie otherwise now."""
        args, kwargs = mapped((op.args, op.kwargs), lambda ref: self.values[ref.name])
        if op.name in self._buffers:
            strides = channels_last(self.old.program.metas[op.name]).strides
            args = (args[0], list(strides))
        if op.target in STRICT:
            args = (self._as_before(op), *args[1:])
        try:
            return self.to.add(op, op.name, op.target, *args, **kwargs)
        except ShapeError:
            if op.target not in VIEWS:
                raise
            return self.to.add(op, op.name, aten.reshape.default, *args)

    def _as_before(self, op: Op) -> Ref:
        """Its first operand, as it lay."""
        name = op.operands()[0]
        was: Meta = self.old.program.metas[name]
        value: Ref = self.values[name]
        if self.to.meta(value).strides == was.strides:
            return value
        if was.contiguous:
            return self.to.add(op, f"{op.name}_of", aten.contiguous.default, value)
        if overlapping(was.shape, was.strides):
            raise NoTapeError(f"{op.key} of a value that lies otherwise now")
        return self._lying(op, f"{op.name}_of", value, was)

    def _lying(self, op: Op, name: str, value: Ref, meta: Meta) -> Ref:
        """A copy of a value that lies as `meta` says."""
        whole = {1: (0, 0, meta.shape[0])}
        memory = self.empty(op, f"{name}_lying", meta)
        return self.to.add(op, f"{name}_laid", Assembled(whole), memory, value)

    def flat(self, outputs: Argument) -> Flat:
        """The new program; outputs: a nest of the old program's values."""
        made = self.to.program
        made.outputs = mapped(outputs, self._result)
        constants: Mapping[str, Tensor] = {**self.old.constants, **self.made}
        wanted = {name for op in made.ops for name in op.operands()}
        wanted.update(refs(made.outputs))
        made.constants = {n: p for n, p in made.constants.items() if n in wanted}
        kept = {name: constants[name] for name in made.constants}
        return replace(self.old, program=made, constants=kept)

    @property
    def bytes(self) -> int:
        """Of the new constants."""
        return sum(each.numel() * each.itemsize for each in self.made.values())

    def _result(self, ref: Ref) -> Argument:
        """A result of the program, which lies as before, and is made once."""
        if ref.name not in self._results:
            self._results[ref.name] = self._as_was(ref)
        return self._results[ref.name]

    def _as_was(self, ref: Ref) -> Argument:
        value, was = self.values[ref.name], self.old.program.metas[ref.name]
        op = Op(ref.name, aten.empty_strided.default, ())
        root = self.old.program.roots[ref.name]
        if self._roots.setdefault(self.to.program.roots[value.name], root) != root:
            # What computes nothing makes memory of its own, if that is a result.
            value = self.to.add(op, f"{ref.name}_own", aten.clone.default, value)
        now: Meta = self.to.meta(value)
        if now.strides == was.strides or 0 in was.strides:
            return value
        return self._lying(op, ref.name, value, was)

    def empty(self, op: Op, name: str, meta: Meta) -> Ref:
        """Memory for a value; `op` tells where it comes from."""
        shape, strides = list(meta.shape), list(meta.strides)
        options = {"dtype": meta.dtype, "device": torch.device(meta.device)}
        return self.to.add(
            op, name, aten.empty_strided.default, shape, strides, **options
        )


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


def straightened(flat: Flat, inference: Inference) -> Flat:
    """The program in which element-wise results that lie otherwise than row-major, and
    are only copied into that order, are written so at once."""
    found = _copied(flat.program)
    return _Straightening(flat, inference, found).straight() if found else flat


class _Straightening(Relaying):
    def __init__(self, flat: Flat, inference: Inference, found: dict[str, str]) -> None:
        super().__init__(flat, inference)
        self._found = found

    def straight(self) -> Flat:
        program = self.old.program
        for op in program.ops:
            assert isinstance(op, Op)
            source = self._found.get(op.name)
            if op.name in self._found.values():
                args, kwargs = mapped((op.args, op.kwargs), self._now)
                meta: Meta = program.metas[op.name]
                order = tuple(range(len(meta.shape)))
                straight = meta._replace(strides=dense_strides(meta.shape, order))
                made = Op(op.name, op.target, args, kwargs, op.line)
                self.values[op.name] = self.to.put(made, straight)
            elif source is not None and op.key != "aten.reshape":
                self.values[op.name] = self.values[source]
            else:
                self.values[op.name] = self.again(op)
        return self.flat(program.outputs)

    def _now(self, ref: Ref) -> Argument:
        return self.values[ref.name]


def _copied(program: Program) -> dict[str, str]:
    """Copies into row-major order -> what they are of: the results of element-wise
    kernels, without another use."""
    uses = Counter(name for op in program.ops for name in op.operands())
    uses.update(refs(program.outputs))
    makers = {op.name: op for op in program.ops if isinstance(op, Op)}
    found = {}
    for copy in makers.values():
        taken = copy.operands()
        maker = makers.get(taken[0]) if copy.key in COPIES and len(taken) == 1 else None
        if maker is None or program.roots[copy.name] != copy.name:
            continue
        meta, now = program.metas[maker.name], program.metas[copy.name]
        if (
            is_pointwise(maker)
            and isinstance(meta, Meta)
            and (meta.dtype, meta.bytes) == (now.dtype, now.bytes)
            and now.contiguous
            and uses[maker.name] == 1
            and program.roots[maker.name] == maker.name
            and next(writers(maker), None) is not None
        ):
            found[copy.name] = maker.name
    return found


def channels_last(meta: Meta) -> Meta:
    """The same, dense and channels last; of other than four dimensions, as it is."""
    if len(meta.shape) != 4:
        return meta
    _, channels, height, width = meta.shape
    strides = (channels * height * width, 1, width * channels, channels)
    return meta._replace(strides=strides)
