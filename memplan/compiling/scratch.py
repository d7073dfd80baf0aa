"""Operators whose scratch memory makes the peak, computed with less of it.

oneDNN copies a convolution's weights into blocks at every call: 9 MiB for 512 × 512
filters of 3 × 3, whose operands and result take 0.2 MiB. The columns of such a small
picture take less, and their product with the weights no scratch at all. In parts, of
some channels or rows of the result each, such copies are small; so are the indices
that pooling makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, prod
from operator import add
from typing import Any, NamedTuple

import torch

from memplan.compiling.convolutions import CONVOLUTIONS, TRANSPOSED, numbers_of
from memplan.compiling.layouts import Relaying
from memplan.compiling.passes import Flat
from memplan.fusing.given import each_of
from memplan.graph.infer import Inference
from memplan.graph.liveness import Candidates, profile
from memplan.graph.native import Assembled
from memplan.graph.program import Meta, Op, Program, Ref
from memplan.graph.requests import Asked

aten = torch.ops.aten

POOL = aten.max_pool2d.default
PARTS = (2, 4, 8, 16)  # how many of a result
FEW = 4  # of them hardly cost time
LEAST = {1: 16, 2: 4}  # channels and rows, at least, in a part
ENOUGH = 0.5  # of the peak: below it parts would cost more time than they bring
FASTER = 4  # times less than the weights' bytes: then a product is fast
CHANNELS, ROWS = 1, 2  # dimensions


class _Way(NamedTuple):
    """How an operator runs: in parts along a dimension, or as a product (0).

    bytes: of scratch, about.
    """

    bytes: int
    parts: int = 0
    dim: int = 0


def with_less_scratch(
    flat: Flat,
    asked: Mapping[str, Asked],
    candidates: Candidates,
    inference: Inference,
    room: int = 0,
) -> Flat:
    """The program with operators that take less scratch, where that lowers its peak.

    asked: what operators ask for. candidates: operands that results may overwrite.
    room: bytes that the peak may take; 0 for less, as far as that costs little time.
    Only convolutions and pooling of pictures in float32, in row-major order. Results
    are equal to the program's but for rounding. The same object if nothing is to
    change.
    """
    program = flat.program
    names = {op.name for op in program.ops if isinstance(op, Op) and _is(program, op)}
    scratch = {name: asked[name].scratch for name in names & asked.keys()}

    def others(_: Program, op: Op) -> int:
        own = asked.get(op.name)
        return own.scratch if own is not None and op.name not in scratch else 0

    levels = profile(program, beside=others, candidates=candidates)
    own = [scratch.get(step.name, 0) for step in program.ops]
    most = max(map(add, levels.live, own), default=0)
    goal = max(levels.peak, room or int(ENOUGH * most))
    ways = {}
    for op, level, more in zip(program.ops, levels.live, own, strict=True):
        if isinstance(op, Op) and more and level + more > goal:
            way = _best(program, op, more, goal - level)
            if way is not None:
                ways[op.name] = way
    return _Lowering(flat, inference).lowered(ways) if ways else flat


def _is(program: Program, op: Op) -> bool:
    """Whether an operator may run in another way."""
    if op.target not in {*CONVOLUTIONS, POOL} or op.kwargs:
        return False
    if op.target is aten.convolution.default and op.args[6]:  # a transposed one
        return False
    metas: list[Meta] = [program.metas[name] for name in {*op.operands(), op.name}]
    plain = all(each.contiguous and each.dtype == torch.float32 for each in metas)
    return plain and len(program.metas[op.name].shape) == 4


def least_scratch(program: Program, op: Op, scratch: int) -> int:
    """About the least bytes of scratch that an operator needs, in a few parts; scratch:
    what it takes as it is."""
    if not scratch or not _is(program, op):
        return scratch
    ways = (way for way in _ways(program, op, scratch) if way.parts <= FEW)
    return min([scratch, *(way.bytes for way in ways)])


def _best(program: Program, op: Op, scratch: int, room: int) -> _Way | None:
    """The way that fits the room in the fewest parts, or the one with the least
    scratch; None if as it is is best."""
    ways = [each for each in _ways(program, op, scratch) if each.bytes < scratch]
    fitting = [way for way in ways if way.bytes <= room]
    if fitting:
        return min(fitting, key=lambda way: way.parts)
    return min(ways, default=None)


def _ways(program: Program, op: Op, scratch: int) -> Iterator[_Way]:
    result: Meta = program.metas[op.name]
    weight = None if op.target is POOL else program.metas[op.args[1].name]
    blocks = 0 if weight is None else min(scratch, weight.bytes)
    copies = scratch - blocks  # of input and result
    if weight is not None and op.target is not TRANSPOSED:
        columns = prod(weight.shape[1:]) * prod(result.shape[2:]) * 4
        if numbers_of(op)["groups"] == 1:
            if result.shape[0] == 1 and FASTER * columns <= weight.bytes:
                yield _Way(columns)
            for parts in _parts(result, CHANNELS):
                yield _Way(copies + (blocks + result.bytes) // parts, parts, CHANNELS)
    if _is_tiled(program, op) if op.target is TRANSPOSED else _meets_input(program, op):
        both = program.metas[op.operands()[0]].bytes + result.bytes  # rows are copied
        for parts in _parts(result, ROWS):
            yield _Way(blocks + (copies + both) // parts, parts, ROWS)


def _parts(result: Meta, dim: int) -> Iterator[int]:
    return (each for each in PARTS if result.shape[dim] >= LEAST[dim] * each)


def _meets_input(program: Program, op: Op) -> bool:
    """Whether each row of a result depends on the input, not on padding alone."""
    numbers = window_of(program, op)
    reach: int = (numbers["kernel"][0] - 1) * numbers["dilation"][0] + 1
    return reach > int(numbers["padding"][0])


def _is_tiled(program: Program, op: Op) -> bool:
    """Whether each row of a transposed convolution's input makes rows of its own."""
    numbers, filters = numbers_of(op), program.metas[op.args[1].name].shape
    own = numbers["stride"][0] == filters[2] and numbers["dilation"][0] == 1
    return own and not numbers["padding"][0] and not numbers["output_padding"][0]


class _Lowering(Relaying):
    """Writes operators as products, or in parts."""

    def __init__(self, flat: Flat, inference: Inference) -> None:
        super().__init__(flat, inference)
        self._views: dict[tuple[str, ...], Ref] = {}  # of weights

    def lowered(self, ways: Mapping[str, _Way]) -> Flat:
        program = self.old.program
        for op in program.ops:
            assert isinstance(op, Op)
            way = ways.get(op.name)
            if way is None:
                self.values[op.name] = self.again(op)
            elif way.parts:
                self.values[op.name] = self._in_parts(op, way)
            else:
                self.values[op.name] = self._product(op)
        return self.flat(program.outputs)

    def _view(self, op: Op, weight: Ref, target: Any, *args: Any) -> Ref:
        """A view of a constant."""
        key = weight.name, str(target), repr(args)
        if key not in self._views:
            made = self.to.add(op, f"{weight.name}_view", target, weight, *args)
            self._views[key] = made
        return self._views[key]

    def _product(self, op: Op) -> Ref:
        """Weights as a matrix times the columns that the filter meets."""
        x, weight, bias = self._operands(op)
        shape = self.old.program.metas[op.name].shape
        filters = self.to.meta(weight).shape
        numbers = numbers_of(op)
        places = [numbers[each] for each in ("dilation", "padding", "stride")]
        rows, columns = prod(filters[1:]), prod(shape[2:])

        def made(what: str, target: Any, *args: Any) -> Ref:
            return self.to.add(op, f"{op.name}_{what}", target, *args)

        found = made("columns", aten.im2col.default, x, [*filters[2:]], *places)
        found = made("matrix", aten.view.default, found, [rows, columns])
        pair = self._view(op, weight, aten.view.default, [filters[0], rows]), found
        if bias is None:
            found = made("product", aten.mm.default, *pair)
        else:
            added = self._view(op, bias, aten.view.default, [filters[0], 1])
            found = made("product", aten.addmm.default, added, *pair)
        return made("result", aten.view.default, found, [*shape])

    def _in_parts(self, op: Op, way: _Way) -> Ref:
        """Some channels or rows of the result at a time."""
        meta: Meta = self.old.program.metas[op.name]
        part, size = self._channels, ceil(meta.shape[way.dim] / way.parts)
        if way.dim == ROWS:
            part = self._tiles if op.target is TRANSPOSED else self._rows
        if op.target is TRANSPOSED:  # whole rows of the input
            step = numbers_of(op)["stride"][0]
            size = ceil(size / step) * step
        whole = self.empty(op, f"{op.name}_whole", meta)
        for first in range(0, meta.shape[way.dim], size):
            end = min(first + size, meta.shape[way.dim])
            target = Assembled({1: (way.dim, first, end)})
            made = part(op, first, end)
            whole = self.to.add(op, f"{op.name}_with", target, whole, made)
        return whole

    def _channels(self, op: Op, first: int, end: int) -> Ref:
        """Channels of a convolution's result."""
        x, weight, bias = self._operands(op)
        ends = aten.slice.Tensor, 0, first, end
        some = [each and self._view(op, each, *ends) for each in (weight, bias)]
        return self.to.add(op, f"{op.name}_part", op.target, x, *some, *op.args[3:])

    def _tiles(self, op: Op, first: int, end: int) -> Ref:
        """Rows of a transposed convolution's result."""
        x, weight, bias = self._operands(op)
        step = numbers_of(op)["stride"][0]
        taken = self._taken(op, x, first // step, end // step)
        rest = weight, bias, *op.args[3:]
        return self.to.add(op, f"{op.name}_part", op.target, taken, *rest)

    def _rows(self, op: Op, first: int, end: int) -> Ref:
        """Rows of another operator's result."""
        x: Ref = self.values[op.args[0].name]
        numbers = window_of(self.old.program, op)
        step, pad = numbers["stride"][0], numbers["padding"][0]
        reach = (numbers["kernel"][0] - 1) * numbers["dilation"][0] + 1
        start = first * step - pad
        stop, height = (
            start + (end - first - 1) * step + reach,
            self.to.meta(x).shape[2],
        )
        own, more = 0, 0
        if start < 0 or stop > height:
            # As much is padded at the other end, and what comes of it cut off again.
            own, start = pad, max(0, first - ceil(pad / step)) * step
            more = first - start // step
        taken = self._taken(op, x, start, min(stop, height))
        padding = [own, numbers["padding"][1]]
        stride, dilation = numbers["stride"], numbers["dilation"]
        if op.target is POOL:
            pooling = numbers["kernel"], stride, padding, dilation, numbers["ceil"]
            made = self.to.add(op, f"{op.name}_part", POOL, taken, *pooling)
        else:
            _, weight, bias = self._operands(op)
            given = weight, bias, stride, padding, dilation, numbers["groups"]
            target = aten.conv2d.default
            made = self.to.add(op, f"{op.name}_part", target, taken, *given)
        return self._taken(op, made, more, more + end - first)

    def _taken(self, op: Op, x: Ref, start: int, stop: int) -> Ref:
        """Some rows."""
        name, ends = f"{op.name}_taken", (ROWS, start, stop)
        return self.to.add(op, name, aten.slice.Tensor, x, *ends)

    def _operands(self, op: Op) -> tuple[Ref, Ref, Ref | None]:
        """Input, weight and bias of a convolution."""
        x, weight, bias = (*op.args, None)[:3]
        values: dict[str, Any] = self.values
        return values[x.name], values[weight.name], bias and values[bias.name]


def window_of(program: Program, op: Op) -> dict[str, Any]:
    """The numbers of a convolution or pooling by name, of two dimensions each but
    `groups` and `ceil`."""
    if op.target is not POOL:
        return numbers_of(op) | {"kernel": program.metas[op.args[1].name].shape[2:]}
    _, kernel, stride, padding, dilation, up = (*op.args, None, None, None, None)[:6]
    pairs = {"kernel": kernel, "stride": stride or kernel}
    pairs |= {"padding": padding or 0, "dilation": dilation or 1}
    return {name: each_of(pair, 2) for name, pair in pairs.items()} | {"ceil": bool(up)}
