"""The cost of chunking as the paper has it (§3.4): what is lost in parallelism.

A region costs more the more operators and the more arithmetic it holds (the macro
cost), and the less arithmetic each operator does per byte it moves and the shorter the
runs are in which slices lie in memory (the micro cost). The paper gives neither the
weights nor the scale; here each term is a share of the program's own, and their
weights are equal. For comparison with the time model, which is measured.
"""

from __future__ import annotations

from math import prod

from memplan.graph.program import Input, Loop, Meta, Op, Output, Program, Step


def paper_cost(base: Program, program: Program) -> float:
    """The cost of the loops of `program`, as a share of `base`: 0.0 for none."""
    nodes = max(1, len(base.ops))
    flops = max(1.0, sum(_flops(base, step) for step in base.ops))
    total = 0.0
    for step in program.ops:
        if isinstance(step, Loop):
            turns = -(-step.extent // step.step)
            inside = sum(_flops(step.body, each) for each in step.body.ops) * turns
            count = len(step.body.ops)
            macro = count / nodes + inside / flops
            density = inside / flops / max(1, count)
            micro = (1.0 - min(1.0, density * nodes)) * count / nodes
            total += macro + micro + _strides(program, step)
    return total


def _strides(program: Program, loop: Loop) -> float:
    """How short the contiguous runs of slices are: 0.0 for one run each, up to 1.0."""
    cuts: list[Input | Output] = [*loop.inputs, *loop.outputs]
    worst = 0.0
    for cut in cuts:
        name = cut.outer if isinstance(cut, Input) else cut.buffer
        meta = program.metas[name]
        runs = prod(
            size
            for size, stride in zip(meta.shape, meta.strides, strict=True)
            if stride > meta.strides[cut.dim]
        )
        worst = max(worst, 1.0 - 1.0 / max(1, runs))
    return worst


def _flops(program: Program, step: Step) -> float:
    """Multiplications and additions of an operator, roughly; of a loop, of one turn."""
    if isinstance(step, Loop):
        return sum(_flops(step.body, each) for each in step.body.ops)
    result = program.metas[step.name]
    if not isinstance(result, Meta):
        return float(sum(each.elements for each in result))
    return float(result.elements * _depth(program, step))


def _depth(program: Program, op: Op) -> int:
    """Multiply-adds for each element of the result."""
    metas = [program.metas[name] for name in op.operands()]
    if any(word in op.key for word in ("linear", "conv")) and len(metas) > 1:
        return 2 * int(prod(metas[1].shape[1:]))
    if op.key in ("aten.matmul", "aten.bmm", "aten.mm"):
        return 2 * int(metas[0].shape[-1])
    if op.key in ("aten.addmm", "aten.baddbmm"):
        return 2 * int(metas[1].shape[-1])
    if "attention" in op.key and len(metas) > 1:
        return 4 * int(metas[1].shape[-2])
    return 1
