"""Convolutions of one value whose results are added, as one.

As of RepVGG (Ding et al., 2021) and MobileOne (Vasu et al., 2022) at inference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from memplan.fusing.volumes import is_norm
from memplan.graph.build import Rewriter
from memplan.graph.infer import Inference
from memplan.graph.lower import without_dead
from memplan.graph.program import Meta, Op, Program, Ref

aten = torch.ops.aten
Pair = tuple[int, int]


@dataclass(frozen=True)
class _Branch:
    """A convolution of `x`, or `x` itself, and a normalisation behind it, if any.

    shape: of its result.
    """

    x: str
    shape: tuple[int, ...]
    convolution: Op | None
    norm: Op | None
    stride: Pair
    padding: Pair
    kernel: Pair
    groups: int

    def lies_in(self, other: _Branch) -> bool:
        """Whether its weights are some of a kernel as large as another's."""
        if (self.x, self.shape) != (other.x, other.shape):
            return False
        if self.stride != other.stride:
            return False
        if self.convolution is not None and self.groups != other.groups:
            return False
        before = [b - a for a, b in zip(self.padding, other.padding, strict=True)]
        sizes = zip(before, self.kernel, other.kernel, strict=True)
        return all(at >= 0 and at + few <= many for at, few, many in sizes)


def with_one_branch(program: Program, inference: Inference) -> Program:
    """The program with sums of 2-d convolutions of the same value, and of the value
    itself, normalised, as one convolution; of float32 on the CPU, without dilation.

    Weights are summed in float64. Names and values of steps that are left are as
    before, but for rounding.
    """
    merging = _Merging(program, inference)
    return merging.all() if merging.sums else program


class _Merging:
    def __init__(self, program: Program, inference: Inference) -> None:
        self._old, self._to = program, Rewriter(program, inference)
        self._made = {op.name: op for op in program.ops if isinstance(op, Op)}
        inner = {
            name
            for op in self._made.values()
            if _is_sum(op)
            for name in op.operands()
            if self._to.uses[name] == 1
        }
        # Groups of at least two branches, and what else is added, by the sums' names.
        self.sums: dict[str, tuple[list[list[_Branch]], list[Ref]]] = {}
        for op in self._made.values():
            if _is_sum(op) and op.name not in inner:
                groups, others = self._grouped(self._terms(op))
                if groups:
                    self.sums[op.name] = groups, others

    def all(self) -> Program:
        for step in self._old.ops:
            assert isinstance(step, Op)
            if step.name in self.sums:
                self._sum(step, *self.sums[step.name])
            else:
                self._to.append(step)
        return without_dead(self._to.program)

    def _terms(self, op: Op) -> list[Ref]:
        """What is added, also before it is added again."""
        found: list[Ref] = []
        for each in op.args:
            below = self._made.get(each.name) if isinstance(each, Ref) else None
            if below is not None and _is_sum(below) and self._to.uses[below.name] == 1:
                found += self._terms(below)
            elif isinstance(each, Ref):
                found.append(each)
        return found

    def _grouped(self, terms: list[Ref]) -> tuple[list[list[_Branch]], list[Ref]]:
        """The branches that can be one, the widest first, and the other terms."""
        pairs = [(each, self._branch(each)) for each in terms]
        found = [each for _, each in pairs if each is not None]
        found.sort(
            key=lambda each: (each.convolution is None, *map(_less, each.kernel))
        )
        groups: list[list[_Branch]] = []
        for branch in found:
            for group in groups:
                if branch.lies_in(group[0]):
                    group.append(branch)
                    break
            else:
                groups.append([branch])
        groups = [each for each in groups if len(each) > 1]
        kept = {branch for group in groups for branch in group}
        return groups, [ref for ref, branch in pairs if branch not in kept]

    def _branch(self, term: Ref) -> _Branch | None:
        """A term as a branch that nothing else takes."""
        made, norm = self._made.get(term.name), None
        shape = getattr(self._old.metas[term.name], "shape", ())
        if made is None or self._to.uses[term.name] != 1:
            return None
        if is_norm(made, self._old):
            norm, below = made, self._made.get(made.args[0].name)
            alone = self._to.uses[made.args[0].name] == 1
            numbers = _numbers(below, self._old) if below and alone else None
            if below is None or numbers is None:
                x = made.args[0].name
                meta = self._old.metas[x]
                if (
                    not isinstance(meta, Meta)
                    or len(meta.shape) != 4
                    or not _plain(meta)
                ):
                    return None
                return _Branch(x, shape, None, norm, (1, 1), (0, 0), (1, 1), 0)
            made = below
        else:
            numbers = _numbers(made, self._old)
        if numbers is None:
            return None
        kernel = self._old.metas[made.args[1].name].shape[2:]
        stride, padding, groups = numbers
        x = made.args[0].name
        return _Branch(x, shape, made, norm, stride, padding, kernel, groups)

    def _sum(self, op: Op, groups: list[list[_Branch]], others: list[Ref]) -> None:
        to, terms, last = self._to, list(others), len(groups) - 1
        for i, group in enumerate(groups):
            widest = group[0]
            stride, padding = list(widest.stride), list(widest.padding)
            weight, bias = self._added(op, group)
            given = Ref(widest.x), weight, bias, stride, padding, [1, 1], widest.groups
            if i == last and not terms:
                to.end(op, aten.conv2d.default, *given)
                return
            terms.insert(0, to.add(op, f"{op.name}_one", aten.conv2d.default, *given))
        total, *rest = terms
        for each in rest[:-1]:
            total = to.add(op, f"{op.name}_part", aten.add.Tensor, total, each)
        to.end(op, aten.add.Tensor, total, rest[-1])

    def _added(self, op: Op, group: list[_Branch]) -> tuple[Ref, Ref]:
        """The weight and the bias that stand for all branches."""
        widest = group[0]
        assert widest.convolution is not None
        own: Meta = self._old.metas[widest.convolution.args[1].name]
        weights, biases = [], []
        for branch in group:
            scale, shift = self._scaled(op, branch)
            if branch.convolution is None:
                assert scale is not None
                channels = own.shape[0], widest.groups
                weight = self._diagonal(op, scale, *channels)
            else:
                weight = self._wide(op, branch.convolution.args[1])
                if scale is not None:
                    by = self._add(op, aten.view.default, scale, [-1, 1, 1, 1])
                    weight = self._add(op, aten.mul.Tensor, weight, by)
            at = [b - a for a, b in zip(branch.padding, widest.padding, strict=True)]
            behind = [
                many - few - first
                for many, few, first in zip(
                    widest.kernel, branch.kernel, at, strict=True
                )
            ]
            if any((*at, *behind)):
                around = [at[1], behind[1], at[0], behind[0]]
                pad = aten.constant_pad_nd.default
                weight = self._add(op, pad, weight, around)
            weights.append(weight)
            biases += [] if shift is None else [shift]
        if not biases:
            zero = self._add(op, aten.sum.dim_IntList, weights[0], [1, 2, 3])
            biases = [self._add(op, aten.zeros_like.default, zero)]
        return self._total(op, weights), self._total(op, biases)

    def _scaled(self, op: Op, branch: _Branch) -> tuple[Ref | None, Ref | None]:
        """What a branch's channels are multiplied with, and what is added to them."""
        given: list[Any] = (
            [*branch.convolution.args, None] if branch.convolution else []
        )
        bias = self._wide(op, given[2]) if given and given[2] is not None else None
        if branch.norm is None:
            return None, bias
        _, gamma, beta, mean, var, _, _, eps, *_ = branch.norm.args
        raised = self._add(op, aten.add.Tensor, self._wide(op, var), eps)
        scale = self._add(op, aten.rsqrt.default, raised)
        if gamma is not None:
            scale = self._add(op, aten.mul.Tensor, scale, self._wide(op, gamma))
        start = self._wide(op, mean)
        if bias is not None:
            start = self._add(op, aten.sub.Tensor, start, bias)
        shift = self._add(op, aten.neg.default, start)
        shift = self._add(op, aten.mul.Tensor, shift, scale)
        if beta is not None:
            shift = self._add(op, aten.add.Tensor, shift, self._wide(op, beta))
        return scale, shift

    def _diagonal(self, op: Op, scale: Ref, channels: int, groups: int) -> Ref:
        """The weight of a convolution that multiplies each channel."""
        few = channels // groups
        rows = self._add(op, aten.view.default, scale, [groups, few])
        square = self._add(op, aten.diag_embed.default, rows)
        return self._add(op, aten.view.default, square, [channels, few, 1, 1])

    def _total(self, op: Op, terms: list[Ref]) -> Ref:
        total, *rest = terms
        for each in rest:
            total = self._add(op, aten.add.Tensor, total, each)
        return self._add(op, aten.to.dtype, total, torch.float32)

    def _wide(self, op: Op, ref: Ref) -> Ref:
        return self._add(op, aten.to.dtype, ref, torch.float64)

    def _add(self, op: Op, target: Any, *args: Any) -> Ref:
        return self._to.add(op, f"{op.name}_weights", target, *args)


def _less(size: int) -> int:
    return -size


def _is_sum(op: Op) -> bool:
    """Whether it adds two values as they are."""
    return (
        op.key == "aten.add"
        and len(op.args) == 2
        and not op.kwargs
        and all(isinstance(each, Ref) or each == 0 for each in op.args)
    )


def _plain(meta: Meta) -> bool:
    return meta.dtype == torch.float32 and meta.device == "cpu"


def _numbers(op: Op, program: Program) -> tuple[Pair, Pair, int] | None:
    """Stride, padding and groups of a convolution of images by constants, without
    dilation; None for anything else."""
    if op.key != "aten.conv2d" or op.kwargs:
        return None
    defaults: list[Any] = [None, 1, 0, 1, 1]
    given: list[Any] = [*op.args, *defaults[len(op.args) - 2 :]]
    x, weight, bias, stride, padding, dilation, groups = given
    names = [each.name for each in (weight, bias) if each is not None]
    metas: list[Any] = [program.metas[name] for name in (x.name, *names, op.name)]
    if not all(isinstance(each, Meta) and _plain(each) for each in metas):
        return None
    if len(metas[0].shape) != 4 or isinstance(padding, str):
        return None
    if not all(name in program.constants for name in names):
        return None
    if _pair(dilation) != (1, 1):
        return None
    return _pair(stride), _pair(padding), groups


def _pair(numbers: Any) -> Pair:
    """Two numbers, of which one may stand for both."""
    given = [numbers] if isinstance(numbers, int) else list(numbers)
    first, second = given * (2 // len(given))
    return first, second
