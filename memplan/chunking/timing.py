"""The time that loops cost: a model with constants measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch

from memplan.graph.liveness import Beside, owners
from memplan.graph.program import (
    Input,
    Loop,
    Meta,
    Op,
    Output,
    Program,
    Step,
    placed,
    results,
)
from memplan.graph.workspace import BLOCK, temporaries

PRODUCTS = ("mm", "linear", "matmul", "conv", "einsum")  # in their operators' names
RUN = 2048  # bytes: shorter contiguous runs are copied piece by piece


@dataclass(frozen=True)
class Machine:
    """Constants of the time model: seconds a call, an input slice and an output, and
    bytes a second of copies, of weights packed again, of pages touched first, and of
    gathered matrices that are neither row-major nor column-major; multiplications a
    second."""

    call: float = 6e-6
    slice: float = 3.6e-6
    output: float = 4.8e-6
    copied: float = 6e9
    packed: float = 3e9
    touched: float = 3e9
    gathered: float = 1e9
    multiplied: float = 2e10


@dataclass(frozen=True)
class Costs:
    """What loops cost where the program will run.

    machine: constants of the time model. beside: bytes that an operator needs beside
    its operands and results.
    """

    machine: Machine = Machine()
    beside: Beside = temporaries


def seconds(program: Program, machine: Machine) -> float:
    """How many seconds longer the loops take than their operators without loops.

    Negative if smaller tensors save more than the loop costs, because fewer pages are
    touched for the first time.
    """
    return sum(
        _loop(program, step, machine) for step in program.ops if isinstance(step, Loop)
    )


def _loop(program: Program, loop: Loop, machine: Machine) -> float:
    turns = -(-loop.extent // loop.step)
    body = loop.body
    calls = sum(isinstance(step, Op) for step in body.ops)
    cost = turns * (
        calls * machine.call
        + len(loop.inputs) * machine.slice
        + len(loop.outputs) * machine.output
    )
    there = placed(body)
    for output in loop.outputs:
        meta = program.metas[output.buffer]
        if output.inner not in there:
            cost += meta.bytes / machine.copied
        cost += _in_pieces(meta, output, turns) / machine.copied
    for total in loop.totals:  # read and written in each iteration
        cost += turns * 2 * program.metas[total.buffer].bytes / machine.copied
    for entry in loop.inputs:
        cost += _in_pieces(program.metas[entry.outer], entry, turns) / machine.copied
    made = {name for step in body.ops for name in results(step)}
    made.update(entry.inner for entry in loop.inputs)
    made.update(total.buffer for total in loop.totals)
    for step in body.ops:
        if isinstance(step, Op) and is_product(step):
            whole = [name for name in step.operands() if name not in made]
            packed = sum(body.metas[name].bytes for name in whole)
            cost += (turns - 1) * packed / machine.packed
            gathered = sum(_gathered(body.metas[name]) for name in whole)
            cost += (turns - 1) * gathered / machine.gathered
            cost += (turns - 1) * _in_halos(body, loop, step) / machine.multiplied
            cost += turns * _in_padding(body, step) / machine.multiplied
    for step in body.ops:
        for root in owners(body, step):
            meta = body.metas.get(root)
            if isinstance(meta, Meta) and meta.bytes * turns > 4 << 20:
                cost -= meta.bytes * (turns - 1) / machine.touched
    return cost + turns * seconds(body, machine)


def _gathered(meta: Meta) -> int:
    """The bytes of a batched matrix that lies neither by rows nor by columns."""
    lies = len(meta.shape) < 3 or 1 in meta.strides[-2:] or 1 in meta.shape[-2:]
    return 0 if lies else meta.bytes


def _in_halos(body: Program, loop: Loop, op: Op) -> float:
    """The multiplications of an iteration that its neighbours do as well."""
    for window in body.moving.get(op.name, {}).values():
        if window.loop == loop.name:
            low, high = window.at(body.ranges)
            share = (window.before + window.after) / max(1, high - low)
            return share * multiplications(body, op)
    return 0.0


def _in_padding(body: Program, op: Op) -> float:
    """The multiplications of channels that a convolution adds to fill its blocks."""
    meta = body.metas[op.name]
    if "conv" not in op.key or not isinstance(meta, Meta) or len(meta.shape) < 3:
        return 0.0
    channels = max(1, int(meta.shape[1]))
    return (-channels % BLOCK) / channels * multiplications(body, op)


def multiplications(program: Program, op: Step) -> int:
    """About how many multiplications an operator takes; at least one an element."""
    assert isinstance(op, Op)
    meta = program.metas[op.name]
    made = meta.elements if isinstance(meta, Meta) else 0
    metas = [program.metas[name] for name in op.operands()]
    if is_product(op) and metas and isinstance(metas[0], Meta):
        convolution = "conv" in op.key and len(metas) > 1
        inner = metas[1].shape[1:] if convolution else metas[0].shape[-1:]
        return int(made * prod(inner))
    if op.key.endswith("attention") and len(metas) > 2 and isinstance(metas[1], Meta):
        return int(2 * made * metas[1].shape[-2])  # every key, for scores and values
    return int(made)


def is_product(op: Op) -> bool:
    """Whether an operator multiplies matrices, which its kernels pack first."""
    return any(word in op.key for word in PRODUCTS)


def _in_pieces(meta: Meta, cut: Input | Output, turns: int) -> float:
    """Bytes of a slice, for both ways, if its contiguous runs are short; else 0."""
    run = meta.strides[cut.dim] * meta.shape[cut.dim] * int(meta.dtype.itemsize) / turns
    outermost = meta.strides[cut.dim] == max(meta.strides, default=1)
    return 0.0 if outermost or run >= RUN else 2.0 * meta.bytes


def calibrated(device: str = "cpu") -> Machine:
    """The constants of this machine, measured in about a tenth of a second.

    On devices other than the CPU, where calls return before they are done, the
    constants are those of a CPU of 2023.
    """
    if device != "cpu":
        return Machine()
    small = torch.ones(64, 64)
    wide = torch.ones(4 << 20)
    other = torch.ones_like(wide)
    weight, rows = torch.ones(1024, 1024), torch.ones(1024, 1024)
    linear = torch.ops.aten.linear.default
    with torch.no_grad():
        call = _time(lambda: torch.ops.aten.add.Tensor(small, small), 50)
        cut = _time(lambda: small.narrow(0, 8, 16), 50)
        copied = wide.nbytes / _time(lambda: other.copy_(wide), 1)
        parts = _time(lambda: [linear(part, weight) for part in rows.split(128)], 1)
        packs = max((parts - _time(lambda: linear(rows, weight), 1)) / 7, 1e-5)
        fresh = _time(lambda: torch.empty(8 << 20).fill_(1), 1)
        again = torch.empty(8 << 20)
        used = _time(lambda: again.fill_(1), 1)
        picture, kernel = torch.ones(1, 32, 64, 64), torch.ones(32, 32, 3, 3)
        convolved = _time(lambda: torch.conv2d(picture, kernel, padding=1), 2)
        apart = torch.ones(128, 128, 64).permute(2, 0, 1)
        one_by_one = _time(lambda: [part.clone() for part in apart.unbind()], 1)
    touched = again.nbytes / max(fresh - used, again.nbytes / 2e10)
    return Machine(
        call=max(call, 1e-6),
        slice=max(cut, 1e-6),
        output=max(cut + call, 1e-6),
        copied=copied,
        packed=weight.nbytes / packs,
        touched=touched,
        gathered=apart.nbytes / one_by_one,
        multiplied=picture.numel() * kernel[0].numel() / convolved,
    )


def _time(run: Callable[[], object], times: int) -> float:
    """Seconds of one `run`: the least of seven samples of `times`, after one more."""
    samples = []
    for _ in range(8):
        start = time.perf_counter()
        for _ in range(times):
            run()
        samples.append((time.perf_counter() - start) / times)
    return min(samples[1:])
