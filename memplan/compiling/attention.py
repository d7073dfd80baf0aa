"""Attention that is written out, as torch's operator: the scores are never whole."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from memplan.chunking.masks import Masks
from memplan.graph.build import Rewriter
from memplan.graph.infer import Inference
from memplan.graph.lower import without_dead
from memplan.graph.program import Argument, Op, Program, Ref

aten = torch.ops.aten
PRODUCTS = {"aten.matmul", "aten.bmm"}
FLOATS = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
FILLED = {"aten.masked_fill", "aten.where"}
LOW = -1e30  # scores are lost beside it
SCORES = {"aten.mul", "aten.div", "aten.add"}


def with_attention(program: Program, inference: Inference) -> Program:
    """The program with products of softmax(queries keys^T scale + mask) and values as
    `scaled_dot_product_attention`, where nothing else uses what is between.

    Results differ by rounding. Loops stay as they are.
    """
    return _Rewriting(program, inference).all()


@dataclass
class _Found:
    """The parts of an attention.

    scale: of the scores. masks: are added to them. hidden: masks by which a number
    takes the place of scores, the number, and whether it does where they are false.
    """

    query: Ref
    keys: Ref  # transposed
    value: Ref
    scale: float = 1.0
    masks: list[Ref] = field(default_factory=list)
    hidden: list[tuple[Ref, float, bool]] = field(default_factory=list)


class _Rewriting:
    def __init__(self, program: Program, inference: Inference) -> None:
        self._old, self._to = program, Rewriter(program, inference)
        self._makers = {op.name: op for op in program.ops if isinstance(op, Op)}
        self._masks = Masks(program)
        self._copies: dict[str, Ref] = {}

    def all(self) -> Program:
        changed = False
        for step in self._old.ops:
            found = self._found(step) if isinstance(step, Op) else None
            if found is not None and isinstance(step, Op):
                self._put(step, found)
                changed = True
            elif changed and isinstance(step, Op):
                self._to.append(step)  # its operands may lie otherwise
            else:
                self._to.keep(step)
        return without_dead(self._to.program) if changed else self._old

    def _found(self, op: Op) -> _Found | None:
        """The attention whose last product `op` is, if it is one."""
        if op.key not in PRODUCTS or op.kwargs:
            return None
        weights, value = op.args
        softmax = self._own(weights)
        if (
            softmax is None
            or softmax.key != "aten.softmax"
            or not self._by_keys(softmax)
        ):
            return None
        found = _Found(value, value, value)
        step = self._own(softmax.args[0])
        while step is not None and step.key in SCORES | FILLED:
            scores = self._scores(step, found)
            step = scores and self._own(scores)
        if step is None or step.key not in PRODUCTS or step.kwargs:
            return None
        found.query, found.keys = step.args
        return found if self._fits(found, step) else None

    def _own(self, ref: Argument) -> Op | None:
        """What makes a value that has one use."""
        once = isinstance(ref, Ref) and self._to.uses[ref.name] == 1
        return self._makers.get(ref.name) if once else None

    def _by_keys(self, op: Op) -> bool:
        """Whether a softmax is over the last dimension, and keeps the type."""
        meta = self._old.metas[op.name]
        dim = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim")
        same = meta.dtype == self._old.metas[op.args[0].name].dtype
        return same and dim in (-1, len(meta.shape) - 1)

    def _scores(self, op: Op, found: _Found) -> Ref | None:
        """The scores before an operator, which is noted; None if attention has no such
        operator."""
        if op.key in FILLED:
            return self._filled(op, found)
        if op.kwargs or len(op.args) != 2:
            return None
        one, other = op.args
        if op.key != "aten.add":
            if type(other) not in (int, float) or not other:
                return None
            found.scale *= 1 / other if op.key == "aten.div" else other
            return one if isinstance(one, Ref) else None
        if found.scale != 1 or not (isinstance(one, Ref) and isinstance(other, Ref)):
            return None  # the mask would have to be scaled, too
        if not self._leads(one, op):
            one, other = other, one
        found.masks.append(other)
        return one if self._leads(one, op) else None

    def _filled(self, op: Op, found: _Found) -> Ref | None:
        """The scores of which an operator replaces some by a number so low that adding
        it does the same."""
        if op.kwargs or len(op.args) != 3 or found.scale != 1:
            return None
        first, second, third = op.args
        ways = [(first, second, third, False)]  # scores, mask, number
        if op.key == "aten.where":
            ways = [(second, first, third, True), (third, first, second, False)]
        for scores, mask, value, shows in ways:
            number = self._number(value)
            if not (isinstance(scores, Ref) and isinstance(mask, Ref)):
                continue
            if number <= LOW and self._leads(scores, op):
                found.hidden.append((mask, number, shows))
                return scores
        return None

    def _number(self, value: Argument) -> float:
        """A number, or that of which a tensor is full; infinite for anything else."""
        if isinstance(value, Ref):
            maker = self._makers.get(value.name)
            value = maker.args[1] if maker and maker.key == "aten.full" else None
        return value if isinstance(value, float) else math.inf

    def _leads(self, ref: Ref, op: Op) -> bool:
        """Whether a value may be the scores of which `op` makes others."""
        maker, metas = self._own(ref), self._old.metas
        known = maker is not None and maker.key in PRODUCTS | SCORES | FILLED
        return known and metas[ref.name].shape == metas[op.name].shape

    def _fits(self, found: _Found, product: Op) -> bool:
        """Whether torch's operator takes it, and the scores are what takes memory."""
        metas = self._old.metas
        parts = (found.query, found.keys, found.value)
        if not all(isinstance(each, Ref) for each in parts):
            return False
        query, keys, value = (metas[each.name] for each in parts)
        rank, scores = len(query.shape), metas[product.name]
        (*outer, _, width), (*one, _, length) = query.shape, keys.shape
        others = [metas[each.name] for each in found.masks]
        hidden = [metas[each.name] for each, *_ in found.hidden]
        return (
            rank in (3, 4)
            and query.dtype in FLOATS
            and outer == one
            and tuple(value.shape) == (*outer, length, width)
            and length >= width
            and all(each.dtype == query.dtype for each in (keys, value, *others))
            and all(len(each.shape) <= rank for each in (*others, *hidden))
            and all(each.dtype == torch.bool for each in hidden)
            and len(scores.shape) == rank
        )

    def _put(self, op: Op, found: _Found) -> None:
        """The attention, its result under the name of the last product."""
        rank = len(self._old.metas[op.name].shape)
        keys = self._made(op, aten.transpose.int, found.keys, -1, -2)
        parts = [self._of_four(op, x) for x in (found.query, keys, found.value)]
        hides = {each: self._masks.hides(each.name) for each in found.masks}
        masks = [each for each in found.masks if hides[each] != "nothing"]
        masks = [self._by_rows(op, each) for each in masks]
        masks += [self._lowered(op, *each) for each in found.hidden]
        options: dict[str, Argument] = {"scale": float(found.scale)}
        mask = None
        for each in masks:
            more = self._of_four(op, each)
            mask = more if mask is None else self._made(op, aten.add.Tensor, mask, more)
        if mask is not None:
            options["attn_mask"] = mask
        attends = aten.scaled_dot_product_attention.default
        steps: list[tuple[Any, tuple[Argument, ...], dict[str, Argument]]]
        steps = [(attends, tuple(parts), options)]
        endless = any(number == -math.inf for _, number, _ in found.hidden)
        if mask is not None and (endless or None in hides.values()):
            # Where all keys are hidden by -inf, softmax gives NaN, the operator 0.
            most = self._made(op, aten.amax.default, mask, [-1], True)
            none = self._made(op, aten.mul.Tensor, most, 0.0)
            steps.append((aten.add.Tensor, (none,), {}))
        if rank == 3:
            steps.append((aten.squeeze.dim, (0,), {}))
        *before, (target, args, kwargs) = steps
        whole: tuple[Ref, ...] = ()
        for each, given, named in before:
            whole = (self._made(op, each, *whole, *given, **named),)
        self._to.end(op, target, *whole, *args, **kwargs)

    def _lowered(self, op: Op, mask: Ref, value: float, shows: bool) -> Ref:
        """A number where a mask is true, or where it `shows` nothing; 0 elsewhere."""
        meta = self._to.meta(mask)
        dtype = self._old.metas[op.name].dtype
        if shows:
            mask = self._made(op, aten.logical_not.default, mask)
        form = {"dtype": dtype, "device": torch.device(meta.device)}
        zeros = self._made(op, aten.full.default, list(meta.shape), 0.0, **form)
        return self._made(op, aten.masked_fill.Scalar, zeros, mask, value)

    def _by_rows(self, op: Op, mask: Ref) -> Ref:
        """A mask as torch's operator reads it, which it would copy at each call: biases
        of positions are gathered with the heads last."""
        if self._to.meta(mask).strides[-1] in (0, 1):
            return mask
        if mask.name not in self._copies:
            rows = {"memory_format": torch.contiguous_format}
            copy = self._made(op, aten.clone.default, mask, **rows)
            self._copies[mask.name] = copy
        return self._copies[mask.name]

    def _of_four(self, op: Op, ref: Ref) -> Ref:
        """A value with four dimensions."""
        while len(self._to.meta(ref).shape) < 4:
            ref = self._made(op, aten.unsqueeze.default, ref, 0)
        return ref

    def _made(self, op: Op, target: Any, *args: Argument, **kwargs: Argument) -> Ref:
        """What `target` makes, under a name of its own."""
        return self._to.add(op, f"{op.name}_part", target, *args, **kwargs)
