"""Bytes that an operator needs beside its operands and results, on each device.

Facts about torch's CPU kernels, each found with the allocator's own events: which
operands they copy before they compute, and the buffers they compute in.
"""

from __future__ import annotations

from typing import Any

from memplan.graph.program import Meta, Op, Program

# These kernels make a contiguous copy of an operand that is not.
CONTIGUOUS_ONLY = {
    "aten.linear",
    "aten.layer_norm",
    "aten.native_layer_norm",
    "aten.group_norm",
    "aten.softmax",
    "aten._softmax",
    "aten.log_softmax",
}
MATMULS = {"aten.matmul", "aten.bmm", "aten.baddbmm"}


def temporaries(program: Program, op: Op) -> int:
    """Bytes that live only while `op` runs."""
    key = op.key
    metas = [program.metas[name] for name in op.operands()]
    if key in CONTIGUOUS_ONLY and metas and not metas[0].contiguous:
        return int(metas[0].bytes)
    if key in MATMULS:
        return sum(_copied(meta) for meta in metas[-2:])
    return 0


def _copied(meta: Any) -> int:
    """The bytes of a batched matrix that a matrix product copies first, or 0."""
    if not isinstance(meta, Meta) or len(meta.shape) < 3:
        return 0
    rows, columns = meta.strides[-2:]
    if 1 in (rows, columns) or 1 in meta.shape[-2:]:
        return 0
    return meta.bytes
