"""What became of a model: of every layer, of its stacks, and why where nothing did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from memplan.fusing.collapse import Stack, collapse, pools_of, sizes
from memplan.fusing.engine.decide import collapsed
from memplan.fusing.engine.engine import Engine
from memplan.fusing.engine.packs import as_4d
from memplan.fusing.layers import (
    DepthwiseStack,
    EagerOp,
    FusedConv,
    Layer,
    Network,
    Node,
    StackNode,
    stacks,
)
from memplan.fusing.module import Fused, PartlyFused
from memplan.fusing.operators import Operation
from memplan.fusing.patches import cpu_device
from memplan.fusing.prepared import Fallback, Prepared
from memplan.graph.lower import argument_name
from memplan.graph.measure import activation_peak

COPIED = 64 << 20  # bytes of the tensor that is copied to calibrate: beyond most caches
ROUNDS = 5


@dataclass(frozen=True)
class Traffic:
    """Bytes read and written: by layers one after the other, and depth-first."""

    layerwise: int
    depth_first: int

    @property
    def saved(self) -> int:
        return self.layerwise - self.depth_first


def traffic(stack: Stack, shape: Sequence[int], itemsize: int) -> Traffic:
    """Of one call of a stack on an input (n, c, h, w) of values of so many bytes."""
    planes, at = prod(shape[:2]) * itemsize, (shape[2], shape[3])
    layerwise = operands = 0
    for operation in stack.operations:
        before, at = at, _behind(operation, at)
        read = planes * prod(at) * operation.operands.count("tensor")
        layerwise += planes * (prod(before) + prod(at)) + read
        operands += read
    depth_first, at = operands, (shape[2], shape[3])
    for sequence in stack.sequences:
        before, at = at, sizes(pools_of(sequence.steps), *at)[-1]
        depth_first += planes * (prod(before) + prod(at))
    return Traffic(layerwise, depth_first)


def _behind(operation: Operation, plane: tuple[int, int]) -> tuple[int, int]:
    return plane if operation.pool is None else operation.pool.size(*plane)


def copy_bandwidth() -> float:
    """Bytes read and written a second by a copy, on torch's threads: measured now."""
    source = torch.ones(COPIED, dtype=torch.uint8)
    target = torch.ones_like(source)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return 2 * COPIED / best


# What may become of a layer: a convolution's kernel; joined into one; in a stack; a
# concatenation that nobody copies; nothing, for there is no computation; or left
# to torch.
OUTCOMES = ("convolution", "joined", "stack", "placed", "nothing", "torch")


@dataclass(frozen=True)
class LayerOutcome:
    """A layer, and what became of it: `became` is one of OUTCOMES.

    place: its module's path; of a function, where it is called, and its name. operator:
    the module's class, or the function's name. kind: as of `layers.Layer`, of an
    operation the operation's. into:
    the name of the convolution it is joined into, or of the stack it is in. kernel: of
    a convolution. reason: why it is left to torch, where that is the layer's own doing.
    """

    name: str
    place: str
    operator: str
    kind: str
    shape: tuple[int, ...]
    became: str
    into: str = ""
    kernel: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Run:
    """A stack and the layers, by name, whose operations it has, in order.

    shape: of its input, (n, c, h, w). itemsize: bytes of one value. by: "memplan" where
    a generated kernel runs it, "torch", or "" where it is the paper's view alone.
    """

    name: str
    layers: tuple[str, ...]
    stack: Stack
    shape: tuple[int, ...]
    itemsize: int
    by: str = ""

    @property
    def steps(self) -> list[list[tuple[str, ...]]]:
        """Of each sequence, each step's layers by name."""
        names, found = iter(self.layers), []
        for sequence in self.stack.sequences:
            steps = [
                tuple(next(names) for _ in step.operations) for step in sequence.steps
            ]
            found.append(steps)
        return found

    @property
    def traffic(self) -> Traffic:
        """Bytes that memory moves in one call."""
        return traffic(self.stack, self.shape, self.itemsize)


@dataclass(frozen=True)
class Part:
    """A model, or a module at `path` in one, and what runs in its place.

    status: "fused", or "unchanged" for the reason given. running: stacks as they run.
    found: stacks as the paper finds them (`find.stacks`). limit: bytes of cache that a
    sequence may take. images: of a call, and at_a_time how many of them go through the
    network together. arena, bound: bytes of its values' memory, and what no plan of
    them takes less than.
    """

    path: str
    status: str
    reason: str = ""
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    layers: list[LayerOutcome] = field(default_factory=list)
    running: list[Run] = field(default_factory=list)
    found: list[Run] = field(default_factory=list)
    limit: int = 0
    images: int = 0
    at_a_time: int = 0
    arena: int = 0
    bound: int = 0

    @property
    def kernels(self) -> dict[str, int]:
        """How many convolutions run as each kernel."""
        return dict(Counter(each.kernel for each in self.layers if each.kernel))


@dataclass(frozen=True)
class Summary:
    """Parts of a fused model: itself, at path "", or those of its modules that run
    fused where it does not as a whole, for the `reason` given.

    status: "fused", "parts" or "unchanged".
    """

    status: str
    reason: str
    parts: list[Part]


def summary(fused: Fused) -> Summary:
    """What became of a model, of `memplan.fuse`, that was called at least once.

    By its last program; of modules in it by all of theirs.
    """
    programs = fused.programs()
    if not programs:
        return Summary("unchanged", "", [])
    last = programs[-1]
    if isinstance(last, PartlyFused):
        parts = list(_parts_of(last, ""))
        any_ = any(part.status == "fused" for part in parts)
        return Summary("parts" if any_ else "unchanged", last.reason, parts)
    part = _part(last, "", fused.options.max_steps)
    return Summary(part.status, part.reason, [part])


def peak_bytes(run: Callable[[], object], fused: Fused | None = None) -> int:
    """Bytes of activations that a call takes at the most, its results among them.

    fused: the model of `memplan.fuse` that `run` calls, if it does: the arenas that it
    keeps from call to call are counted, too; call it once before.
    """
    kept = [] if fused is None else [each.engine.arena for each in prepared(fused)]
    return activation_peak(run) + sum(arena.bytes for arena in kept)


def prepared(fused: Fused) -> Iterator[Prepared]:
    """All that runs fused in a model of `memplan.fuse`."""
    for program in fused.programs():
        if isinstance(program, Prepared):
            yield program
        elif isinstance(program, PartlyFused):
            for path in program.paths:
                yield from prepared(program.mirror.get_submodule(path))


def _parts_of(parted: PartlyFused, before: str) -> Iterator[Part]:
    for path in parted.paths:
        part = parted.mirror.get_submodule(path)
        for program in part.programs():
            if isinstance(program, PartlyFused):
                yield from _parts_of(program, f"{before}{path}.")
            else:
                yield _part(program, before + path, part.options.max_steps)


def _part(program: Prepared | Fallback, path: str, max_steps: int | None) -> Part:
    network = program.network
    if network is None:
        return Part(path, "unchanged", getattr(program, "reason", ""))
    shapes = {argument_name(name): network.shapes[name] for name in network.inputs}
    if isinstance(program, Fallback):
        layers = [
            _outcome(each, "torch", reason=each.reason) for each in network.layers
        ]
        device = cpu_device("channels_last")
        found = paper_stacks(network, "channels_last", max_steps)
        return Part(
            path, "unchanged", program.reason, shapes, layers, [], found, device.limit
        )
    engine = program.engine
    running = _running(network, engine, max_steps)
    return Part(
        path,
        "fused",
        "",
        shapes,
        outcomes(network, program.nodes, engine.kernels),
        running,
        paper_stacks(network, engine.layout, max_steps),
        cpu_device(engine.layout).limit,
        engine.images,
        min(engine.batch, engine.images),
        engine.arena.bytes,
        engine.arena.bound,
    )


def outcomes(
    network: Network, nodes: Sequence[Node], kernels: dict[str, str]
) -> list[LayerOutcome]:
    """What became of each layer of a network that runs as these nodes.

    kernels: the algorithm of each convolution, by its node's value.
    """
    layers = {layer.name: layer for layer in network.layers}
    known: dict[str, LayerOutcome] = {}
    for node in nodes:
        for name in node.layers:
            layer, head = layers[name], _head(node)
            if isinstance(node, EagerOp):
                known[name] = _outcome(layer, "torch", reason=node.reason)
            elif isinstance(node, DepthwiseStack) and name == head:
                known[name] = _outcome(layer, "convolution", kernel="depthwise")
            elif isinstance(node, DepthwiseStack):
                known[name] = _outcome(layer, "joined", head)
            elif isinstance(node, StackNode):
                known[name] = _outcome(layer, "stack", node.value)
            elif not isinstance(node, FusedConv):
                known[name] = _outcome(layer, "placed")
            elif name == head:
                kernel = kernels[node.value]
                known[name] = _outcome(layer, "convolution", kernel=kernel)
            else:
                known[name] = _outcome(layer, "joined", head)
    return [known.get(name) or _outcome(layers[name], "nothing") for name in layers]


def _head(node: Node) -> str:
    """The layer of a node that the others are joined to."""
    main = node.convolution if isinstance(node, DepthwiseStack) else node
    return main.layers[0]


def _outcome(
    layer: Layer, became: str, into: str = "", kernel: str = "", reason: str = ""
) -> LayerOutcome:
    kind = layer.kind
    if layer.operation is not None:
        pool = layer.operation.pool
        kind = layer.operation.kind if pool is None else f"{pool.mode} pool"
    return LayerOutcome(
        *(layer.name, layer.place, layer.operator, kind, layer.shape),
        *(became, into, kernel, reason),
    )


def paper_stacks(network: Network, layout: str, max_steps: int | None) -> list[Run]:
    """A network's stacks as the paper finds them, cut for this CPU's caches.

    layout: one of `generate.LAYOUTS`; max_steps: of a sequence, see `collapse`.
    """
    found: list[Run] = []
    for run in stacks(network):
        layers = [layer for layer in run if layer.operation is not None]
        first = layers[0].inputs[0]
        shape = as_4d(network.shapes[first])
        operations = [each.operation for each in layers if each.operation is not None]
        plane = (shape[2], shape[3])
        found.append(
            Run(
                layers[-1].name,
                tuple(layer.name for layer in layers),
                collapse(operations, plane, cpu_device(layout), max_steps),
                shape,
                network.dtypes[first].itemsize,
            )
        )
    return found


def _running(network: Network, engine: Engine, max_steps: int | None) -> list[Run]:
    """The stacks among the nodes that run."""
    found: list[Run] = []
    for node in engine.nodes:
        if isinstance(node, StackNode):
            found.append(
                Run(
                    node.value,
                    tuple(
                        node.named if isinstance(node, DepthwiseStack) else node.layers
                    ),
                    collapsed(node, network, engine.layout, max_steps),
                    as_4d(network.shapes[node.source]),
                    network.dtypes[node.source].itemsize,
                    "memplan" if engine.native(node) else "torch",
                )
            )
    return found
