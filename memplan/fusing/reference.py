"""Stacks by torch's own operators, one after the other: what kernels must equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.nn.functional as f
from torch import Tensor

from memplan.errors import UsageError
from memplan.fusing.collapse import Stack
from memplan.fusing.operators import OPERATORS, Operation, Pool


def reference(stack: Stack, x: Tensor, operands: Sequence[Tensor] = ()) -> Tensor:
    """What the stack makes of `x`, layer by layer: where there is no compiler.

    Shapes as in `Kernel.run`; any device and dtype that torch has the operators for.
    Raises UsageError for a wrong number of operands.
    """
    if len(operands) != len(stack.operands):
        raise UsageError(
            f"the stack takes {len(stack.operands)} operands, not {len(operands)}"
        )
    rest = iter(operands)
    for operation in stack.operations:
        taken = _shaped(operation, rest, x)
        if operation.pool is not None:
            x = _pool(operation.pool, x, taken)
        else:
            x = OPERATORS[operation.kind].torch(x, *taken, *operation.numbers)
    return x


def _shaped(
    operation: Operation, operands: Iterator[Tensor], x: Tensor
) -> list[Tensor]:
    """The next operands, to be broadcast over the value and of its dtype."""
    found = []
    for kind in operation.operands:
        operand = next(operands).to(x.dtype)
        if kind == "channel":
            operand = operand.reshape(1, -1, 1, 1)
        elif kind == "image":
            operand = operand.reshape(*x.shape[:2], 1, 1)
        found.append(operand)
    return found


def _pool(pool: Pool, x: Tensor, operands: list[Tensor]) -> Tensor:
    if pool.mode == "depthwise":
        channels = x.shape[1]
        *taps, bias = operands[0][:, :channels]
        weight = taps[0].new_empty(channels, 1, *pool.kernel)
        for tap, place in zip(taps, weight.view(channels, -1).unbind(1), strict=True):
            place.copy_(tap)
        (down, across), (below, right) = pool.padding, pool.behind
        x = f.pad(x, (across, across + right, down, down + below))
        numbers = pool.stride, 0, pool.dilation
        return f.conv2d(x, weight, bias, *numbers, groups=channels)
    if pool.mode == "max":
        result: Tensor = f.max_pool2d(
            x, pool.kernel, pool.stride, pool.padding, pool.dilation, pool.ceil
        )
        return result
    averaged: Tensor = f.avg_pool2d(
        x,
        pool.kernel,
        pool.stride,
        pool.padding,
        pool.ceil,
        pool.count_padding,
        pool.divisor,
    )
    return averaged
