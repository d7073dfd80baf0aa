"""Rules: what a call of an ATen operator is as a layer. One rule an operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from memplan.fusing.given import (
    ASYMMETRIC,
    NO_BATCH,
    NO_ELEMENTS,
    padding_of,
    refusal,
)
from memplan.fusing.layers import Convolution, Layer, Norm
from memplan.fusing.operators import OPERATORS, Operation, Pool
from memplan.fusing.phases import MOST
from memplan.graph.program import Meta, Program, Ref

UNSUPPORTED = "is not a supported layer"


class UnsupportedError(Exception):
    """Why torch runs an operator: the reason."""


class Call:
    """A call of an operator, and the layer that its rule makes of it.

    program: that it is in. given: its arguments by their names in the operator's
    schema, those left out at their defaults. x: the first of them.
    """

    def __init__(self, layer: Layer, program: Program) -> None:
        self.layer, self.program = layer, program
        target: Any = layer.op.target
        parameters = target._schema.arguments
        self.defaults = {each.name: each.default_value for each in parameters}
        passed = dict(zip(self.defaults, layer.op.args, strict=False))
        self.given: dict[str, Any] = {**self.defaults, **passed, **layer.op.kwargs}
        self.x = next(iter(self.given.values()))

    def meta(self, value: object) -> Meta | None:
        """Of a Ref's tensor; None for anything else."""
        found = self.program.metas.get(value.name) if isinstance(value, Ref) else None
        return found if isinstance(found, Meta) else None

    def planes(self, value: object = None) -> tuple[int, int, int, int]:
        """The shape (n, c, h, w) of a value, of `x` if None; vectors (n, c) have planes
        of one element.

        Raises UnsupportedError for values of another rank.
        """
        meta = self.meta(self.x if value is None else value)
        shape = () if meta is None else meta.shape
        if len(shape) == 2:
            shape = (*shape, 1, 1)
        if 0 in shape:
            raise UnsupportedError(NO_ELEMENTS)
        if len(shape) != 4:
            raise UnsupportedError("its input does not have the shape (n, c, h, w)")
        return shape

    def weight(self, name: str) -> str:
        """The name in the model of the tensor that an argument is.

        Raises UnsupportedError for tensors that are no parameters and no buffers.
        """
        value = self.given[name]
        found = value and self.program.constants.get(value.name)
        if not found:
            raise UnsupportedError("its weights are not parameters of the model")
        return found

    def weight_or_none(self, name: str) -> str | None:
        """The `weight` of an argument that may be left out."""
        return None if self.given[name] is None else self.weight(name)

    def pair(self, name: str, default: int = 1) -> tuple[int, int]:
        """An argument that is one number for height and width, or both."""
        value = self.given.get(name, default)
        values = [value] if isinstance(value, int) else list(value)
        height, width = values * 2 if len(values) == 1 else values
        if not isinstance(height, int) or not isinstance(width, int):
            raise UnsupportedError("its sizes depend on data")
        return height, width

    def operation(self, operation: Operation, *others: Ref) -> None:
        """Make the layer an operation of a stack, of `x` and `others`."""
        self.layer.kind, self.layer.operation = "operation", operation
        self.layer.inputs = [each.name for each in (self.x, *others)]

    def same(self) -> None:
        """Make the layer one whose value is that of `x`."""
        self.layer.kind, self.layer.inputs = "same", [self.x.name]

    def convolution(self, padding: tuple[int, int]) -> None:
        """Make the layer a convolution; of vectors (n, c) it is one of planes of one
        element."""
        self.layer.kind, self.layer.inputs = "convolution", [self.x.name]
        self.layer.convolution = Convolution(
            self.weight("weight"),
            self.weight_or_none("bias"),
            self.pair("stride"),
            padding,
            self.pair("dilation"),
            self.given.get("groups", 1),
        )


def linear_of_planes(call: Call) -> None:
    call.planes()
    call.convolution((0, 0))


def linear(call: Call) -> None:
    meta = call.meta(call.x)
    if meta is not None and len(meta.shape) == 1:
        raise UnsupportedError(NO_BATCH)
    if meta is not None and not meta.contiguous:
        raise UnsupportedError("its input does not lie row by row in memory")
    if meta is None or len(meta.shape) != 2:
        raise UnsupportedError("its input does not have the shape (n, c)")
    linear_of_planes(call)


def conv2d(call: Call) -> None:
    meta, weight = call.meta(call.x), call.meta(call.given["weight"])
    if meta is not None and len(meta.shape) == 3:
        raise UnsupportedError(NO_BATCH)
    call.planes()
    padding = call.given["padding"]
    if isinstance(padding, str) and weight is not None:
        padding = padding_of(padding, weight.shape[-2:], call.given["dilation"])
        if padding is None:
            raise UnsupportedError(ASYMMETRIC)
        call.given["padding"] = padding
    call.convolution(call.pair("padding"))


def rewritten(why: Callable[[Call], str]) -> Rule:
    """A convolution that kernels run in another form, but not as it is. why: the
    reason if `given.convolution` takes it."""

    def rule(call: Call) -> None:
        reason = refusal(call.layer.op, call.program)
        raise UnsupportedError(reason or why(call))

    return rule


LEFT_OUT = "the kernels that could run it are left out"


def _of_volumes(call: Call) -> str:
    return LEFT_OUT if call.given["groups"] == 1 else "it has groups"


def _of_phases(call: Call) -> str:
    if call.given["groups"] != 1 or call.pair("dilation") != (1, 1):
        return "it is transposed and has groups or dilation"
    stride = call.pair("stride")
    if min(stride) < 2 or max(stride) > MOST:
        return f"it is transposed and its stride is not from 2 to {MOST}"
    size, weight = call.meta(Ref(call.layer.name)), call.meta(call.given["weight"])
    assert size is not None
    assert weight is not None
    rests = zip(size.shape[2:], weight.shape[2:], stride, strict=True)
    if any(made % step or taps < step for made, taps, step in rests):
        return "it is transposed and its stride does not divide its result"
    return LEFT_OUT


def convolution(call: Call) -> None:
    if call.given["transposed"]:
        raise UnsupportedError("it is transposed")
    conv2d(call)


def pad(call: Call) -> None:
    """Zeros around planes, given as left, right, above, below."""
    call.planes()
    given, layer = call.given, call.layer
    sizes = [*given["pad"], *(0,) * (4 - len(given["pad"]))]
    if given.get("mode", "constant") != "constant" or given["value"] not in (None, 0):
        raise UnsupportedError("it does not pad with zeros")
    if len(sizes) != 4 or not all(isinstance(each, int) for each in sizes):
        raise UnsupportedError("it pads other dimensions than height and width")
    if min(sizes) < 0:
        raise UnsupportedError("its padding is negative")
    if not any(sizes):
        call.same()
        return
    left, right, above, below = sizes
    layer.kind, layer.inputs = "pad", [call.x.name]
    layer.pad = above, below, left, right
    layer.reason = "no convolution can take over its padding"


def batch_norm(call: Call) -> None:
    if call.given["training"]:
        raise UnsupportedError("it uses batch statistics")
    call.planes()
    mean, var = call.weight("running_mean"), call.weight("running_var")
    weight, bias = map(call.weight_or_none, ("weight", "bias"))
    call.operation(Operation("affine"))
    call.layer.norm = Norm(mean, var, weight, bias, float(call.given["eps"]))


def pool2d(mode: str) -> Rule:
    def rule(call: Call) -> None:
        given, kernel = call.given, call.pair("kernel_size")
        pool = Pool(
            mode,
            kernel,
            call.pair("stride") if given["stride"] else kernel,
            call.pair("padding"),
            call.pair("dilation"),
            bool(given["ceil_mode"]),
            bool(given.get("count_include_pad", True)),
            given.get("divisor_override"),
        )
        *_, height, width = call.planes()
        call.operation(Operation("pool", pool=pool.within((height, width))))

    return rule


def average_to(call: Call, size: Sequence[int | None]) -> None:
    """Where the plane divides into the output, it is average pooling; see
    `torch.nn.AdaptiveAvgPool2d`."""
    *_, height, width = call.planes()
    out = [size[0] or height, size[1] or width]
    if height % out[0] or width % out[1]:
        raise UnsupportedError("its windows differ in size")
    if [height, width] == out:
        call.same()
        return
    kernel = height // out[0], width // out[1]
    call.operation(Operation("pool", pool=Pool("average", kernel, kernel)))


def mean(call: Call) -> None:
    call.planes()
    dim = call.given.get("dim")
    if not dim or not call.given["keepdim"] or sorted(x % 4 for x in dim) != [2, 3]:
        raise UnsupportedError("it is not a mean over height and width")
    average_to(call, (1, 1))


Rule = Callable[[Call], None]


def called(kind: str) -> Rule:
    """An operator whose arguments behind the value are its numbers; others that it may
    have are at their defaults."""

    def rule(call: Call) -> None:
        call.planes()
        _, *names = call.defaults
        numbers = OPERATORS[kind].numbers
        chosen = [call.given[name] for name in numbers]
        others = [name for name in names if name not in numbers]
        if not all(map(_is_number, chosen)) or any(
            call.given[name] != call.defaults[name] for name in others
        ):
            raise UnsupportedError("it has unsupported arguments")
        call.operation(Operation(kind, tuple(map(float, chosen))))

    return rule


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def clamp(low: str, high: str) -> Rule:
    """low, high: names of the arguments that are the bounds."""

    def rule(call: Call) -> None:
        call.planes()
        given = call.given[low], call.given[high]
        pairs = zip(given, (-math.inf, math.inf), strict=True)
        bounds = [free if each is None else each for each, free in pairs]
        if not all(isinstance(each, int | float) for each in bounds):
            raise UnsupportedError("its bounds are tensors")
        if not bounds[0] <= bounds[1]:
            raise UnsupportedError("its bounds are in the wrong order")
        call.operation(Operation("clamp", (float(bounds[0]), float(bounds[1]))))

    return rule


def gelu(call: Call) -> None:
    call.planes()
    plain = call.given["approximate"] == "none"
    call.operation(Operation("gelu" if plain else "gelu_tanh"))


def binary(kind: str, number: str) -> Rule:
    """Addition and its like: of two tensors of one shape, or of one and a number."""

    def rule(call: Call) -> None:
        y = call.given["other"]
        if call.given.get("alpha", 1) != 1:
            raise UnsupportedError("one of its operands is scaled")
        shape: tuple[int, ...] = call.planes()
        if _is_number(y):
            value = -float(y) if kind == "sub" else float(y)
            call.operation(Operation(number, (value,)))
            return
        one, two = call.meta(call.x), call.meta(y)
        if one is None or two is None or one.dtype != two.dtype:
            raise UnsupportedError("its operands have different types")
        other = two.shape + (1, 1) * (len(two.shape) == 2)
        if kind == "mul" and shape[2:] == (1, 1) != other[2:]:
            call.x, y, shape, other = y, call.x, other, shape
        if other == shape:
            call.operation(Operation(kind), y)
        elif kind == "mul" and other == (*shape[:2], 1, 1):
            call.operation(Operation("gate"), y)
        else:
            raise UnsupportedError("its operands have different shapes")

    return rule


def cat(call: Call) -> None:
    tensors, layer = call.given["tensors"], call.layer
    shapes = [call.planes(each) for each in tensors]
    if call.given["dim"] % 4 != 1:
        raise UnsupportedError("it does not concatenate channels")
    if len({(n, h, w) for n, _, h, w in shapes}) > 1:
        raise UnsupportedError("its inputs differ in height, width or batch")
    layer.kind, layer.inputs = "cat", [each.name for each in tensors]


RULES: dict[str, Rule] = {
    "aten.conv2d": conv2d,
    "aten.convolution": convolution,
    "aten.conv1d": rewritten(lambda _: "its signals have one element"),
    "aten.conv3d": rewritten(_of_volumes),
    "aten.conv_transpose1d": rewritten(lambda _: "it is transposed"),
    "aten.conv_transpose2d": rewritten(_of_phases),
    "aten.conv_transpose3d": rewritten(lambda _: "it is transposed"),
    "aten.linear": linear,
    "memplan.linear_of_planes": linear_of_planes,
    "memplan.convolution_of_rows": conv2d,
    "aten.batch_norm": batch_norm,
    "aten.max_pool2d": pool2d("max"),
    "aten.avg_pool2d": pool2d("average"),
    "aten.adaptive_avg_pool2d": lambda call: average_to(
        call, call.given["output_size"]
    ),
    "aten.mean": mean,
    "aten.pad": pad,
    "aten.constant_pad_nd": pad,
    "aten.cat": cat,
    "aten.clamp": clamp("min", "max"),
    "aten.hardtanh": clamp("min_val", "max_val"),
    "aten.gelu": gelu,
    "aten.add": binary("add", "add_number"),
    "aten.sub": binary("sub", "add_number"),
    "aten.mul": binary("mul", "mul_number"),
    **{f"aten.{kind}": called(kind) for kind, each in OPERATORS.items() if each.called},
}
