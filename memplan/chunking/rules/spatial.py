"""Convolution and pooling."""

from __future__ import annotations

from typing import NamedTuple

from memplan.chunking.rules.flow import (
    Call,
    Flow,
    Rule,
    Slice,
    changed,
    given,
    integers,
    needing,
    part_of,
    rule,
    shape,
)
from memplan.chunking.rules.lowered import (
    windowed_conv,
    windowed_pool,
    windowed_transposed_conv,
)
from memplan.graph.program import Argument, Bound, extent


class Stencil(NamedTuple):
    """What a convolution or pooling reads in each spatial dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def reach(self, axis: int) -> int:
        """From the first element that a result reads to the last."""
        return self.dilation[axis] * (self.kernel[axis] - 1)

    def plain(self, axis: int) -> bool:
        """Whether each result reads the one element in its own place."""
        values = (self.kernel[axis], self.stride[axis], self.padding[axis])
        return values == (1, 1, 0)

    def needed(self, out: Slice, axis: int) -> Slice:
        """The elements that a slice of the result reads.

        A result [lo, hi) reads [lo * stride - padding, (hi - 1) * stride - padding +
        reach + 1).
        """
        stride, pad = self.stride[axis], self.padding[axis]
        after = out.after * stride + self.reach(axis) + 1 - stride - pad
        return Slice(out.dim, out.ratio * stride, out.before * stride + pad, after)

    def part(self, call: Call, out: Slice, axis: int) -> tuple[int, Bound, Bound]:
        """The dimension, and what of its padding a slice reads in front and behind."""
        stride, pad = self.stride[axis], self.padding[axis]
        window = call.window(out)
        size = call.operands[0].shape[out.dim]
        behind = self.reach(axis) + 1 - stride - pad - size
        return (
            out.dim,
            Bound(window, low=-stride, high=0, constant=pad, least=0),
            Bound(window, low=0, high=stride, constant=behind, least=0),
        )


@rule("convolution conv1d conv2d conv3d")
@rule("conv_transpose1d conv_transpose2d conv_transpose3d")
def convolution(call: Call, out: Slice) -> Flow | None:
    """x [N, C, ...], weight [O, C / groups, ...]."""
    x, weight = shape(call, "input"), shape(call, "weight")
    if x is None or weight is None or len(x) != len(weight) or len(x) < 3:
        return None
    if out.dim == 0:
        return Flow(needing(call, {"input": out}))
    return _channels(call, out, x[1]) if out.dim == 1 else _places(call, out, weight)


def _places(call: Call, out: Slice, weight: tuple[int, ...]) -> Flow | None:
    """A spatial dimension."""
    arguments = given(call)
    stencil, axis = _stencil(arguments, weight[2:]), out.dim - 2
    if stencil is None:
        return None
    if _transposed(call):
        return _spread(call, out, stencil)
    if stencil.plain(axis):
        return Flow(needing(call, {"input": out}))
    if stencil.padding[axis] > stencil.reach(axis):
        return None  # a slice at the rim may read nothing but zeros
    args = (
        *(arguments[name] for name in ("input", "weight", "bias")),
        (*map(list, stencil[1:]), arguments["groups"]),
        stencil.part(call, out, axis),
    )
    needs = needing(call, {"input": stencil.needed(out, axis)})
    return Flow(needs, windowed_conv, args, {})


def _spread(call: Call, out: Slice, stencil: Stencil) -> Flow:
    """A transposed convolution: x's element i lies in the results
    [i * stride - padding, i * stride - padding + reach]."""
    arguments, axis = given(call), out.dim - 2
    stride, pad, reach = (
        stencil.stride[axis],
        stencil.padding[axis],
        stencil.reach(axis),
    )
    beyond = list(integers(arguments["output_padding"], len(stencil.stride)))
    beyond[axis] = max(0, beyond[axis] - pad)
    # What lies in the wanted part; and, where no element does, what lies around it.
    before = max((out.before - pad + reach) // stride, -((pad - out.before) // stride))
    end = out.after + pad - reach - 1 - beyond[axis]
    after = max((out.after - 1 + pad) // stride + 1, -(-end // stride) + 1)
    need = Slice(out.dim, out.ratio / stride, max(0, before), max(0, after))
    padding = [0 if i == axis else each for i, each in enumerate(stencil.padding)]
    made = call.window(need, call.operands[0].shape)
    wanted = call.window(out)
    args = (
        *(arguments[name] for name in ("input", "weight", "bias")),
        (list(stencil.stride), padding, list(stencil.dilation), beyond),
        arguments["groups"],
        (out.dim, *part_of(made, stride, -pad, wanted)),
    )
    needs = needing(call, {"input": need})
    return Flow(needs, windowed_transposed_conv, args, {})


def _channels(call: Call, out: Slice, inputs: int) -> Flow | None:
    """Filters are independent; each of a depthwise convolution reads one channel."""
    arguments = given(call)
    groups, filters = arguments["groups"], out._replace(dim=0)
    if _transposed(call):
        if groups != 1:
            return None
        return Flow(needing(call, {"weight": out, "bias": filters}))
    slices: dict[str, Slice | None] = {"weight": filters, "bias": filters}
    if groups == 1:
        return Flow(needing(call, slices))
    if groups != inputs or groups != call.shape[1]:
        return None
    needs = needing(call, {**slices, "input": out})
    return changed(call, needs, {"groups": extent(call.window(out))})


def _transposed(call: Call) -> bool:
    return "conv_transpose" in call.op.key or bool(given(call).get("transposed"))


def _stencil(arguments: dict[str, Argument], kernel: tuple[int, ...]) -> Stencil | None:
    count = len(kernel)
    stride = integers(arguments["stride"], count)
    dilation = integers(arguments["dilation"], count)
    padding = arguments["padding"]
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if any(each % 2 for each in total):
            return None  # one more behind than in front
        padding = [each // 2 for each in total]
    if padding == "valid":
        padding = [0]
    return Stencil(kernel, stride, integers(padding, count), dilation)


@rule("max_pool2d")
def max_pool(call: Call, out: Slice) -> Flow | None:
    """The dimensions before the last two as they are, those with their neighbours."""
    if not call.result.dtype.is_floating_point:
        return Flow((out,)) if out.dim < len(call.shape) - 2 else None
    return _pooling(call, out, "max_pool2d", float("-inf"), ())


@rule("avg_pool2d")
def avg_pool(call: Call, out: Slice) -> Flow | None:
    """As max_pool, where padding counts in the mean or there is none."""
    arguments = given(call)
    counts, divisor = arguments["count_include_pad"], arguments["divisor_override"]
    padding = integers(arguments["padding"], 2)
    axis = out.dim - (len(call.shape) - 2)
    if axis >= 0 and padding[axis] and not counts:
        return None
    return _pooling(call, out, "avg_pool2d", 0.0, (False, counts, divisor))


def _pooling(
    call: Call, out: Slice, name: str, fill: float, rest: tuple[Argument, ...]
) -> Flow | None:
    """A pooling in two dimensions; rest: its arguments after the stencil's."""
    axis = out.dim - (len(call.shape) - 2)
    if axis < 0:
        return Flow((out,))
    arguments = given(call)
    kernel = integers(arguments["kernel_size"], 2)
    stride = integers(arguments["stride"] or kernel, 2)
    padding = integers(arguments["padding"], 2)
    dilation = integers(arguments.get("dilation", 1), 2)
    stencil = Stencil(kernel, stride, padding, dilation)
    for i, size in enumerate(call.operands[0].shape[-2:]):
        floor = (size + 2 * padding[i] - stencil.reach(i) - 1) // stride[i] + 1
        if call.shape[len(call.shape) - 2 + i] != floor:
            return None  # rounded up: a window lies partly outside
    unpadded = [0 if i == axis else pad for i, pad in enumerate(padding)]
    dilated = [list(dilation)] if "dilation" in arguments else []
    options = (list(kernel), list(stride), unpadded, *dilated, *rest)
    part = stencil.part(call, out, axis)
    args = (call.op.args[0], name, options, part, fill)
    return Flow((stencil.needed(out, axis),), windowed_pool, args, {})


def outer_dims(spatial: int) -> Rule:
    """Dimensions before the `spatial` last ones, which such an operator mixes."""

    def rule(call: Call, out: Slice) -> Flow | None:
        before = out.dim < len(call.shape) - spatial
        return Flow((out,)) if before and len(call.operands) == 1 else None

    return rule


rule("avg_pool1d max_pool1d adaptive_avg_pool1d adaptive_max_pool1d")(outer_dims(1))
rule("adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d")(outer_dims(2))
rule("max_pool2d_with_indices")(outer_dims(2))
rule("avg_pool3d max_pool3d")(outer_dims(3))
rule("adaptive_avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d")(outer_dims(3))
