"""Programs made at random: samples of the rules, and what models do around them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import torch

from memplan.chunking.rules import elementwise, layout
from memplan.chunking.rules.table import RULES
from memplan.graph.infer import Inference, meta_of
from memplan.graph.program import Op, Program, Ref, mapped
from tests.chunking.growths import GROWTHS, two_passes
from tests.chunking.rules.families import FAMILIES
from tests.chunking.rules.rule_check import Sample

aten = torch.ops.aten
LARGEST = 3000  # elements of a value that others are made of
SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0)


@functools.cache
def samples() -> list[Sample]:
    """A call of each operator that has a rule, in each way that can be sliced."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        every = [each for family in FAMILIES for each in family()]
    every = [each for each in every if each.dims and each.call.op.key in RULES]
    return [exportable(each) for each in every]


def exportable(sample: Sample) -> Sample:
    """The sample; in the one type that torch knows the shapes of."""
    if sample.call.op.key != "aten._grouped_mm":
        return sample
    rows, weight, ends = sample.args
    args = (rows.bfloat16(), weight.bfloat16(), ends)
    return Sample(sample.target, args, {}, sample.dims, True)


def evaluated(
    program: Program, given: Mapping[str, Any], rounding: float = 0.0
) -> dict[str, Any]:
    """All values of a program without loops, each operator called as it stands.

    rounding: every result is so much off, relative to itself, at random.
    """
    values = dict(given)
    for op in program.ops:
        assert isinstance(op, Op)
        values[op.name] = called(op, values)
        if rounding and op.target is not operator.getitem:
            values[op.name] = _off(values[op.name], rounding)
    return values


def called(op: Op, values: Mapping[str, Any]) -> Any:
    """The result of an operator on its operands' values."""
    args, kwargs = mapped((op.args, op.kwargs), lambda at: values[at.name])
    return op.target(*args, **kwargs)


def _off(value: Any, rounding: float) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_off(each, rounding) for each in value)
    if not (value.is_floating_point() or value.is_complex()):
        return value
    return value * (1 + rounding * torch.randn(value.shape, dtype=value.dtype))


class Writer:
    """Writes a program, operator by operator, and computes its values.

    values: of every name, the tensor or tensors. given: of inputs and constants.
    floats: names of the values that more can be made of. dtype: of those. sampled:
    names of the results of samples. special: whether inputs hold such numbers.
    """

    def __init__(self, seed: int, inference: Inference) -> None:
        self.random = Random(seed)
        self.noise = torch.Generator().manual_seed(seed)
        self.program = Program([], {}, [], (), {}, {})
        self.values: dict[str, Any] = {}
        self.given: dict[str, Any] = {}
        self.floats: list[str] = []
        self.sampled: list[str] = []
        self.special = self.random.random() < 0.2
        kinds = torch.float32, torch.float64, torch.bfloat16
        self.dtype = self.random.choices(kinds, (8, 1, 1))[0]
        self._inference = inference

    # What a program takes

    def take(self, tensor: Any, constant: bool = False) -> Ref:
        """A tensor as an input of the program, or as a parameter."""
        name = f"{'w' if constant else 'x'}{len(self.given)}"
        if constant:
            self.program.constants[name] = name
        else:
            self.program.inputs.append(name)
        self.given[name] = self.values[name] = tensor
        self.program.metas[name] = meta_of(tensor)
        self.program.roots[name] = name
        return Ref(name)

    def numbers(self, *shape: int) -> Any:
        return torch.randn(shape, generator=self.noise).to(self.dtype)

    def weight(self, *shape: int) -> Ref:
        return self.take(self.numbers(*shape) / 2, constant=True)

    def input(self, shape: tuple[int, ...]) -> Ref:
        """A new input: numbers, in some programs with a few that are special, of which
        some lie as a transposed, strided or repeated tensor does."""
        made = self.numbers(*shape)
        if self.special and made.numel():
            flat = made.view(-1)
            for value in SPECIAL:
                at = self.random.randrange(len(flat))
                flat[at] = value
        way = self.random.random()
        if way < 0.2 and len(shape) > 1:
            turned = torch.empty(shape[::-1], dtype=made.dtype).permute(
                *reversed(range(len(shape)))
            )
            made = turned.copy_(made)
        elif way < 0.3 and shape:
            made = made.repeat_interleave(2, -1)[..., ::2]
        elif way < 0.35 and len(shape) > 1:
            made = made[:1].expand(shape)
        return self.named(self.take(made))

    # What it computes

    def put(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Ref:
        """One more operator; of several results, the first is taken, and others may be
        used, too."""
        op = Op(f"v{len(self.program.ops)}", target, args, kwargs)
        self.values[op.name] = called(op, self.values)
        self._inference.add(self.program, op)
        self.program.ops.append(op)
        made = self.values[op.name]
        if not isinstance(made, tuple | list):
            return self.named(Ref(op.name))
        parts = [
            self.put(operator.getitem, Ref(op.name), i)
            for i, each in enumerate(made)
            if each.numel() or not made[0].numel()  # not what a norm leaves empty
        ]
        return self.random.choice(parts)

    def named(self, ref: Ref) -> Ref:
        """The value, which others may be made of if it fits."""
        value = self.values[ref.name]
        if value.dtype == self.dtype and value.numel() <= LARGEST:
            self.floats.append(ref.name)
        return ref

    def shape(self, ref: Ref) -> tuple[int, ...]:
        return tuple(self.values[ref.name].shape)

    def some(self) -> Ref:
        """One of the values, rather a late one."""
        late = int(len(self.floats) * self.random.random() ** 0.4)
        return Ref(self.floats[late])

    def alike(self, shape: tuple[int, ...]) -> Ref | None:
        """A value of a shape, if there is one."""
        found = [name for name in self.floats if self.shape(Ref(name)) == shape]
        return Ref(self.random.choice(found)) if found else None

    def some_like(self, ref: Ref) -> Ref:
        """A value of the shape of another, or that one itself."""
        return self.alike(self.shape(ref)) or ref

    def cast(self, ref: Ref, dtype: torch.dtype) -> Ref:
        same = self.values[ref.name].dtype == dtype
        return ref if same else self.put(aten.to.dtype, ref, dtype)

    def grow(self) -> None:
        """One more of what models do, with one of the values."""
        for _ in range(20):
            if self.random.choice(GROWTHS)(self, self.some()) is not None:
                return

    def sample(self, sample: Sample) -> None:
        """A sample's call, on values that are near those of the sample."""
        op = sample.call.op
        if op.key == "group_norm_apply":  # which stands behind its statistics alone
            made = two_passes(self, self.input(sample.call.shape))
            self.sampled += [made.name] if made else []
            return
        refs = {name: self._near(sample, name) for name in sample.tensors}
        args, kwargs = mapped((op.args, op.kwargs), lambda at: refs[at.name])
        if op.target is operator.getitem:
            args = (self._split(sample), args[1])
        made = self.put(op.target, *args, **kwargs)
        self.sampled.append(made.name)
        if not sample.data:
            made = self.put(aten.fill.Scalar, made, 2)
        if self.values[made.name].is_complex():
            made = self.put(aten.resolve_conj.default, made)
            made = self.put(aten.view_as_real.default, made)
        if self.values[made.name].dtype == self.dtype:
            self.put(aten.neg.default, made)  # no loop ends with a view
        self.cast(made, self.dtype)

    def _split(self, sample: Sample) -> Ref:
        (pieces,) = sample.tensors.values()
        whole = self.input(tuple(torch.cat(pieces, 1).shape))
        source, size = self.cast(whole, torch.float32), pieces[0].shape[1]
        name = f"v{len(self.program.ops)}"
        self.put(aten.split.Tensor, source, size, 1)
        return Ref(name)

    def _near(self, sample: Sample, name: str) -> Ref | None:
        """A value in the place of a sample's tensor: of numbers, one that is made of
        another value, and a little off, so that it stays where the operator is
        defined; sometimes any."""
        tensor = sample.tensors[name]
        if isinstance(tensor, list):
            return None
        if tensor.is_complex():
            return self.put(aten.mul.Scalar, self.take(tensor), 0.5)
        if not tensor.is_floating_point() or not tensor.numel():
            return self.take(tensor, self.random.random() < 0.5)
        shape = tuple(tensor.shape)
        other = self.alike(shape)
        if other is None or self.random.random() < 0.2:
            if name != "x0" and self.random.random() < 0.5:
                return self.take(tensor, constant=True)
            other = self.input(shape)
        wide = self.cast(other, tensor.dtype)
        if sample.call.op.key == "aten.view_as_complex":  # pairs must lie together
            rows = torch.contiguous_format
            return self.put(aten.clone.default, wide, memory_format=rows)
        small = self.put(aten.tanh.default, wide)
        small = self.put(aten.mul.Scalar, small, 0.1)
        return self.put(aten.add.Tensor, self.take(tensor, constant=True), small)

    def finish(self) -> Program:
        """The program; its results are what nothing takes, and some more."""
        used = {name for op in self.program.ops for name in op.operands()}
        more = 1.0 if self.random.random() < 0.1 else 0.1
        self.program.outputs = tuple(
            Ref(op.name)
            for op in self.program.ops
            if not isinstance(self.values[op.name], tuple | list)
            and not op.key.endswith("empty")
            and (op.name not in used or self.random.random() < more)
        )
        return self.program


SHAPES = [(5, 6), (2, 5, 6), (1, 7, 8), (2, 4, 6), (1, 4, 6, 5), (2, 4, 7, 6)]
SHAPES += [(12,), (3, 1, 8), (2, 4, 4, 5, 3), (1, 1, 9), (4, 0, 3)]


def grown(seed: int, inference: Inference, operators: int = 6) -> Writer:
    """A program of what models do."""
    writer = Writer(seed, inference)
    writer.input(writer.random.choices(SHAPES, (*[8] * (len(SHAPES) - 1), 1))[0])
    for _ in range(operators):
        writer.grow()
    writer.finish()
    return writer


def around(seed: int, inference: Inference, chosen: list[Sample]) -> Writer:
    """A program with some samples, and with what models do between them."""
    writer = Writer(seed, inference)
    # What a product or a convolution makes of numbers that are none is up to its tiles.
    families = {RULES[each.call.op.key].__module__ for each in chosen}
    writer.special &= families <= {elementwise.__name__, layout.__name__}
    for sample in chosen:
        if writer.floats and writer.random.random() < 0.3:
            writer.grow()
        writer.sample(sample)
    if writer.floats:
        writer.grow()
    writer.finish()
    return writer
