"""Which kernel each convolution runs as: those that can do it, timed here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import torch

from memplan.fusing.collapse import Stack
from memplan.fusing.convolution import Epilogue, Prologue, algorithms, bind, blank
from memplan.fusing.engine import onednn
from memplan.fusing.engine.packs import as_4d, as_planes, geometry
from memplan.fusing.join import is_depthwise
from memplan.fusing.kernel import Kernel, taps
from memplan.fusing.layers import DepthwiseStack, FusedConv, Network
from memplan.fusing.operators import Operation
from memplan.fusing.reference import reference
from memplan.graph.clock import CLEARLY_SLOWER, clock
from memplan.graph.weights import Weights

ROUNDS = 3
ONEDNN_OVERHEAD = (
    1.08  # what leaving the tape and the arena costs beyond the time of the kernel
)
ENOUGH_SECONDS = 0.15  # of timing one convolution
ENOUGH_WORK = 1 << 30  # multiply-adds of a run long enough to time
MOST_IMAGES = 4  # that a run is of


def candidates(
    node: FusedConv, network: Network, weights: Weights, wanted: tuple[str, ...]
) -> list[str]:
    """The kernels of `wanted` that can run a convolution; oneDNN's if no other can."""
    own: list[str] = []
    if network.dtypes[node.value] == torch.float32 and node.convolution.groups == 1:
        own = algorithms(geometry(node.convolution, weights))
    elif is_depthwise(node, network, weights):
        own = ["depthwise"]
    found = [each for each in (*own, "onednn") if each in wanted]
    return found or ["onednn"]


def signature(node: FusedConv, network: Network, weights: Weights, images: int) -> str:
    """What a convolution's time depends on, as text."""
    given = node.convolution
    return repr(
        (
            tuple(weights[given.weight].shape),
            (images, *as_4d(network.shapes[node.source])[1:]),
            (given.stride, given.padding, given.dilation, given.groups),
            *([given.behind] if any(given.behind) else []),
            str(network.dtypes[node.value]),
            (node.before is not None, node.rectified, node.added is not None),
            torch.get_num_threads(),
        )
    )


def timing_images(
    node: FusedConv, network: Network, weights: Weights, batch: int
) -> int:
    """How many of a batch's images a convolution is timed on."""
    weight: tuple[int, ...] = tuple(weights[node.convolution.weight].shape)
    *_, height, width = as_4d(network.shapes[node.value])
    work = math.prod(weight) * height * width
    return max(1, min(batch, MOST_IMAGES, ENOUGH_WORK // max(work, 1)))


def fastest(
    node: FusedConv,
    network: Network,
    weights: Weights,
    images: int,
    kernels: list[str],
    stack: tuple[DepthwiseStack, Kernel] | None = None,
) -> list[str]:
    """The fastest of `kernels` on so many images, first, and others that are not
    clearly slower.

    stack: of a depthwise convolution, with what else its kernel computes.
    """
    if len(kernels) == 1:
        return kernels
    shape = (images, *as_4d(network.shapes[node.source])[1:])
    out_shape = (images, *as_4d(network.shapes[node.value])[1:])
    dtype = network.dtypes[node.value]
    x = _noise(shape, dtype)
    added = _noise(out_shape, dtype) if node.added is not None else None
    runs = {
        name: _run(node, weights, x, added, name, out_shape)
        for name in kernels
        if name != "depthwise"
    }
    if stack is not None:
        if "onednn" in runs:
            runs["onednn"] = _with_passes(runs["onednn"], stack[0], x, out_shape)
        runs["depthwise"] = _stack_run(stack[1], x, out_shape)
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()  # the first time touches memory
    now, began = clock(), time.perf_counter()
    near = list(kernels)
    for _ in range(ROUNDS):
        for name in near:
            start = now()
            runs[name]()
            took = (now() - start) * (ONEDNN_OVERHEAD if name == "onednn" else 1)
            best[name] = min(best[name], took)
        least = min(best.values())
        near = [name for name in near if best[name] <= CLEARLY_SLOWER * least]
        if len(near) == 1 or time.perf_counter() - began > ENOUGH_SECONDS:
            break
    return sorted(near, key=lambda name: best[name])


def _run(
    node: FusedConv,
    weights: Weights,
    x: torch.Tensor,
    added: torch.Tensor | None,
    kernel: str,
    out_shape: tuple[int, ...],
) -> Callable[[], None]:
    """One run of a convolution by a kernel, without arguments."""
    ones = torch.ones(x.shape[1])
    if kernel == "onednn":
        weight = as_planes(weights[node.convolution.weight]).detach()
        bias = torch.zeros(weight.shape[0], dtype=x.dtype)
        shape, dtype = tuple(x.shape), x.dtype
        packed = onednn.pack(weight, bias, node.convolution, shape)

        def run() -> None:
            y = x
            if node.before is not None:  # in a pass of its own
                y = x * ones.view(1, -1, 1, 1).to(dtype)
                y = y.relu_() if node.rectified else y
            onednn.run(y, packed, node.convolution, added, node.activation)

        return run
    own = blank(geometry(node.convolution, weights), kernel)
    prologue = Prologue(ones, ones, node.rectified) if node.before else Prologue()
    out = torch.empty(out_shape, memory_format=torch.channels_last)
    bound = bind(own, x, out, prologue, Epilogue(added, clamp=node.activation))
    threads = torch.get_num_threads()
    return lambda: bound(threads)


def _stack_run(
    kernel: Kernel, x: torch.Tensor, out_shape: tuple[int, ...]
) -> Callable[[], None]:
    """One run of a depthwise convolution's stack, without arguments."""
    channels, at = x.shape[1], tuple(x.shape[2:])
    operands = []
    for operation in kernel.stack.operations:
        for kind in operation.operands:
            if kind == "taps":
                assert operation.pool is not None
                shape = (channels, 1, *operation.pool.kernel)
                operands.append(taps(torch.ones(shape), None))
            elif kind == "channel":
                operands.append(torch.ones(channels))
            elif kind == "image":
                operands.append(torch.ones(x.shape[:2], dtype=x.dtype))
            else:
                operands.append(_noise((*x.shape[:2], *at), x.dtype))
        at = at if operation.pool is None else tuple(out_shape[2:])
    out = _noise(out_shape, x.dtype)
    bound, threads = kernel.bind(x, operands, out), torch.get_num_threads()
    return lambda: bound(threads)


def _with_passes(
    run: Callable[[], None],
    stack: DepthwiseStack,
    x: torch.Tensor,
    out_shape: tuple[int, ...],
) -> Callable[[], None]:
    """A run by oneDNN with a pass of torch for each stack that it would leave before
    and behind the convolution."""
    at = next(i for i, each in enumerate(stack.operations) if not each.elementwise)
    alone = stack.convolution
    joined = (alone.added is not None) + (alone.activation is not None)
    before = stack.operations[: at - (alone.before is not None) - alone.rectified]
    behind = stack.operations[at + 1 + joined :]
    passes = [
        (_pass(operations), tensor)
        for operations, tensor in ((before, x), (behind, _noise(out_shape, x.dtype)))
        if operations
    ]

    def all_() -> None:
        run()
        for compute, tensor in passes:
            compute(tensor)

    return all_ if passes else run


def _pass(operations: list[Operation]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that takes about as long as a stack of these operations."""
    for operation in operations:
        if not operation.operands:
            return partial(reference, Stack((operation,), (), (0, 0)))
    return partial(reference, Stack((Operation("mul_number", (1.0,)),), (), (0, 0)))


def _noise(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    noise = torch.randn(shape, dtype=dtype)
    return noise.contiguous(memory_format=torch.channels_last)
