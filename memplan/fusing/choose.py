"""Which kernel each convolution runs as: those that can do it, timed here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import torch

from memplan.fusing import onednn
from memplan.fusing.collapse import Stack
from memplan.fusing.convolution import algorithms, blank
from memplan.fusing.join import is_depthwise, without_prologues
from memplan.fusing.kernel import Kernel
from memplan.fusing.layers import FusedConv, Network, Node, StackNode
from memplan.fusing.operators import Operation
from memplan.fusing.packs import (
    Made,
    Packs,
    Stacks,
    as_4d,
    as_planes,
    folded,
    packing,
)
from memplan.fusing.reference import reference
from memplan.graph.clock import CLEARLY_SLOWER, clock, timed
from memplan.graph.native import Segment
from memplan.graph.weights import Weights

ROUNDS = 3
ONEDNN_OVERHEAD = 1.08  # what leaving the tape costs beyond the time of the kernel
ENOUGH_SECONDS = 0.08  # of timing one convolution
ENOUGH_WORK = 1 << 30  # multiply-adds of a run long enough to time
MOST_IMAGES = 4  # that a run is of, unless images go through one at a time
COLD = 0.005  # seconds that a first run may take, however slow it is beside others


def candidates(
    node: FusedConv, network: Network, weights: Weights, wanted: tuple[str, ...]
) -> list[str]:
    """The kernels of `wanted` that can run a convolution; oneDNN's if no other can."""
    own: list[str] = []
    if network.dtypes[node.value] == torch.float32 and node.convolution.groups == 1:
        weight = as_planes(weights[node.convolution.weight])
        own = algorithms(tuple(weight.shape), node.convolution)
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
            list(map(str, node.before.operations if node.before else ())),
            node.added is not None,
            torch.get_num_threads(),
        )
    )


def timing_images(node: FusedConv, network: Network, weights: Weights) -> int:
    """How many images a convolution is timed on: as many for all batches but of one, so
    that what is known of one serves the others, and they share packed weights."""
    weight: tuple[int, ...] = tuple(weights[node.convolution.weight].shape)
    *_, height, width = as_4d(network.shapes[node.value])
    work = math.prod(weight) * height * width
    batch = as_4d(network.shapes[node.source])[0]
    most = 1 if batch == 1 else MOST_IMAGES
    return max(1, min(most, ENOUGH_WORK // max(work, 1)))


def fastest(runs: dict[str, Callable[[], object]]) -> str:
    """The kernel whose run is the fastest."""
    best = dict.fromkeys(runs, float("inf"))
    first = {name: timed(run)[1] for name, run in runs.items()}  # it touches memory
    enough = max(COLD, 2 * CLEARLY_SLOWER * min(first.values()))
    near = [name for name in runs if first[name] <= enough]
    now, began = clock(), time.perf_counter()
    for _ in range(ROUNDS if len(near) > 1 else 0):
        for name in near:
            start = now()
            runs[name]()
            took = (now() - start) * (ONEDNN_OVERHEAD if name == "onednn" else 1)
            best[name] = min(best[name], took)
        least = min(best.values())
        near = [name for name in near if best[name] <= CLEARLY_SLOWER * least]
        if len(near) == 1 or time.perf_counter() - began > ENOUGH_SECONDS:
            break
    return min(near, key=lambda name: best[name])


def run_of(
    nodes: list[Node],
    network: Network,
    weights: Weights,
    images: int,
    kernel: str,
    stacks: Stacks,
) -> Callable[[], object]:
    """A run of nodes on noise, a convolution by a kernel of this name, and what belongs
    to it.

    stacks: the kernels of stacks; an operation of torch that takes about as long runs
    others.
    """
    kernels = {each.value: kernel for each in nodes if isinstance(each, FusedConv)}
    blanks: Made = {}
    found: list[Node] = []
    for node in without_prologues(nodes, kernels):
        if isinstance(node, StackNode) and node.value not in stacks:
            operations = [each for each in node.operations if not each.operands]
            operation = [*operations, Operation("mul_number", (1.0,))][0]
            stack = Stack((operation,))
            found.append(StackNode(node.value, node.source, [operation]))
            stacks = {**stacks, node.value: partial(reference, stack)}
            continue
        found.append(node)
        if isinstance(node, FusedConv) and kernel != "onednn":
            shape = tuple(as_planes(weights[node.convolution.weight]).shape)
            blanks[packing(node, kernel)] = blank(shape, node.convolution, kernel)
    packs = Packs(weights, network, found, kernels, stacks, blanks)
    shapes = {
        name: (images, *network.shapes[name][1:])
        for node in found
        for name in (*node.inputs(), node.value)
    }
    noise = {
        name: torch.randn(as_4d(shape), dtype=network.dtypes[name]).contiguous(
            memory_format=torch.channels_last
        )
        for name, shape in shapes.items()
    }
    steps = [_step(node, packs, noise) for node in found]

    def run(_: object = noise) -> None:  # kernels hold addresses alone
        for step in steps:
            step()

    return run


def _step(
    node: Node, packs: Packs, tensors: dict[str, torch.Tensor]
) -> Callable[[], object]:
    """A run of a convolution or stack on tensors by their names."""
    assert isinstance(node, FusedConv | StackNode)
    if packs.native(node):
        assert packs.play is not None
        return Segment(packs.play, [packs.bind(node, tensors.__getitem__)])
    x = tensors[node.source]
    if isinstance(node, FusedConv):
        weights = onednn.pack(*folded(packs.weights, node), node.convolution, x.shape)
        added = None if node.added is None else tensors[node.added]
        given = x, weights, node.convolution, added, node.activation
        return partial(onednn.run, *given)
    kernel = packs.stacks[node.value]
    assert not isinstance(kernel, Kernel)
    return partial(kernel, x, packs.tensors(node, tensors.__getitem__))
