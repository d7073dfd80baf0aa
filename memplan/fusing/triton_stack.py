"""Stacks on a GPU: each step is a Triton kernel, generated from the operator table.

None of it has run on a GPU. Tests run it on the CPU, by Triton's interpreter.
"""

from __future__ import annotations

import functools
import linecache
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from memplan.errors import EnvironmentUnfitError, UsageError
from memplan.fusing.collapse import Step, pools_of, sizes, steps_of
from memplan.fusing.kernel import check, operand_shape
from memplan.fusing.operators import OPERATORS, Operation, Pool

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

BLOCK = 1024  # elements of the result that a program computes

# The functions of `Operator.code`. They call only Triton's built-in functions: those
# of its library are compiled where they are imported, and the interpreter cannot run
# them afterwards.
_FUNCTIONS = """\
import triton
import triton.language as tl

@triton.jit
def larger(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)

@triton.jit
def clamp(x, low, high):
    above = tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(above, high, propagate_nan=tl.PropagateNan.ALL)

@triton.jit
def expm1(x):
    return tl.exp(x) - 1.0

@triton.jit
def log1p(x):
    return tl.log(1.0 + x)

@triton.jit
def tanh(x):
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0.0, -size, size)

@triton.jit
def mish(x):
    return x * tanh(log1p(tl.exp(x)))
"""

_KERNEL = """
@triton.jit
def kernel(source, target, {parameters}count, channels, height, width, rows, columns):
    i = tl.program_id(0).to(tl.int64) * {block} + tl.arange(0, {block})
    live = i < count
{place}
{body}
    tl.store(target + i, v, mask=live)
"""

_WINDOW = """
    top = row * {stride[0]} - {padding[0]}
    left = column * {stride[1]} - {padding[1]}
    v = tl.full([{block}], {neutral}, tl.float32)
    for down in range({kernel[0]}):
        for across in range({kernel[1]}):
            y = top + down * {dilation[0]}
            x = left + across * {dilation[1]}
            inside = live & (y >= 0) & (y < height) & (x >= 0) & (x < width)
            at = {at}
            u = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
{before}
            u = tl.where(inside, u, {neutral})
            v = {combined}
"""

# Of an element i of the result: its place, and that of (y, x) in the source.
_PLACE = {
    "channels_first": """\
    column, row = i % columns, i // columns % rows
    c = i // columns // rows % channels
    n = i // columns // rows // channels""",
    "channels_last": """\
    c, column = i % channels, i // channels % columns
    row = i // channels // columns % rows
    n = i // channels // columns // rows""",
}
_AT = {
    "channels_first": "((n * channels + c) * height + y) * width + x",
    "channels_last": "((n * height + y) * width + x) * channels + c",
}


def source_of(step: Step, layout: str) -> str:
    """A step's kernel as Python source; layout: one of `generate.LAYOUTS`.

    Arguments: source, target, the operands in order, the number of elements of the
    target, channels, height and width of the source's planes and of the target's.
    """
    if step.pool is None:
        load = "    v = tl.load(source + i, mask=live, other=0.0).to(tl.float32)"
        body = [load, *_statements(step.before, 0, "v", "i", "live", 4)]
    else:
        body = [_window(step, step.pool, layout)]
        if step.pool.mode == "average":
            body.append(f"    v = v / {_divisor(step.pool)}")
        first = _operands(step.before)
        body += _statements(step.after, first, "v", "i", "live", 4)
    count = _operands(step.operations)
    return _FUNCTIONS + _KERNEL.format(
        parameters="".join(f"p{number}, " for number in range(count)),
        block=BLOCK,
        place=_PLACE[layout],
        body="\n".join(body),
    )


def _window(step: Step, pool: Pool, layout: str) -> str:
    most = pool.mode == "max"
    return _WINDOW.format(
        **pool._asdict(),
        block=BLOCK,
        at=_AT[layout],
        neutral='float("-inf")' if most else "0.0",
        before="\n".join(_statements(step.before, 0, "u", "at", "inside", 12)),
        combined="larger(v, u)" if most else "v + u",
    )


def _divisor(pool: Pool) -> str:
    """How many elements of a window an average counts."""
    if pool.divisor is not None:
        return str(float(pool.divisor))
    lengths = []
    for axis, (first, size) in enumerate((("top", "height"), ("left", "width"))):
        end = f"{first} + {pool.kernel[axis]}"
        if pool.count_padding:
            padded = f"{size} + {pool.padding[axis]}"
            lengths.append(f"(tl.minimum({end}, {padded}) - {first})")
        else:
            lengths.append(f"(tl.minimum({end}, {size}) - tl.maximum({first}, 0))")
    return f"({' * '.join(lengths)}).to(tl.float32)"


def _statements(
    operations: Sequence[Operation],
    number: int,
    value: str,
    at: str,
    mask: str,
    indent: int,
) -> list[str]:
    """Lines that apply element-wise operations to a value.

    number: of the first operand. at: where the value is in a tensor of its shape.
    """
    places = {"channel": "c", "image": "n * channels + c", "tensor": at}
    lines = []
    for operation in operations:
        names = []
        for kind in operation.operands:
            read = f"tl.load(p{number} + {places[kind]}, mask={mask}, other=0.0)"
            lines.append(f"a{number} = {read}.to(tl.float32)")
            names.append(f"a{number}")
            number += 1
        lines.append(f"{value} = {expression(operation, value, names)}")
    return [" " * indent + line for line in lines]


def expression(operation: Operation, x: str, operands: Sequence[str]) -> str:
    """`Operator.code` in Python: `a ? b : c` is `tl.where`, literals have no suffix."""
    code = re.sub(r"\b(\d+\.\d+)f\b", r"\1", OPERATORS[operation.kind].code)
    code = re.sub(r"\b(exp|erf)\(", r"tl.\1(", code).replace("magnitude(", "tl.abs(")
    condition, choice, values = code.partition(" ? ")
    if choice:
        code = f"tl.where({condition}, {values.replace(' : ', ', ')})"
    numbers = dict(zip("ab", map(_literal, operation.numbers), strict=False))
    return code.format(x=x, **numbers, **dict(zip("pq", operands, strict=False)))


def _literal(number: float) -> str:
    return repr(number) if math.isfinite(number) else f'float("{number}")'


def _operands(operations: Sequence[Operation]) -> int:
    return sum(len(operation.operands) for operation in operations)


@functools.cache
def _kernel(step: Step, layout: str) -> Any:
    """The kernel of a step, compiled by Triton at its first launch."""
    source = source_of(step, layout)
    name = f"<memplan: {step}, {layout}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[name] = len(source), None, lines, name  # Triton reads it there
    found: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, name, "exec"), found)
    return found["kernel"]


class TritonStack:
    """A stack that runs on a GPU, whatever sizes of tensors it is called with."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        """Raises EnvironmentUnfitError if Triton is not installed."""
        try:
            import triton  # noqa: F401
        except ImportError as error:
            raise EnvironmentUnfitError(
                "memplan's GPU kernels need Triton; install it with pip install triton"
            ) from error
        self.steps = steps_of(operations)
        self.operands = sum(_operands(step.operations) for step in self.steps)

    def __call__(self, x: Tensor, operands: Sequence[Tensor] = ()) -> Tensor:
        """What the stack makes of `x`, (n, c, h, w), a new tensor of its type.

        operands: as `Kernel.run` takes them. Channels-last tensors stay so; what lies
        otherwise is copied first. Raises UsageError for unsuitable tensors.
        """
        if x.dim() != 4 or x.dtype not in DTYPES:
            raise UsageError(
                "a stack takes (n, c, h, w) of float32, float16 or bfloat16, "
                f"not {tuple(x.shape)} of {x.dtype}"
            )
        if len(operands) != self.operands:
            raise UsageError(
                f"the stack takes {self.operands} operands, not {len(operands)}"
            )
        last = x.is_contiguous(memory_format=torch.channels_last)
        layout = "channels_last" if last and not x.is_contiguous() else "channels_first"
        rest = iter(operands)
        for step in self.steps:
            x = _run(step, x, rest, layout)
        return x


def _run(step: Step, x: Tensor, operands: Iterator[Tensor], layout: str) -> Tensor:
    """What a step makes of `x`; it takes its operands from the iterator."""
    last = layout == "channels_last"
    order = torch.channels_last if last else torch.contiguous_format
    x = x.contiguous(memory_format=order)
    plane, out_plane = x.shape[2:], sizes(pools_of([step]), *x.shape[2:])[-1]
    shape = (*x.shape[:2], *out_plane)
    taken = []
    for part, at in ((step.before, tuple(x.shape)), (step.after, shape)):
        for kind in (kind for each in part for kind in each.operands):
            operand = next(operands)
            if kind == "image":
                operand = operand.flatten(1)
            dtype = torch.float32 if kind == "channel" else x.dtype
            wanted = operand_shape(kind, at)
            check(f"operand {kind}", operand, wanted, dtype, str(x.device))
            whole = order if operand.dim() == 4 else torch.contiguous_format
            taken.append(operand.contiguous(memory_format=whole))
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order)
    if out.numel():
        blocks = -(-out.numel() // BLOCK)
        with torch.cuda.device_of(x):
            _kernel(step, layout)[(blocks,)](
                x, out, *taken, out.numel(), x.shape[1], *plane, *out_plane
            )
    return out
