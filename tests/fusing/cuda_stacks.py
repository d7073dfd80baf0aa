"""Random stacks, the tensors they take, and torch's own results of them."""

from __future__ import annotations

import math
import random
from typing import Any

from memplan.fusing.collapse import Stack
from memplan.fusing.operators import OPERATORS, Operation, Pool
from memplan.fusing.reference import reference

NUMBERS = {
    "clamp": (-0.5, 1.25),
    "leaky_relu": (0.1,),
    "elu": (0.7,),
    "softplus": (2.0, 3.0),
    "add_number": (0.3,),
    "mul_number": (-1.7,),
}


def random_elementwise(chance: random.Random) -> Operation:
    """One of all the operations, with infinite bounds now and then, too."""
    kind = chance.choice(sorted(OPERATORS))
    numbers = NUMBERS.get(kind, ())
    if kind == "clamp":
        numbers = chance.choice(
            [(-0.5, 1.25), (-math.inf, 0.5), (0.0, math.inf), (2.0, -1.0)]
        )
    return Operation(kind, numbers)


def random_pool(chance: random.Random, height: int, width: int) -> Pool | None:
    """A pool that leaves something of a plane; None if none was found."""
    for _ in range(20):
        mode = chance.choice(["max", "average"])
        kernel = (chance.randint(1, 4), chance.randint(1, 4))
        if chance.random() < 0.1:
            kernel = (height, width)
        dilation = (1, 1)
        if mode == "max" and chance.random() < 0.4:
            dilation = (chance.randint(1, 3), chance.randint(1, 3))
        padding = (
            chance.randint(0, kernel[0] // 2),
            chance.randint(0, kernel[1] // 2),
        )
        pool = Pool(
            mode,
            kernel,
            (chance.randint(1, 3), chance.randint(1, 3)),
            padding,
            dilation,
            chance.random() < 0.4,
            chance.random() < 0.5,
            chance.choice([None, None, 3]) if mode == "average" else None,
        )
        if min(pool.size(height, width)) >= 1:
            return pool
    return None


def random_operations(
    chance: random.Random, height: int, width: int, pools: int
) -> list[Operation]:
    """Up to so many pools, with element-wise operations before, between and behind."""
    found = [random_elementwise(chance) for _ in range(chance.randint(0, 2))]
    for _ in range(pools):
        pool = random_pool(chance, height, width)
        if pool is None:
            break
        height, width = pool.size(height, width)
        found.append(Operation("pool", pool=pool))
        found += [random_elementwise(chance) for _ in range(chance.randint(0, 2))]
    return found or [random_elementwise(chance)]


def operands_for(
    operations: list[Operation], shape: tuple[int, ...], dtype: Any
) -> list[Any]:
    """Random operands of a stack for values of this shape."""
    import torch

    images, channels, height, width = shape
    found = []
    for operation in operations:
        if operation.pool is not None:
            height, width = operation.pool.size(height, width)
        for kind in operation.operands:
            if kind == "channel":
                found.append(torch.randn(channels))
            elif kind == "image":
                found.append(torch.randn(images, channels).to(dtype))
            else:
                found.append(torch.randn(images, channels, height, width).to(dtype))
    return found


def by_torch(operations: list[Operation], value: Any, operands: list[Any]) -> Any:
    """What torch makes of a float32 value, operation by operation."""
    left = list(operands)
    for operation in operations:
        taken, left = left[: len(operation.operands)], left[len(operation.operands) :]
        if operation.kind == "gelu":
            # As CUDA has it: on a CPU torch makes NaN of infinity.
            value = value * 0.5 * (1 + (value * math.sqrt(0.5)).erf())
        else:
            value = reference(Stack((operation,), (), value.shape[2:]), value, taken)
    return value
