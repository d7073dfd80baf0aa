"""Random stacks, and tensors for them, for tests of kernels."""

from __future__ import annotations

import random
from typing import Any

from memplan.errors import UsageError
from memplan.fusing.collapse import Stack, collapse
from memplan.fusing.kernel import Kernel, place
from memplan.fusing.operators import OPERATORS, Operation, Pool
from memplan.fusing.patches import Device

CPU = Device(1 << 20)


def run(kernel: Kernel, x: Any, operands: Any = (), out: Any = None, n: int = 1) -> Any:
    """What a kernel makes of tensors that may lie in any way, on so many threads."""
    import torch

    last = kernel.layout == "channels_last"
    form = torch.channels_last if last else torch.contiguous_format

    def lies(tensor: Any) -> Any:
        there = tensor.dim() < 4 or place(tensor, kernel.layout) is not None
        return tensor if there else tensor.contiguous(memory_format=form)

    x, operands = lies(x), list(map(lies, operands))
    if out is None:
        shape = kernel.out_shape(tuple(x.shape))
        out = torch.empty(shape, dtype=x.dtype, memory_format=form)
    kernel.bind(x, operands, out)(n)
    return out


def random_pool(draw: random.Random) -> Pool:
    mode = draw.choice(["max", "max", "average"])
    kernel = draw.choice([(3, 3), (2, 2), (3, 3), (5, 5), (1, 3), (4, 2), (7, 1)])
    stride = draw.choice([(1, 1), (2, 2), kernel, (3, 1), (1, 2)])
    dilated = mode == "max" and draw.random() < 0.25
    dilation = draw.choice([(2, 1), (1, 2), (2, 2)]) if dilated else (1, 1)
    padding = (draw.randint(0, kernel[0] // 2), draw.randint(0, kernel[1] // 2))
    ceil, counted = draw.random() < 0.3, draw.random() < 0.6
    divisor = draw.choice([None, None, None, 5]) if mode == "average" else None
    return Pool(mode, kernel, stride, padding, dilation, ceil, counted, divisor)


def random_operations(draw: random.Random, kind: str | None = None) -> list[Operation]:
    """One operation, at times with another that keeps its values small."""
    kind = kind or draw.choice(sorted(OPERATORS))
    count = len(OPERATORS[kind].numbers)
    numbers = tuple(round(draw.uniform(0.1, 1.5), 3) for _ in range(count))
    if kind == "clamp":
        numbers = (-0.75, 3.5)
    if kind == "softplus":
        numbers = (numbers[0], 20.0)
    ahead = [Operation("clamp", (-3.0, 3.0))] if kind == "exp" else []
    return [*ahead, Operation(kind, numbers)]


def random_stack(draw: random.Random, most: int = 4) -> Stack:
    operations: list[Operation] = []
    while not operations:
        for _ in range(draw.randint(0, most)):
            for _ in range(draw.choice([0, 1, 1, 2])):
                operations += random_operations(draw)
            operations.append(Operation("pool", pool=random_pool(draw)))
        for _ in range(draw.choice([0, 1, 2])):
            operations += random_operations(draw)
    return collapse(operations, (512, 512), CPU, draw.choice([None, None, 1, 2]))


def fitting(stack: Stack, height: int, width: int) -> tuple[int, int]:
    """This size, or one just large enough for something to come out."""
    while True:
        try:
            stack.out_size(height, width)
        except UsageError:
            height, width = height + 1, width + 1
        else:
            return height, width


def random_tensors(
    stack: Stack, shape: tuple[int, int, int, int], dtype: Any, seed: int
) -> tuple[Any, list[Any]]:
    """An input, and operands as the stack takes them."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Any:
        return torch.randn(sizes, generator=generator)

    images, channels, *plane = shape
    x = normal(*shape).to(dtype)
    operands = []
    size = (plane[0], plane[1])
    for operation in stack.operations:
        if operation.pool is not None:
            size = operation.pool.size(*size)
        for kind in operation.operands:
            if kind == "channel":
                operands.append(normal(channels) * 0.5 + 0.5)
            elif kind == "image":
                operands.append(normal(images, channels).to(dtype))
            else:
                operands.append(normal(images, channels, *size).to(dtype))
    return x, operands


def sprinkle(x: Any, seed: int) -> None:
    """Put some NaN and infinities into a tensor."""
    import torch

    draw = random.Random(seed)
    flat = x.view(-1)
    for _ in range(draw.randint(1, 4)):
        value = draw.choice([torch.nan, torch.inf, -torch.inf])
        flat[draw.randrange(flat.numel())] = value


def differences(got: Any, want: Any, tolerance: float) -> list[str]:
    """How a result differs from what torch has; empty if within the tolerance, which
    is relative to the largest finite value."""
    import torch

    if got.shape != want.shape:
        return [f"shape {tuple(got.shape)}, not {tuple(want.shape)}"]
    got, want = got.double(), want.double()
    found = []
    if not torch.equal(got.isnan(), want.isnan()):
        found.append(f"NaN at {int((got.isnan() != want.isnan()).sum())} places")
    infinite = want.isinf()
    if (
        not torch.equal(got[infinite], want[infinite])
        or got.isinf().sum() > infinite.sum()
    ):
        found.append("infinities")
    finite = want.isfinite() & got.isfinite()
    if finite.any():
        scale = max(float(want[finite].abs().max()), 1e-30)
        worst = float((got[finite] - want[finite]).abs().max()) / scale
        if worst > tolerance:
            found.append(f"relative error {worst:.2e}")
    return found
