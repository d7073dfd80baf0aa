"""What convolutions and normalisations of a captured program are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from memplan.graph.program import Meta, Op, Program, Ref

# By operator, the defaults of what follows its weight, by name.
_DEFAULTS: dict[str, dict[str, Any]] = {
    key: {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    for key in ("aten.conv2d", "aten.conv3d")
}
_DEFAULTS["aten.conv_transpose2d"] = {
    **{"bias": None, "stride": 1, "padding": 0, "output_padding": 0},
    **{"groups": 1, "dilation": 1},
}


class Given(NamedTuple):
    """The arguments of a convolution; numbers are one for each dimension of planes."""

    x: Ref
    weight: Ref
    bias: Ref | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def convolution(op: Op, key: str, program: Program) -> Given | None:
    """What a convolution is given, if it is the operator `key` on a batch of float32 on
    the CPU, with constant weights and its padding in numbers; None for anything else.
    """
    if op.key != key or op.kwargs:
        return None
    names = _DEFAULTS[key]
    x, weight, *rest = op.args
    found = names | dict(zip(names, rest, strict=False))
    weights = [each.name for each in (weight, found["bias"]) if each is not None]
    metas = [program.metas[name] for name in (x.name, *weights, op.name)]
    if not all(isinstance(each, Meta) and _is_plain(each) for each in metas):
        return None
    dims = len(metas[1].shape) - 2
    if len(metas[0].shape) != dims + 2 or isinstance(found["padding"], str):
        return None
    if not all(name in program.constants for name in weights):
        return None
    for name in ("stride", "padding", "dilation"):
        found[name] = each_of(found[name], dims)
    found.pop("output_padding", None)
    return Given(x, weight, **found)


def _is_plain(meta: Meta) -> bool:
    return meta.dtype == torch.float32 and meta.device == "cpu" and 0 not in meta.shape


def each_of(numbers: int | Sequence[int], dims: int) -> list[int]:
    """A number for each dimension, of which one may stand for all."""
    given = [numbers] if isinstance(numbers, int) else list(numbers)
    return given * dims if len(given) == 1 else given


def is_norm(op: Op, program: Program) -> bool:
    """Whether it is a normalisation by constants."""
    if op.key != "aten.batch_norm" or op.kwargs or op.args[5]:
        return False
    vectors = [each.name for each in op.args[1:5] if isinstance(each, Ref)]
    known = all(name in program.constants for name in vectors)
    return known and isinstance(op.args[3], Ref) and isinstance(op.args[4], Ref)
