"""What chunks cost in an arena, where tensors exist before the program runs."""

from __future__ import annotations

import math
from dataclasses import replace

from memplan.chunking.timing import Costs, calibrated
from memplan.compiling.scratch import least_scratch
from memplan.graph.program import Op, Program
from memplan.graph.workspace import temporaries

PACKED = ("aten.conv2d", "aten.convolution", "aten.conv_transpose2d")
TRANSPOSED, PADDED = "windowed_transposed_conv", "windowed_conv"  # slices of them


def in_arena(packed: bool, lean: bool = True) -> Costs:
    """Costs of loops that are unrolled on tensors in an arena.

    Slices are made in advance, and no page is touched for the first time. packed:
    whether convolutions have packed weights, and pictures lie channels last, so that
    they need no memory of their own. lean: otherwise they run with less scratch, as
    far as that can be told before.
    """
    machine = replace(calibrated(), slice=0.0, touched=math.inf)
    beside = _with_less_scratch if lean else temporaries
    return Costs(machine, _with_packed if packed else beside)


def leans(program: Program) -> bool:
    """Whether an operator's bytes are fewer by an estimate of less scratch."""
    ops = (op for op in program.ops if isinstance(op, Op))
    return any(_with_less_scratch(program, op) < temporaries(program, op) for op in ops)


def _with_less_scratch(program: Program, op: Op) -> int:
    return least_scratch(program, op, temporaries(program, op))


def _with_packed(program: Program, op: Op) -> int:
    if op.key not in (*PACKED, TRANSPOSED, PADDED):
        return temporaries(program, op)
    meta = program.metas[op.operands()[0]]
    if len(meta.shape) != 4:
        return temporaries(program, op)
    return int(meta.bytes) if op.key == PADDED else 0  # padded at a picture's edges
