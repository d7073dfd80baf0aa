"""What became of a model: of every layer, of its stacks, and why where nothing did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

import torch

from memplan.compiling.batches import InBatches
from memplan.compiling.kernels import Joined
from memplan.compiling.lazy import Fused, Program
from memplan.compiling.on_gpu import OnGPU
from memplan.compiling.outcomes import Seen, seen
from memplan.compiling.parts import CompiledParts
from memplan.compiling.report import Fallback
from memplan.fusing.collapse import Stack, collapse, pools_of, sizes
from memplan.fusing.decide import collapsed
from memplan.fusing.layers import (
    Layer,
    StackNode,
    stacks,
)
from memplan.fusing.packs import as_4d
from memplan.fusing.patches import cpu_device
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
    a generated kernel runs it, "" where it is the paper's view alone.
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
    """What became of a model, of `memplan.fuse`, that was called at least once, by its
    last program."""
    programs = fused.programs()
    if not programs:
        return Summary("unchanged", "", [])
    last, most = programs[-1], fused.options.max_steps
    if isinstance(last, CompiledParts):
        parts = [_part(each, path, most) for path, each in last.parts.items()]
        return Summary("parts", last.memplan.reason, parts)
    part = _part(last, "", most)
    return Summary(part.status, part.reason, [part])


def peak_bytes(run: Callable[[], object], fused: Fused | None = None) -> int:
    """Bytes of activations that a call takes at the most, its results among them.

    fused: the model of `memplan.fuse` that `run` calls, if it does: the arena that it
    keeps from call to call is counted, too; call it once before.
    """
    kept = [] if fused is None else [each.memplan.arena for each in fused.prepared()]
    return activation_peak(run) + max(kept, default=0)


def _part(program: Program, path: str, max_steps: int | None) -> Part:
    if isinstance(program, OnGPU):
        layout = "channels_first"
        return _found(Part(path, "fused"), Seen([], program.network), layout, max_steps)
    if isinstance(program, Fallback):
        if program.seen is None:
            return Part(path, "unchanged", program.reason)
        part = Part(path, "unchanged", program.reason, layers=program.seen.layers)
        return _found(part, program.seen, "channels_last", max_steps)
    assert program.runner is not None
    runner, schedule = program.runner, program.runner.schedule
    target = runner.whole if isinstance(runner, InBatches) else runner.target
    joined = schedule.joined
    known = seen(target, joined)
    part = Part(path, "fused", layers=known.layers)
    if joined is not None:
        part = replace(part, running=_running(joined, known, max_steps))
    part = replace(part, arena=schedule.plan.peak, bound=schedule.plan.lower_bound)
    shapes = (target.program.metas[name].shape for name in target.program.inputs)
    count = next((shape[0] for shape in shapes if shape), 1)
    at_a_time = runner.batch if isinstance(runner, InBatches) else count
    part = replace(part, at_a_time=at_a_time, images=count)
    layout = "channels_last" if joined is None else joined.layout
    return _found(part, known, layout, max_steps)


def _found(part: Part, known: Seen, layout: str, max_steps: int | None) -> Part:
    """A part with what the paper would find in its network."""
    network = known.network
    return replace(
        part,
        inputs={argument_name(name): network.shapes[name] for name in network.inputs},
        found=paper_stacks(known, layout, max_steps),
        limit=cpu_device(layout).limit,
    )


def paper_stacks(known: Seen, layout: str, max_steps: int | None) -> list[Run]:
    """A model's stacks as the paper finds them, cut for this CPU's caches.

    layout: one of `generate.LAYOUTS`; max_steps: of a sequence, see `collapse`.
    """
    found: list[Run] = []
    network, of = known.network, known.origins.of
    for run in stacks(network):
        layers = [layer for layer in run if layer.operation is not None]
        first = layers[0].inputs[0]
        shape = as_4d(network.shapes[first])
        operations = [each.operation for each in layers if each.operation is not None]
        plane = (shape[2], shape[3])
        found.append(
            Run(
                of(layers[-1].name),
                tuple(of(layer.name) for layer in layers),
                collapse(operations, plane, cpu_device(layout), max_steps),
                shape,
                network.dtypes[first].itemsize,
            )
        )
    return found


def _running(joined: Joined, known: Seen, max_steps: int | None) -> list[Run]:
    """The stacks among the nodes that kernels run."""
    found: list[Run] = []
    network, own = joined.network, {layer.name for layer in known.layers}
    for node in joined.nodes:
        if isinstance(node, StackNode) and node.value in joined.native:
            found.append(
                Run(
                    node.value,
                    tuple(
                        name if name in own else joined.origins.of(name)
                        for name in node.layers
                    ),
                    collapsed(node, network, joined.layout, max_steps),
                    as_4d(network.shapes[node.source]),
                    network.dtypes[node.source].itemsize,
                    "memplan",
                )
            )
    return found
