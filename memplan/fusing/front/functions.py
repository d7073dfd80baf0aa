"""Rules: what a call of a function is as a layer. One rule a function.

Functions go by the name that torch, torch.nn.functional, methods of tensors and ATen
share; where their arguments differ, the rule tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from memplan.fusing.front.context import (
    Context,
    LeftAloneError,
    identity,
    made_of,
    planes,
)
from memplan.fusing.front.windows import (
    adaptive_avg_pool2d,
    avg_pool2d,
    batch_norm,
    constant_pad_nd,
    conv2d,
    convolution,
    linear,
    max_pool2d,
    mean,
    pad,
)
from memplan.fusing.layers import Layer
from memplan.fusing.operations import Operation
from memplan.graph.program import Ref

Rule = Callable[..., None]


def _elementwise(kind: str, *numbers: float) -> Rule:
    def rule(layer: Layer, context: Context, x: Any, **_: Any) -> None:
        planes(context, x)
        made_of(layer, Operation(kind, numbers), x)

    return rule


def _with_numbers(kind: str, **defaults: float) -> Rule:
    """An operation whose arguments behind the value are its numbers."""

    def rule(layer: Layer, context: Context, x: Any, *given: Any, **named: Any) -> None:
        planes(context, x)
        names = (*defaults, "inplace")
        if len(given) > len(names):
            raise LeftAloneError("its arguments are unusual")
        chosen = {**defaults, **dict(zip(names, given, strict=False)), **named}
        chosen.pop("inplace", None)
        if chosen.keys() != defaults.keys() or not all(
            map(_is_number, chosen.values())
        ):
            raise LeftAloneError("its arguments are unusual")
        made_of(layer, Operation(kind, tuple(map(float, chosen.values()))), x)

    return rule


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def clamp(
    layer: Layer, context: Context, x: Any, min: Any = None, max: Any = None, **_: Any
) -> None:
    planes(context, x)
    low = -math.inf if min is None else min
    high = math.inf if max is None else max
    if not all(isinstance(each, int | float) for each in (low, high)):
        raise LeftAloneError("its bounds are tensors")
    if not low <= high:
        raise LeftAloneError("its bounds are in the wrong order")
    made_of(layer, Operation("clamp", (float(low), float(high))), x)


def hardtanh(
    layer: Layer,
    context: Context,
    x: Any,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
) -> None:
    clamp(layer, context, x, min_val, max_val)


def gelu(layer: Layer, context: Context, x: Any, approximate: str = "none") -> None:
    planes(context, x)
    kind = "gelu" if approximate == "none" else "gelu_tanh"
    made_of(layer, Operation(kind), x)


def binary(kind: str, number: str) -> Rule:
    """Addition and its like: of two tensors of one shape, or of one and a number."""

    def rule(
        layer: Layer, context: Context, x: Any, y: Any, alpha: Any = 1, **_: Any
    ) -> None:
        if alpha != 1:
            raise LeftAloneError("one of its operands is scaled")
        if kind in ("add", "mul") and not isinstance(x, Ref):
            x, y = y, x
        shape: tuple[int, ...] | None = planes(context, x)
        if _is_number(y):
            value = -float(y) if kind == "sub" else float(y)
            made_of(layer, Operation(number, (value,)), x)
            return
        if context.dtype(x) != context.dtype(y):
            raise LeftAloneError("its operands have two types")
        other = context.shape(y)
        if kind == "mul" and (shape or ())[2:] == (1, 1) != (other or ())[2:]:
            x, y, shape, other = y, x, other, shape
        if other is not None and len(other) == 2:
            other = (*other, 1, 1)
        if other == shape:
            made_of(layer, Operation(kind), x, y)
        elif kind == "mul" and other == (*(shape or ())[:2], 1, 1):
            made_of(layer, Operation("gate"), x, y)
        else:
            raise LeftAloneError("its operands have two shapes")

    return rule


def dropout(
    layer: Layer,
    context: Context,
    x: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> None:
    if training:
        raise LeftAloneError("it drops values at random")
    identity(layer, context, x)


def cat(layer: Layer, context: Context, tensors: Any, dim: int = 0) -> None:
    shapes = [planes(context, each) for each in tensors]
    if dim % 4 != 1:
        raise LeftAloneError("it does not join channels")
    if len({(n, h, w) for n, _, h, w in shapes}) > 1:
        raise LeftAloneError("its planes differ")
    layer.kind, layer.inputs = "cat", [each.name for each in tensors]


def contiguous(layer: Layer, context: Context, x: Any, **named: Any) -> None:
    """Nothing to do where the model has the value so already."""
    if named or not context.contiguous(x):
        raise LeftAloneError("it changes how a value lies in memory")
    identity(layer, context, x)


FUNCTIONS: dict[str, Rule] = {
    "conv2d": conv2d,
    "convolution": convolution,
    "linear": linear,
    "batch_norm": batch_norm,
    "max_pool2d": max_pool2d,
    "avg_pool2d": avg_pool2d,
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "_adaptive_avg_pool2d": adaptive_avg_pool2d,
    "mean": mean,
    "pad": pad,
    "constant_pad_nd": constant_pad_nd,
    "cat": cat,
    "concat": cat,
    "concatenate": cat,
    "identity": identity,
    "contiguous": contiguous,
    "dropout": dropout,
    "dropout2d": dropout,
    "feature_dropout": dropout,
    "clamp": clamp,
    "clamp_": clamp,
    "hardtanh": hardtanh,
    "relu6": _elementwise("clamp", 0.0, 6.0),
    "leaky_relu": _with_numbers("leaky_relu", negative_slope=0.01),
    "elu": _with_numbers("elu", alpha=1.0),
    "softplus": _with_numbers("softplus", beta=1.0, threshold=20.0),
    "gelu": gelu,
    "add": binary("add", "add_number"),
    "add_": binary("add", "add_number"),
    "iadd": binary("add", "add_number"),
    "sub": binary("sub", "add_number"),
    "sub_": binary("sub", "add_number"),
    "isub": binary("sub", "add_number"),
    "mul": binary("mul", "mul_number"),
    "mul_": binary("mul", "mul_number"),
    "imul": binary("mul", "mul_number"),
}
for _name in (
    *("relu", "sigmoid", "tanh", "silu", "mish", "hardswish", "hardsigmoid"),
    *("abs", "exp"),
):
    FUNCTIONS[_name] = FUNCTIONS[f"{_name}_"] = _elementwise(_name)
