"""A model that runs a few images at a time, so that less has to stay in cache."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from memplan.chunking.canonical import searchable
from memplan.chunking.region import call_of
from memplan.chunking.rules.flow import Slice
from memplan.chunking.rules.table import flow
from memplan.compiling.module import Runner, kinds_of
from memplan.compiling.schedule import DEFAULTS, Choices
from memplan.errors import InputError
from memplan.graph.build import Builder
from memplan.graph.call import Form, Inputs
from memplan.graph.capture import Target
from memplan.graph.infer import Inference
from memplan.graph.nest import flatten, overlapping
from memplan.graph.program import Op, Program, refs, results
from memplan.graph.script import NoTapeError

SIZES = (2, 1)  # images at a time that are tried, while that gains anything
# Operators whose second argument is the shape of their result.
SHAPED = {"aten.view", "aten._unsafe_view", "aten.reshape", "aten.expand"}


def images(inputs: Inputs) -> int:
    """How many images a call has: the first number of the shapes of all its tensors; 1
    where these differ."""
    counts = {each.shape[0] if each.dim() else 1 for each in inputs.tensors()}
    return counts.pop() if len(counts) == 1 else 1


def some(inputs: Inputs, start: int, stop: int) -> Inputs:
    """The inputs with images [start, stop) alone."""
    return inputs.with_tensors([each[start:stop] for each in inputs.tensors()])


def are_apart(program: Program) -> bool:
    """Whether each result's row follows from the same row of each input alone, by the
    rules of operators."""
    moving = set(program.inputs)
    for step in program.ops:
        if moving.intersection(step.operands()):
            moving.update(results(step))
    wanted = {name: Slice(0) for name in refs(program.outputs)}
    for op in reversed(program.ops):
        if op.name not in moving or op.name not in wanted:
            continue
        found = None
        if isinstance(op, Op):
            found = flow(call_of(program, op, ""), wanted[op.name])
        if found is None:
            return False
        for name, need in zip(op.operands(), found.needs, strict=True):
            if name not in moving:
                if need is not None:
                    return False
            elif need is None or wanted.setdefault(name, need) != need:
                return False
    return all(wanted.get(name) in (None, Slice(0)) for name in program.inputs)


def with_images(target: Target, inputs: Inputs, inference: Inference) -> Target:
    """The captured model for fewer images: the same operators on other sizes.

    inputs: of the model, with these images. Raises InputError where that fails, or
    images are not known to be apart from one another.
    """
    source, metas = target.program, dict(target.program.metas)
    if not are_apart(searchable(source, inference)):
        raise InputError("a result of one image may depend on others")
    tensors = inputs.tensors()
    count, few = metas[source.inputs[0]].shape[:1], tensors[0].shape[:1]
    for name, tensor in zip(source.inputs, tensors, strict=True):
        metas[name] = metas[name]._replace(shape=tuple(tensor.shape))
    to = Builder(replace(source, metas=metas), inference)
    for op in source.ops:
        if not isinstance(op, Op):
            raise InputError("it runs in loops")
        if op.key in SHAPED and tuple(op.args[1][:1]) == count:
            value, (_, *rest), *others = op.args
            to.append(replace(op, args=(value, [*few, *rest], *others)))
        else:
            to.append(op)
    program = replace(to.program, outputs=source.outputs)
    return replace(target, program=program, form=Form.of(inputs))


class InBatches(Runner):
    """Runs a program for `batch` images on those of a call, one batch after the other.

    images: of a call, a multiple of `batch`. whole: the model as it was exported.
    """

    def __init__(
        self,
        target: Target,
        program: Program,
        inputs: Inputs,
        choices: Choices = DEFAULTS,
        *,
        whole: Target,
    ) -> None:
        """target: the model for `batch` images, see `with_images`. inputs: of a call.

        Raises NoTapeError if a result is no row for each image, or an input.
        """
        self.whole, self.images = whole, images(inputs)
        (batch,) = program.metas[program.inputs[0]].shape[:1]
        self.batch: int = batch
        given = {*program.inputs, *program.constants}
        for name in refs(program.outputs):
            rows = program.metas[name].shape[:1] == (batch,)
            if not rows or program.roots[name] in given:
                raise NoTapeError("a result that is not computed image by image")
        super().__init__(target, program, some(inputs, 0, batch), choices)
        self.kinds = kinds_of(inputs)

    def bind(self, inputs: Inputs) -> None:
        super().bind(some(inputs, 0, self.batch))

    def difference(self, inputs: Inputs) -> str:
        part = some(inputs, 0, self.batch)
        return super().difference(part) or (
            "for another number of images" if images(inputs) != self.images else ""
        )

    def __call__(self, inputs: Inputs) -> object:
        made: list[Tensor] = []
        for start in range(0, self.images, self.batch):
            ends = start, start + self.batch
            leaves, rebuild = flatten(super().__call__(some(inputs, *ends)))
            tensors = [each for each in leaves if isinstance(each, Tensor)]
            if not made:
                made = [self._whole(each) for each in tensors]
            for one, other in zip(made, tensors, strict=True):
                one[slice(*ends)] = other
        rows = iter(made)
        return rebuild([next(rows) if isinstance(x, Tensor) else x for x in leaves])

    def _whole(self, part: Tensor) -> Tensor:
        """Memory for a result of all images, which lies as that of some."""
        shape = self.images, *part.shape[1:]
        if overlapping(shape, part.stride()):
            return torch.empty(shape, dtype=part.dtype)
        return torch.empty_strided(shape, part.stride(), dtype=part.dtype)
