"""The same elements in another shape: view, reshape, flatten, squeeze, unsqueeze."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from memplan.chunking.rules.arguments import given
from memplan.chunking.rules.elementwise import elementwise
from memplan.chunking.rules.flow import Call, Flow, Ref, Rule, Slice, each


def view(call: Call, out: Slice) -> Flow | None:
    """As `reshape`; with a type in place of sizes, the elements are read as that."""
    if "dtype" in given(call):
        source, result = call.operands[0], call.result
        same = source.dtype.itemsize == result.dtype.itemsize
        return elementwise(call, out) if same else None
    return reshape(call, out)


def reshape(call: Call, out: Slice) -> Flow | None:
    """The dimension must be the first of more than one element in its group.

    Groups are the shortest runs of dimensions with equal products in both shapes. It
    runs as a reshape: a slice of a view need not be viewable, and a squeeze would also
    drop the dimension of a slice of one element.
    """
    if len(call.operands) != 1 or not isinstance(call.op.args[0], Ref):
        return None
    source = _leading(call.operands[0].shape, call.shape, out.dim)
    if source is None:
        return None
    old, new = call.operands[0].shape[source], call.shape[out.dim]
    piece = out.along(source, Fraction(old, new))
    if piece is None:
        return None
    sizes = call.sizes(out)
    return Flow((piece,), _reshape(), (call.op.args[0], sizes), {})


def _leading(old: tuple[int, ...], new: tuple[int, ...], dim: int) -> int | None:
    """The dimension of `old` that leads the group which `dim` leads in `new`."""
    olds = [(i, size) for i, size in enumerate(old) if size != 1]
    news = [(i, size) for i, size in enumerate(new) if size != 1]
    while olds and news:
        source, left = olds.pop(0)
        target, right = news.pop(0)
        if target == dim:
            return source
        while left != right:
            if left < right and olds:
                left *= olds.pop(0)[1]
            elif right < left and news:
                right *= news.pop(0)[1]
            else:
                return None
    return None


def _reshape() -> Any:
    import torch

    return torch.ops.aten.reshape.default


def unsqueeze(call: Call, out: Slice) -> Flow | None:
    """A dimension of size 1 more: the others stay, renumbered."""
    source = _leading(call.operands[0].shape, call.shape, out.dim)
    return None if source is None else Flow((out._replace(dim=source),))


def view_as_real(call: Call, out: Slice) -> Flow | None:
    """The last dimension, real and imaginary part, is not sliced."""
    return Flow((out,)) if out.dim < len(call.shape) - 1 else None


def view_as_complex(call: Call, out: Slice) -> Flow | None:
    """The operand has one dimension more, its last."""
    return Flow((out,))


RESHAPES = "reshape _unsafe_view view_copy _reshape_copy flatten unflatten squeeze"

RULES: dict[str, Rule] = {
    **each(RESHAPES, reshape),
    "aten.view": view,
    "aten.unsqueeze": unsqueeze,
    "aten.view_as_real": view_as_real,
    "aten.view_as_complex": view_as_complex,
}
