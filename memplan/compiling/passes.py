"""Passes that make a program ready for an arena: one kernel a step, and no loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Hashable, Mapping
from dataclasses import dataclass, replace
from operator import getitem
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from memplan.chunking.buffers import dense_strides
from memplan.graph.build import Builder
from memplan.graph.infer import Inference
from memplan.graph.native import Assembled, Native
from memplan.graph.nest import bytes_of, storages
from memplan.graph.program import (
    Argument,
    Bound,
    Loop,
    Meta,
    Op,
    Output,
    Program,
    Ranges,
    Ref,
    Step,
    Total,
    extent,
    mapped,
    refs,
    results,
)
from memplan.graph.script import NoTapeError
from memplan.graph.weights import digest

aten = torch.ops.aten


@dataclass
class Flat:
    """A program without loops.

    constants: tensors, by their name in it. folded: bytes of those that were computed
    in advance.
    """

    program: Program
    constants: dict[str, Tensor]
    folded: int = 0


def unrolled(
    program: Program, constants: Mapping[str, Tensor], inference: Inference
) -> Flat:
    """The program without loops; functions in Python as the operators that they call,
    and memory that is not written as loops make it.

    constants: the values of `program.constants`.
    """
    return _Expansion(program, constants, inference, expands=False).flat()


def expanded(flat: Flat, inference: Inference) -> Flat:
    """Operators as the kernels that they consist of.

    Linear layers and batched products become products of matrices, indexing of tables a
    selection of rows, and numbers among tensors become tensors, so that no step needs
    memory of its own for that.
    """
    return _Expansion(flat.program, flat.constants, inference, expands=True).flat()


class _Expansion:
    def __init__(
        self,
        program: Program,
        constants: Mapping[str, Tensor],
        inference: Inference,
        expands: bool,
    ) -> None:
        self._source, self._constants = program, dict(constants)
        self._expands = expands
        self._to = Builder(program, inference)
        self._values: dict[str, Argument] = {}
        self._numbers: dict[tuple[Any, ...], Ref] = {}

    def flat(self) -> Flat:
        source = self._source
        for name in (*source.inputs, *source.constants):
            self._values[name] = Ref(name)
        self._steps(source, {}, {})
        made = self._to.program
        made.outputs = mapped(source.outputs, lambda ref: self._values[ref.name])
        return Flat(made, self._constants)

    def _steps(self, program: Program, ranges: Ranges, after: dict[str, Any]) -> None:
        for step in program.ops:
            if isinstance(step, Loop):
                self._loop(program, step, ranges)
            else:
                self._op(step, ranges)
            for name in results(step):
                if name in after:
                    after[name]()

    def _loop(self, program: Program, loop: Loop, ranges: Ranges) -> None:
        for output in loop.outputs:
            self._values[output.buffer] = self._buffer(program, output, ranges)
        for total in loop.totals:
            self._values[total.buffer] = self._begun(program, total, ranges)
        # Each iteration reads only what it writes there; the buffer as it then is lets
        # it write at once, not after the last has read.
        over = {each.into: each.buffer for each in loop.outputs if each.into}
        for start in range(0, loop.extent, loop.step):
            inner = {**ranges, loop.name: (start, min(start + loop.step, loop.extent))}
            for entry in loop.inputs:
                low, high = entry.window.at(inner)
                self._values[entry.inner] = self._to.add(
                    _at(loop),
                    entry.inner,
                    aten.slice.Tensor,
                    self._values[over.get(entry.outer, entry.outer)],
                    entry.dim,
                    low,
                    high,
                )
            writes = {o.inner: self._writing(o, inner, loop) for o in loop.outputs}
            writes |= {total.inner: self._adding(total) for total in loop.totals}
            self._steps(loop.body, inner, writes)

    def _writing(
        self, output: Output, ranges: Ranges, loop: Loop
    ) -> Callable[[], None]:
        def write() -> None:
            low, high = output.window.at(ranges)
            self._values[output.buffer] = self._to.add(
                _at(loop),
                output.buffer,
                aten.slice_scatter.default,
                self._values[output.buffer],
                self._values[output.inner],
                output.dim,
                low,
                high,
            )

        return write

    def _adding(self, total: Total) -> Callable[[], None]:
        def add() -> None:
            self._values[total.buffer] = self._values[total.inner]

        return add

    def _begun(self, program: Program, total: Total, ranges: Ranges) -> Argument:
        """A total before the first iteration."""
        if total.into is not None:
            return self._values[total.into]
        meta: Meta = program.metas[total.buffer]
        shape = _shape(program, total.buffer, ranges)
        options = {"dtype": meta.dtype, "device": torch.device(meta.device)}
        origin = Op(total.buffer, aten.full.default, ())
        start = total.start
        if not isinstance(start, Ref):
            target = aten.full.default
            return self._to.add(origin, total.buffer, target, shape, start, **options)
        source = self._values[start.name]
        name = f"{total.buffer}_start"
        wide = self._to.add(origin, name, aten.expand.default, source, shape)
        layout = {"memory_format": torch.contiguous_format}
        return self._to.add(origin, total.buffer, aten.clone.default, wide, **layout)

    def _buffer(self, program: Program, output: Output, ranges: Ranges) -> Argument:
        if output.into is not None:
            return self._values[output.into]
        meta: Meta = program.metas[output.buffer]
        shape = _shape(program, output.buffer, ranges)
        strides = list(dense_strides(tuple(shape), output.order))
        options = {"dtype": meta.dtype, "device": torch.device(meta.device)}
        origin = Op(output.buffer, aten.empty_strided.default, ())
        return self._to.add(
            origin, output.buffer, origin.target, shape, strides, **options
        )

    def _op(self, op: Op, ranges: Ranges) -> None:
        def value(at: Ref | Bound) -> Argument:
            return self._values[at.name] if isinstance(at, Ref) else at.at(ranges)

        args, kwargs = mapped((op.args, op.kwargs), value)
        if op.target is getitem and not isinstance(args[0], Ref):
            self._values[op.name] = args[0][args[1]]  # of an inlined function's results
            return
        placed = Op(op.name, op.target, args, kwargs, op.line)
        kinds = torch._ops.OpOverload | BuiltinFunctionType | Native | Assembled
        if not isinstance(op.target, kinds):
            self._values[op.name] = self._inlined(placed)
            return
        self._values[op.name] = self._kernels(placed)

    def _kernels(self, placed: Op) -> Ref:
        """The operator as the kernels that it consists of."""
        args = list(placed.args)
        if self._expands:
            rule = None if placed.kwargs else EXPANSIONS.get(placed.key)
            made = None if rule is None else rule(self._to, placed)
            if made is not None:
                return made
            args = self._tensors(placed)
        elif placed.target is aten.empty.memory_format:
            strides = dense_strides(args[0], tuple(range(len(args[0]))))
            args, target = [args[0], list(strides)], aten.empty_strided.default
            return self._to.add(placed, placed.name, target, *args, **placed.kwargs)
        return self._to.add(placed, placed.name, placed.target, *args, **placed.kwargs)

    def _inlined(self, op: Op) -> Argument:
        """The operators that a function in Python calls, in its place."""
        names = list(dict.fromkeys(op.operands()))

        def called(*tensors: Tensor) -> object:
            given = dict(zip(names, tensors, strict=True))
            args, kwargs = mapped((op.args, op.kwargs), lambda ref: given[ref.name])
            return op.target(*args, **kwargs)

        metas = [self._to.program.metas[name] for name in names]
        empty = [torch.empty_strided(m.shape, m.strides, dtype=m.dtype) for m in metas]
        with torch.no_grad():
            traced = make_fx(called, tracing_mode="fake", pre_dispatch=True)(*empty)
        values: dict[str, Argument] = {}
        given = iter(names)
        for node in traced.graph.nodes:
            args, kwargs = fx.map_arg(
                (node.args, dict(node.kwargs)), lambda each: values[each.name]
            )
            if node.op == "placeholder":
                values[node.name] = Ref(next(given))
            elif node.op == "call_function":
                inner = Op(f"{op.name}_{node.name}", node.target, args, kwargs, op.line)
                values[node.name] = self._kernels(inner)
            elif node.op == "output":
                return args[0]
        raise NoTapeError(f"the function {op.key}")

    def _tensors(self, op: Op) -> list[Argument]:
        """The arguments, with numbers that stand for tensors as tensors."""
        schema = getattr(op.target, "_schema", None)
        if schema is None:
            return list(op.args)
        return [
            self._number(op, value)
            if isinstance(value, int | float) and str(each.type) == "Tensor"
            else value
            for value, each in zip(op.args, schema.arguments, strict=False)
        ]

    def _number(self, op: Op, value: float) -> Ref:
        """A number as a tensor without dimensions, which gives the same results."""
        metas = [self._to.meta(arg) for arg in op.args if isinstance(arg, Ref)]
        dtype = _dtype_of(value, metas[0] if metas else None)
        key = (repr(value), dtype)
        if key not in self._numbers:
            name = f"number_{len(self._numbers)}"
            self._constants[name] = torch.tensor(value, dtype=dtype)
            program = self._to.program
            program.constants[name] = name
            program.metas[name] = Meta((), (), dtype, "cpu")
            program.roots[name] = name
            self._numbers[key] = Ref(name)
        return self._numbers[key]


def _dtype_of(value: float, other: Meta | None) -> torch.dtype:
    """Of a number beside a tensor: the tensor's if it can hold the number, so that no
    kernel converts it."""
    if isinstance(value, bool):
        return torch.bool
    if other is None or not other.shape:
        return torch.int64 if isinstance(value, int) else torch.get_default_dtype()
    if other.dtype.is_floating_point:
        single = other.dtype in (torch.float32, torch.float64)
        exact = torch.tensor(value, dtype=other.dtype).item() == value
        return other.dtype if single or exact else torch.float64
    if isinstance(value, int):
        return other.dtype if other.dtype != torch.bool else torch.int64
    return torch.get_default_dtype()


def _shape(program: Program, name: str, ranges: Ranges) -> list[int]:
    """A value's sizes in an iteration."""
    moving = program.moving.get(name, {})
    return [
        extent(moving[dim]).at(ranges) if dim in moving else size
        for dim, size in enumerate(program.metas[name].shape)
    ]


def _at(loop: Loop) -> Op:
    return Op(loop.name, aten.alias.default, (), {}, loop.line)


def _linear(to: Builder, op: Op) -> Ref | None:
    x, weight, *rest = op.args
    bias = rest[0] if rest else None
    meta: Meta = to.meta(x)
    if not meta.shape or len(to.meta(weight).shape) != 2:
        return None
    rows = _rows(to, op, x)  # of a vector, too, whose `out` torch would resize
    turned = to.add(op, f"{op.name}_t", aten.t.default, weight)
    if bias is None:
        product = to.add(op, f"{op.name}_mm", aten.mm.default, rows, turned)
    else:
        product = to.add(op, f"{op.name}_mm", aten.addmm.default, bias, rows, turned)
    shape = [*meta.shape[:-1], to.meta(weight).shape[0]]
    return _viewed(to, op, product, shape)


def _rows(to: Builder, op: Op, x: Ref) -> Ref:
    """A tensor with its leading dimensions as one."""
    meta: Meta = to.meta(x)
    if len(meta.shape) == 2:
        return x
    flat = [meta.elements // meta.shape[-1] if meta.shape[-1] else 0, meta.shape[-1]]
    return to.add(op, f"{op.name}_rows", aten.reshape.default, x, flat)


def _viewed(to: Builder, op: Op, x: Ref, shape: list[int]) -> Ref:
    if list(to.meta(x).shape) == shape:
        return x
    return to.add(op, op.name, aten.view.default, x, shape)


def _matmul(to: Builder, op: Op) -> Ref | None:
    left, right = op.args
    a, b = to.meta(left).shape, to.meta(right).shape
    if len(a) == len(b) == 2:
        return to.add(op, op.name, aten.mm.default, left, right)
    if len(a) != 2 and len(b) == 2:  # of a vector, matmul would resize its target
        product = to.add(
            op, f"{op.name}_mm", aten.mm.default, _rows(to, op, left), right
        )
        return _viewed(to, op, product, [*a[:-1], b[-1]])
    if len(a) != len(b) or len(a) < 3 or a[:-2] != b[:-2] or 0 in (*a, *b):
        return None
    flat = []
    for x, shape in ((left, a), (right, b)):
        batch = to.meta(x).elements // (shape[-1] * shape[-2])
        sizes = [batch, *shape[-2:]]
        same = list(shape) == sizes
        flat.append(
            x if same else to.add(op, f"{op.name}_b", aten.reshape.default, x, sizes)
        )
    product = to.add(op, f"{op.name}_bmm", aten.bmm.default, *flat)
    return _viewed(to, op, product, [*a[:-1], b[-1]])


def _softmax(to: Builder, op: Op) -> Ref | None:
    x, dim, *rest = op.args
    if rest and rest[0] not in (None, to.meta(x).dtype):
        return None
    name = f"_{op.key.removeprefix('aten.')}"
    return to.add(op, op.name, getattr(aten, name).default, x, dim, False)


def _embedding(to: Builder, op: Op) -> Ref | None:
    table, index = op.args[:2]
    shape = to.meta(index).shape
    flat = to.add(op, f"{op.name}_i", aten.reshape.default, index, [-1])
    rows = to.add(op, f"{op.name}_rows", aten.index_select.default, table, 0, flat)
    return _viewed(to, op, rows, [*shape, to.meta(table).shape[1]])


def _batch_norm(to: Builder, op: Op) -> Ref | None:
    """In inference: the input times a scale, plus a shift, which are constants."""
    x, weight, bias, mean, variance, training, _, eps = op.args[:8]
    meta: Meta = to.meta(x)
    if training or mean is None or meta.dtype != torch.float32:
        return None
    name = f"{op.name}_scale"
    scale = to.add(op, name, aten.add.Scalar, variance, eps)
    scale = to.add(op, name, aten.rsqrt.default, scale)
    if weight is not None:
        scale = to.add(op, name, aten.mul.Tensor, scale, weight)
    shift = to.add(op, f"{op.name}_shift", aten.mul.Tensor, mean, scale)
    shift = to.add(op, f"{op.name}_shift", aten.neg.default, shift)
    if bias is not None:
        shift = to.add(op, f"{op.name}_shift", aten.add.Tensor, shift, bias)
    shape = [1, -1, *[1] * (len(meta.shape) - 2)]
    scale, shift = (
        to.add(op, f"{op.name}_by", aten.reshape.default, each, shape)
        for each in (scale, shift)
    )
    return to.add(op, op.name, aten.addcmul.default, shift, x, scale)


EXPANSIONS: dict[str, Callable[[Builder, Op], Ref | None]] = {
    "aten.linear": _linear,
    "aten.matmul": _matmul,
    "aten.softmax": _softmax,
    "aten.log_softmax": _softmax,
    "aten.embedding": _embedding,
    "aten.batch_norm": _batch_norm,
}


FACTORIES = {"aten.arange", "aten.full", "aten.scalar_tensor", "aten.eye"}


def copied(
    program: Program, served: Container[str], inference: Inference
) -> tuple[Program, list[Op]]:
    """The program with its outputs in storages that are served, or in its inputs', and
    the copies that this takes."""
    copies: dict[str, Op] = {}
    made = replace(
        program,
        ops=list(program.ops),
        metas=dict(program.metas),
        roots=dict(program.roots),
    )
    for name in dict.fromkeys(refs(program.outputs)):
        root = program.roots[name]
        if root in served or root in program.inputs:
            continue
        op = Op(f"{name}.copy", aten.clone.default, (Ref(name),), {}, "")
        inference.add(made, op)
        made.ops.append(op)
        copies[name] = op

    def where(ref: Ref) -> Ref:
        return Ref(copies[ref.name].name) if ref.name in copies else ref

    made.outputs = mapped(program.outputs, where)
    return made, [*copies.values()]


def folded(flat: Flat, given: Collection[int] = (), most: float = math.inf) -> Flat:
    """Operators whose operands are all constants, computed once.

    given: storages of constants that nobody computed. most: bytes of those that are
    computed; where that is exceeded, the largest are computed in each call, as the
    model does it. Equal values are kept once. Of operators without operands only
    FACTORIES: others make memory without contents.
    """
    values = dict[str, Any](flat.constants)
    equal: dict[Hashable, Any] = {}
    left: set[str] = set()
    while True:
        made = _folded(flat, values, equal, left)
        made.folded = bytes_of(made.constants.values(), given)
        mine = {
            name: each
            for name, each in made.constants.items()
            if name not in flat.constants
            and isinstance(each, Tensor)
            and not storages([each]) <= set(given)
        }
        if made.folded <= most or not mine:
            return made
        sizes = {name: each.untyped_storage().nbytes() for name, each in mine.items()}
        over = made.folded - most
        for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if over <= 0:
                break
            left.add(name)
            over -= sizes[name]


def _folded(
    flat: Flat, values: dict[str, Any], equal: dict[Hashable, Any], left: set[str]
) -> Flat:
    """See `folded`. values, equal: what was computed, by name and by contents. left:
    operators that stay."""
    program = flat.program
    names = dict(program.constants)
    kept: list[Step] = []
    for op in program.ops:
        assert isinstance(op, Op)
        taken = op.operands()
        random = torch.Tag.nondeterministic_seeded in getattr(op.target, "tags", ())
        foldable = (bool(taken) or op.key in FACTORIES) and not random
        if not foldable or op.name in left or not names.keys() >= set(taken):
            kept.append(op)
            continue
        if op.name not in values:
            args, kwargs = mapped((op.args, op.kwargs), lambda ref: values[ref.name])
            with torch.no_grad():
                found = op.target(*args, **kwargs)
            if isinstance(found, Tensor) and not storages([found]) & storages([args]):
                key = digest([found]), found.stride()
                found = equal.setdefault(key, found)
            values[op.name] = found
        names[op.name] = op.name
    wanted = {name for op in kept for name in op.operands()}
    wanted |= set(refs(program.outputs))
    used = {name: place for name, place in names.items() if name in wanted}
    roots = {**program.roots, **{name: name for name in used}}
    program = replace(program, ops=kept, constants=used, roots=roots)
    return Flat(program, {name: values[name] for name in used})
