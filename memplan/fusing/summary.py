"""What became of a model: of every layer, of its stacks, and why where nothing did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from memplan.fusing.patches import cpu_device
from memplan.fusing.prepared import Fallback, Prepared
from memplan.graph.lower import argument_name
from memplan.graph.measure import activation_peak

COPIED = 64 << 20  # bytes of the tensor that is copied to calibrate: beyond most caches
ROUNDS = 5


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


@dataclass(frozen=True)
class Run:
    """A stack and the layers, by name, whose operations it has, in order.

    shape: of its input, (n, c, h, w). itemsize: bytes of one value. by: "memplan" where
    a generated kernel runs it, "torch", or "" where it is the paper's view alone.
    """

    name: str
    layers: tuple[str, ...]
    stack: Stack
    shape: tuple[int, int, int, int]
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
    def traffic(self) -> tuple[int, int]:
        """Bytes that memory moves in one call: by layers one after the other, and
        depth-first."""
        planes, at = prod(self.shape[:2]) * self.itemsize, self.shape[2:]
        layerwise = operands = 0
        for operation in self.stack.operations:
            before, pool = at, operation.pool
            at = at if pool is None else pool.size(*at)
            read = planes * prod(at) * operation.operands.count("tensor")
            layerwise += planes * (prod(before) + prod(at)) + read
            operands += read
        depth_first, at = operands, self.shape[2:]
        for sequence in self.stack.sequences:
            before, at = at, sizes(pools_of(sequence.steps), *at)[-1]
            depth_first += planes * (prod(before) + prod(at))
        return layerwise, depth_first

    @property
    def saved(self) -> int:
        """Bytes that depth-first runs do not move."""
        layerwise, depth_first = self.traffic
        return layerwise - depth_first


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
    layers: list[Layer] = field(default_factory=list)
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
        options = fused.options
        parts = [_part(each, path, options.max_steps) for path, each in _inside(last)]
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
        inner = _inside(program) if isinstance(program, PartlyFused) else []
        for each in (program, *(part for _, part in inner)):
            if isinstance(each, Prepared):
                yield each


def _inside(parted: PartlyFused) -> Iterator[tuple[str, Prepared | Fallback]]:
    """The programs of the modules that run fused, and these modules' paths."""
    for path in parted.paths:
        for program in parted.mirror.get_submodule(path).programs():
            yield path, program


def _part(program: Prepared | Fallback, path: str, max_steps: int | None) -> Part:
    network, reason = program.network, getattr(program, "reason", "")
    if network is None:
        return Part(path, "unchanged", reason)
    engine = program.engine if isinstance(program, Prepared) else None
    layout = "channels_last" if engine is None else engine.layout
    part = Part(
        path,
        "unchanged" if engine is None else "fused",
        reason,
        inputs={argument_name(name): network.shapes[name] for name in network.inputs},
        found=paper_stacks(network, layout, max_steps),
        limit=cpu_device(layout).limit,
    )
    if engine is None:
        layers = [replace(each, became="torch") for each in network.layers]
        return replace(part, layers=layers)
    return replace(
        part,
        layers=outcomes(network, engine.nodes, engine.kernels),
        running=_running(network, engine, max_steps),
        images=engine.images,
        at_a_time=min(engine.batch, engine.images),
        arena=engine.arena.bytes,
        bound=engine.arena.bound,
    )


def outcomes(
    network: Network, nodes: Sequence[Node], kernels: dict[str, str]
) -> list[Layer]:
    """The layers of a network that runs as these nodes, with what became of each.

    kernels: the algorithm of each convolution, by its node's value.
    """
    known: dict[str, tuple[str, str, str]] = {}  # became, into, kernel
    for node in nodes:
        main = node.convolution if isinstance(node, DepthwiseStack) else node
        head = main.layers[0]
        for name in node.names():
            if isinstance(node, EagerOp):
                known[name] = "torch", "", ""
            elif isinstance(main, FusedConv) and name == head:
                known[name] = "convolution", "", kernels[main.value]
            elif isinstance(main, FusedConv):
                known[name] = "joined", head, ""
            elif isinstance(node, StackNode):
                known[name] = "stack", node.value, ""
            else:
                known[name] = "placed", "", ""
    found = []
    for layer in network.layers:
        became, into, kernel = known.get(layer.name, ("nothing", "", ""))
        reason = layer.reason if became == "torch" else ""
        found.append(
            replace(layer, became=became, into=into, kernel=kernel, reason=reason)
        )
    return found


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
                    tuple(node.layers),
                    collapsed(node, network, engine.layout, max_steps),
                    as_4d(network.shapes[node.source]),
                    network.dtypes[node.source].itemsize,
                    "memplan" if engine.native(node) else "torch",
                )
            )
    return found
