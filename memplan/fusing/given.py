"""What convolutions and normalisations of a captured program are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from memplan.graph.program import Meta, Op, Program, Ref

# By operator, the names and defaults of what follows its weight.
_PLAIN: dict[str, Any] = {
    **{"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1},
}
_TRANSPOSED: dict[str, Any] = {
    **{"bias": None, "stride": 1, "padding": 0, "output_padding": 0},
    **{"groups": 1, "dilation": 1},
}
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("aten.conv1d", "aten.conv2d", "aten.conv3d"), _PLAIN),
    **dict.fromkeys((f"aten.conv_transpose{n}d" for n in (1, 2, 3)), _TRANSPOSED),
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
    the CPU, with constant weights and as much padding in front as behind; None for
    anything else.
    """
    if op.key != key or refusal(op, program):
        return None
    x, weight, found = _arguments(op)
    kernel = program.metas[weight.name].shape[2:]
    found["padding"] = padding_of(found["padding"], kernel, found["dilation"])
    for name in ("stride", "dilation"):
        found[name] = each_of(found[name], len(kernel))
    found.pop("output_padding", None)
    return Given(x, weight, **found)


def refusal(op: Op, program: Program) -> str:
    """Why `convolution` is None for a convolution; "" if it is not."""
    if op.kwargs:
        return "it has unsupported arguments"
    x, weight, found = _arguments(op)
    weights = [each.name for each in (weight, found["bias"]) if each is not None]
    metas: list[Meta] = [program.metas[name] for name in (x.name, *weights, op.name)]
    kernel = metas[1].shape[2:]
    kinds = {str(each.dtype).removeprefix("torch.") for each in metas}
    padding = padding_of(found["padding"], kernel, found["dilation"])
    reasons = {
        "its weights are not parameters of the model": not all(
            name in program.constants for name in weights
        ),
        NO_BATCH: len(metas[0].shape) != len(kernel) + 2,
        NO_ELEMENTS: any(0 in each.shape for each in metas),
        f"its type is {' and '.join(sorted(kinds))}": kinds != {"float32"},
        "it does not run on the CPU": any(each.device != "cpu" for each in metas),
        ASYMMETRIC: padding is None,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def groups_of(op: Op) -> int:
    """How many groups of channels a convolution has."""
    return int(_arguments(op)[2]["groups"])


def _arguments(op: Op) -> tuple[Ref, Ref, dict[str, Any]]:
    """A convolution's operand and weight, and what follows, by name."""
    x, weight, *rest = op.args
    names = CONVOLUTIONS[op.key]
    return x, weight, names | dict(zip(names, rest, strict=False))


NO_BATCH = "it has no batch dimension"
NO_ELEMENTS = "it has no elements"
ASYMMETRIC = "its padding is not symmetric"


def padding_of(
    padding: str | int | Sequence[int],
    kernel: Sequence[int],
    dilation: int | Sequence[int],
) -> list[int] | None:
    """Padding in numbers, one for each dimension of a kernel; None if it is to be
    "same" and not as much in front as behind."""
    dims = len(kernel)
    if padding == "valid":
        return [0] * dims
    if not isinstance(padding, str):
        return each_of(padding, dims)
    pairs = zip(kernel, each_of(dilation, dims), strict=True)
    both = [step * (size - 1) for size, step in pairs]
    return None if any(each % 2 for each in both) else [each // 2 for each in both]


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
