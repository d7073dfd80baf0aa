"""A sequence of a stack as CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence

from memplan.fusing.cuda.buffered import emit_buffered
from memplan.fusing.cuda.elementwise import emit_elementwise
from memplan.fusing.cuda.expressions import grouped
from memplan.fusing.cuda.kernel import Form, Kernel
from memplan.fusing.cuda.pieces import Pieces
from memplan.fusing.cuda.single import emit_single
from memplan.fusing.operations import Operation


def emit(
    operations: Sequence[Operation],
    form: Form,
    patch: tuple[int, int],
    limit: int,
) -> Kernel:
    """One kernel of all these operations, for values of this form.

    patch: rows and columns of the last plane that a block makes; fewer, if more do not
    fit. limit: bytes of shared memory that suit a block, exceeded only where it makes
    one point. For GPUs from sm_75 on. What is emitted has been compiled for sm_75 and
    sm_90 and its arithmetic checked on a CPU; it has not run on a GPU.
    """
    pools = sum(not operation.elementwise for operation in operations)
    if not pools:
        return emit_elementwise(grouped(operations)[0], form)
    pieces = Pieces(operations, form, patch, limit)
    return emit_single(pieces) if pools == 1 else emit_buffered(pieces)
