"""What became of a model: of every layer, of its stacks, and why where nothing did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from memplan.fusing.caches import cpu_device
from memplan.fusing.collapse import Stack, collapse
from memplan.fusing.engine.build import Engine
from memplan.fusing.engine.packs import four
from memplan.fusing.engine.stacks import collapsed
from memplan.fusing.find import stacks
from memplan.fusing.layers import Layer, Network
from memplan.fusing.module import Parted
from memplan.fusing.nodes import Called, Depthwise, Joined, Node, Stacked
from memplan.fusing.prepared import LeftAlone, Prepared
from memplan.graph.measure import activation_peak

# What may become of a layer: a convolution's kernel; joined into one; in a stack; a
# concatenation that nobody copies; nothing, for there is nothing to compute; or left
# to torch.
FATES = ("convolution", "joined", "stack", "placed", "nothing", "torch")


@dataclass(frozen=True)
class Fate:
    """A layer, and what became of it: `became` is one of FATES.

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
    layers: list[Fate] = field(default_factory=list)
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


def summary(fused: Any) -> Summary:
    """What became of a model, of `memplan.fuse`, that was called at least once.

    By its last program; of modules in it by all of theirs.
    """
    programs = fused.programs()
    if not programs:
        return Summary("unchanged", "", [])
    last = programs[-1]
    if isinstance(last, Parted):
        parts = list(_parts_of(last, ""))
        any_ = any(part.status == "fused" for part in parts)
        return Summary("parts" if any_ else "unchanged", last.reason, parts)
    part = _part(last, "", fused.options.max_steps)
    return Summary(part.status, part.reason, [part])


def peak_bytes(run: Callable[[], Any], fused: Any = None) -> int:
    """Bytes of activations that a call takes at the most, its results among them.

    fused: the model of `memplan.fuse` that `run` calls, if it does: the arenas that it
    keeps from call to call are counted, too. Called before, so that they are there.
    """
    kept = [] if fused is None else [each.engine.arena for each in prepared(fused)]
    return activation_peak(run) + sum(arena.bytes for arena in kept)


def prepared(fused: Any) -> Iterator[Prepared]:
    """All that runs fused in a model of `memplan.fuse`."""
    for program in fused.programs():
        if isinstance(program, Prepared):
            yield program
        elif isinstance(program, Parted):
            for path in program.paths:
                yield from prepared(program.mirror.get_submodule(path))


def _parts_of(parted: Parted, before: str) -> Iterator[Part]:
    for path in parted.paths:
        part = parted.mirror.get_submodule(path)
        for program in part.programs():
            if isinstance(program, Parted):
                yield from _parts_of(program, f"{before}{path}.")
            else:
                yield _part(program, before + path, part.options.max_steps)


def _part(program: Prepared | LeftAlone, path: str, max_steps: int | None) -> Part:
    network = program.network
    if network is None:
        return Part(path, "unchanged", getattr(program, "reason", ""))
    shapes = {name: network.shapes[name] for name in network.inputs}
    if isinstance(program, LeftAlone):
        layers = [_fate(each, "torch", reason=each.reason) for each in network.layers]
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
        fates(network, program.nodes, engine.kernels),
        running,
        paper_stacks(network, engine.layout, max_steps),
        cpu_device(engine.layout).limit,
        engine.images,
        min(engine.batch, engine.images),
        engine.arena.bytes,
        engine.arena.bound,
    )


def fates(
    network: Network, nodes: Sequence[Node], kernels: dict[str, str]
) -> list[Fate]:
    """What became of each layer of a network that runs as these nodes.

    kernels: the algorithm of each convolution, by its node's value.
    """
    layers = {layer.name: layer for layer in network.layers}
    known: dict[str, Fate] = {}
    for node in nodes:
        for name in node.layers:
            layer, head = layers[name], _head(node)
            if isinstance(node, Called):
                known[name] = _fate(layer, "torch", reason=node.reason)
            elif isinstance(node, Depthwise) and name == head:
                known[name] = _fate(layer, "convolution", kernel="depthwise")
            elif isinstance(node, Depthwise):
                known[name] = _fate(layer, "joined", head)
            elif isinstance(node, Stacked):
                known[name] = _fate(layer, "stack", node.value)
            elif not isinstance(node, Joined):
                known[name] = _fate(layer, "placed")
            elif name == head:
                kernel = kernels[node.value]
                known[name] = _fate(layer, "convolution", kernel=kernel)
            else:
                known[name] = _fate(layer, "joined", head)
    return [known.get(name) or _fate(layers[name], "nothing") for name in layers]


def _head(node: Node) -> str:
    """The layer of a node that the others are joined to."""
    main = node.convolution if isinstance(node, Depthwise) else node
    return main.layers[0]


def _fate(
    layer: Layer, became: str, into: str = "", kernel: str = "", reason: str = ""
) -> Fate:
    from torch.nn import Module

    target, place = layer.op.target, layer.place
    name = getattr(target, "__name__", None) or type(target).__name__
    kind = layer.kind
    if layer.operation is not None:
        pool = layer.operation.pool
        kind = layer.operation.kind if pool is None else f"{pool.mode} pool"
    operator = str(name).partition(".")[0]
    if not isinstance(target, Module):
        place = f"{layer.op.line}: {layer.name}" if layer.op.line else layer.name
    return Fate(
        *(layer.name, place, operator, kind, layer.shape),
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
        shape = four(network.shapes[first])
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
        if isinstance(node, Stacked):
            found.append(
                Run(
                    node.value,
                    tuple(node.named if isinstance(node, Depthwise) else node.layers),
                    collapsed(node, network, engine.layout, max_steps),
                    four(network.shapes[node.source]),
                    network.dtypes[node.source].itemsize,
                    "memplan" if engine.native(node) else "torch",
                )
            )
    return found
