"""Which kernels write into memory that they are given, without a request for more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from memplan.graph.execute import COPIES, Served, writers
from memplan.graph.measure import MEMORY, events_of
from memplan.graph.program import Meta, Op, Program, Ref, mapped

# Kernels that read all of a row before they write it.
ROWS = {"aten._softmax", "aten._log_softmax"}
UNWRITTEN = "aten.empty_strided"


def overwritable(op: Op, way: Served | None) -> list[str]:
    """Operands over which a kernel may write an operator's result."""
    if way is None:
        return []
    taken = [arg.name for arg in op.args if isinstance(arg, Ref)]
    if way.over or op.key == "aten.slice_scatter":
        return taken[:1]
    pointwise = torch.Tag.pointwise in getattr(op.target, "tags", ())
    return taken if pointwise or op.key in ROWS else []


def served(
    program: Program, constants: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> dict[str, Served]:
    """How operators write where they are told, by their name; the others are missing.

    Runs the program once. A kernel counts if it makes no request to the allocator,
    leaves its target in place, and gives the same bits as the operator itself.
    """
    values: dict[str, Any] = dict(constants)
    values.update(zip(program.inputs, inputs, strict=True))
    uses = {name: i for i, op in enumerate(program.ops) for name in op.operands()}
    found: dict[str, Served] = {}
    known: dict[object, Served | None] = {}
    with torch.inference_mode():
        for i, op in enumerate(program.ops):
            assert isinstance(op, Op)
            args, kwargs = mapped((op.args, op.kwargs), lambda ref: values[ref.name])
            result = values[op.name] = op.target(*args, **kwargs)
            if program.roots[op.name] == op.name:
                way = _way(program, op, args, kwargs, result, known)
                if way is not None:
                    found[op.name] = way
            for name in op.operands():
                if uses[name] == i:
                    values.pop(name, None)
            del args, kwargs, result
    return found


def _way(
    program: Program,
    op: Op,
    args: Any,
    kwargs: Any,
    result: Any,
    known: dict[object, Served | None],
) -> Served | None:
    if op.key in COPIES or op.key in (UNWRITTEN, "aten.slice_scatter"):
        return Served(op.target)
    metas = mapped((op.args, op.kwargs), lambda ref: program.metas[ref.name])
    key = (op.target, repr(metas))
    if key not in known:
        meta: Meta = program.metas[op.name]
        ways = writers(op)
        known[key] = next(
            (way for way in ways if _holds(way, args, kwargs, result, meta)), None
        )
    return known[key]


def _holds(way: Served, args: Any, kwargs: Any, result: Tensor, meta: Meta) -> bool:
    """Whether a kernel does what `served` asks of it, on these arguments."""
    out = torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype)
    if way.over and (meta.shape, meta.dtype) != (args[0].shape, args[0].dtype):
        return False
    at = out.data_ptr()
    try:
        events = events_of(_writing(way, args, kwargs, out))
    except RuntimeError:  # it does not take these arguments
        return False
    if any(event.name() == MEMORY for event in events) or out.data_ptr() != at:
        return False
    return bool(torch.equal(out.nan_to_num(), result.nan_to_num()))


def _writing(way: Served, args: Any, kwargs: Any, out: Tensor) -> Callable[[], None]:
    def run() -> None:
        if way.over:
            out.copy_(args[0])
            way.target(out, *args[1:], **kwargs)
        else:
            way.target(*args, **kwargs, out=out)

    return run
