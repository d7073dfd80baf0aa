"""Operators that may write their result over an operand nobody needs any more."""

from __future__ import annotations

from typing import Any

from memplan.graph.program import Meta, Op, Program, Ref


def slice_written(
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """slice_scatter over x itself."""
    import torch

    torch.ops.aten.slice.Tensor(x, dim, start, end, step).copy_(source)
    return x


def select_written(x: Any, source: Any, dim: int, index: int) -> Any:
    """select_scatter over x itself."""
    x.select(dim, index).copy_(source)
    return x


WRITTEN = {"aten.slice_scatter": slice_written, "aten.select_scatter": select_written}
SWAPPED = {"aten.add", "aten.mul"}  # where the second operand serves as well
NO_SUCH = {"aten.where"}


def overwrites(
    program: Program, last: dict[str, int], owned: dict[str, int]
) -> dict[str, str]:
    """Of each value that lies over an operand's memory, that operand.

    last, owned: of `memplan.graph.liveness.lifetimes`. What is overwritten has the same
    shape, strides and dtype, fills a storage of the program's own, and is used by
    nothing later. A function of the program: what is estimated is what is written.
    """
    ends = dict(last)
    merged: dict[str, str] = {}
    found: dict[str, str] = {}
    for i, op in enumerate(program.ops):
        if not isinstance(op, Op) or program.roots[op.name] != op.name:
            continue
        for name in _candidates(op):
            root = program.roots[name]
            if not isinstance(root, str) or "[" in root:
                continue
            owner = merged.get(root, root)
            if (
                owner in owned
                and ends[owner] == i
                and program.metas[name] == program.metas[op.name]
                and _fills(program.metas[name], program.metas[root])
                and not _read_twice(program, op, name, root)
            ):
                found[op.name] = name
                merged[op.name] = owner
                ends[owner] = ends[op.name]
                break
    return found


def _fills(view: Meta, owner: Meta) -> bool:
    """Whether a view is all of a value's storage."""
    return view == owner or (
        view.contiguous and owner.contiguous and view.bytes == owner.bytes
    )


def in_place(op: Op) -> Any:
    """What writes over its first argument: the overload, or a function whose source
    says it all; None if there is none."""
    import torch

    if op.key in WRITTEN:
        return WRITTEN[op.key]
    overload = getattr(op.target, "_overloadname", None)
    if overload is None or op.key in NO_SUCH:
        return None
    name = op.key.removeprefix("aten.")
    packet = getattr(torch.ops.aten, f"{name}_", None)
    if packet is None:
        return None
    names = packet.overloads()
    if overload == "Tensor_Scalar" and "Scalar" in names:
        return packet.Scalar
    return getattr(packet, overload) if overload in names else None


def _candidates(op: Op) -> list[str]:
    """Operands that the result may lie over, the likeliest first."""
    if not op.args or in_place(op) is None:
        return []
    tensors = [arg.name for arg in op.args[:2] if isinstance(arg, Ref)]
    first = tensors[:1] if isinstance(op.args[0], Ref) else []
    if op.key in SWAPPED and len(tensors) == 2 and not op.kwargs:
        return tensors
    return first


def _read_twice(program: Program, op: Op, name: str, root: str) -> bool:
    """Whether the operator reads that memory by another operand too."""
    taken = op.operands()
    return taken.count(name) > 1 or any(
        program.roots[other] == root for other in taken if other != name
    )
