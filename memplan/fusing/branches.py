"""Convolutions of one value whose results are added, as one.

As of RepVGG (Ding et al., 2021) and MobileOne (Vasu et al., 2022) at inference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from memplan.fusing.given import Given, convolution, is_norm
from memplan.fusing.origins import Origins, TracedRewriter
from memplan.graph.infer import Inference
from memplan.graph.lower import without_dead
from memplan.graph.program import Op, Program, Ref

aten = torch.ops.aten


class _Branch(NamedTuple):
    """A convolution, or its operand itself, and a normalisation behind it, if any.

    shape: of its result. kernel: rows and columns of its weight. names: of its
    operators.
    """

    x: str
    shape: tuple[int, ...]
    given: Given | None
    norm: Op | None
    kernel: tuple[int, ...]
    names: list[str]

    @property
    def padding(self) -> list[int]:
        return [0, 0] if self.given is None else self.given.padding

    def before(self, other: _Branch) -> list[int]:
        """Rows and columns of another's kernel in front of its own."""
        return [b - a for a, b in zip(self.padding, other.padding, strict=True)]

    def lies_in(self, other: _Branch) -> bool:
        """Whether its weights are some of a kernel as large as another's."""
        if other.given is None or (self.x, self.shape) != (other.x, other.shape):
            return False
        stride, groups = other.given.stride, other.given.groups
        if self.given is None and stride != [1, 1]:
            return False
        if self.given and (self.given.stride, self.given.groups) != (stride, groups):
            return False
        sizes = zip(self.before(other), self.kernel, other.kernel, strict=True)
        return all(at >= 0 and at + few <= many for at, few, many in sizes)


def with_one_branch(
    program: Program, inference: Inference, origins: Origins | None = None
) -> Program:
    """The program with sums of 2-d convolutions of the same value, and of the value
    itself, normalised, as one convolution; of float32 on the CPU, without dilation.

    Weights are summed in float64. Names and values of steps that are left are as
    before, but for rounding.
    """
    merging = _Merging(program, inference, origins)
    return merging.all() if merging.sums else program


class _Merging:
    def __init__(
        self, program: Program, inference: Inference, origins: Origins | None
    ) -> None:
        self._old, self._to = program, TracedRewriter(program, inference, origins)
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

    def _within(self, op: Op) -> list[str]:
        """A sum, and those within it that are added again."""
        below = (self._made.get(name) for name in op.operands())
        sums = [each for each in below if each is not None and _is_sum(each)]
        own = [each for each in sums if self._to.uses[each.name] == 1]
        return [op.name, *(name for each in own for name in self._within(each))]

    def _grouped(self, terms: list[Ref]) -> tuple[list[list[_Branch]], list[Ref]]:
        """The branches that can be one, the widest first, and the other terms."""
        pairs = [(each, self._branch(each)) for each in terms]
        found = [each for _, each in pairs if each is not None]
        found.sort(key=lambda each: (each.given is not None, each.kernel), reverse=True)
        groups: list[list[_Branch]] = []
        for branch in found:
            for group in groups:
                if branch.lies_in(group[0]):
                    group.append(branch)
                    break
            else:
                groups.append([branch])
        groups = [each for each in groups if len(each) > 1]
        kept = {id(branch) for group in groups for branch in group}
        return groups, [ref for ref, branch in pairs if id(branch) not in kept]

    def _branch(self, term: Ref) -> _Branch | None:
        """A term as a branch that nothing else takes."""
        made, norm, metas = self._made.get(term.name), None, self._old.metas
        if made is None or self._to.uses[term.name] != 1:
            return None
        shape = getattr(metas[term.name], "shape", ())
        if is_norm(made, self._old):
            norm, x = made, made.args[0].name
            made = self._made.get(x) if self._to.uses[x] == 1 else None
        given = _given(made, self._old)
        if given is not None:
            kernel = metas[given.weight.name].shape[2:]
            assert made is not None
            names = [each.name for each in (made, norm) if each is not None]
            return _Branch(given.x.name, shape, given, norm, kernel, names)
        if norm is None:
            return None
        return _Branch(x, shape, None, norm, (1, 1), [norm.name])

    def _sum(self, op: Op, groups: list[list[_Branch]], others: list[Ref]) -> None:
        to, terms, last = self._to, list(others), len(groups) - 1
        for i, group in enumerate(groups):
            given = group[0].given
            assert given is not None
            how = given.x, *self._added(op, group), *given[3:]
            names = [name for branch in group for name in branch.names]
            if i == last and not terms:
                to.end(op, aten.conv2d.default, *how)
                to.origins.merge([*names, *self._within(op)], op.name)
                return
            made = to.add(op, f"{op.name}_one", aten.conv2d.default, *how)
            to.origins.merge(names, made.name)
            terms.insert(0, made)
        inner = self._within(op)[1:]
        to.origins.merged.update(dict.fromkeys(inner, op.name))
        total, *rest = terms
        for each in rest[:-1]:
            total = to.add(op, f"{op.name}_part", aten.add.Tensor, total, each)
        to.end(op, aten.add.Tensor, total, rest[-1])

    def _added(self, op: Op, group: list[_Branch]) -> tuple[Ref | None, Ref | None]:
        """The weight and the bias that stand for all branches, the first the widest."""
        widest, weights, biases = group[0], list[Ref](), list[Ref]()
        for branch in group:
            scale, shift = self._scaled(op, branch)
            if branch.given is None:
                assert scale is not None
                assert widest.given is not None
                groups = widest.given.groups
                weight = self._diagonal(op, scale, widest.shape[1], groups)
            else:
                weight = self._wide(op, branch.given.weight)
                if scale is not None:
                    by = self._add(op, aten.view.default, scale, [-1, 1, 1, 1])
                    weight = self._add(op, aten.mul.Tensor, weight, by)
            at = branch.before(widest)
            sizes = zip(widest.kernel, branch.kernel, at, strict=True)
            below, right = (many - few - first for many, few, first in sizes)
            around = [at[1], right, at[0], below]
            if any(around):
                pad = aten.constant_pad_nd.default
                weight = self._add(op, pad, weight, around)
            weights.append(weight)
            biases += [] if shift is None else [shift]
        return self._total(op, weights), self._total(op, biases)

    def _scaled(self, op: Op, branch: _Branch) -> tuple[Ref | None, Ref | None]:
        """What a branch's channels are multiplied with, and what is added to them."""
        given = branch.given
        bias = None
        if given is not None and given.bias is not None:
            bias = self._wide(op, given.bias)
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

    def _total(self, op: Op, terms: list[Ref]) -> Ref | None:
        if not terms:
            return None
        total, *rest = terms
        for each in rest:
            total = self._add(op, aten.add.Tensor, total, each)
        return self._add(op, aten.to.dtype, total, torch.float32)

    def _wide(self, op: Op, ref: Ref) -> Ref:
        return self._add(op, aten.to.dtype, ref, torch.float64)

    def _add(self, op: Op, target: Any, *args: Any) -> Ref:
        return self._to.add(op, f"{op.name}_weights", target, *args)


def _is_sum(op: Op) -> bool:
    """Whether it adds two values as they are."""
    return (
        op.key == "aten.add"
        and len(op.args) == 2
        and not op.kwargs
        and all(isinstance(each, Ref) or each == 0 for each in op.args)
    )


def _given(op: Op | None, program: Program) -> Given | None:
    """What a convolution of images without dilation is given; None for others."""
    found = convolution(op, "aten.conv2d", program) if op is not None else None
    return found if found is not None and set(found.dilation) == {1} else None
