"""Nodes bound to kernels, an arena and a tape, for so many images at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from memplan.fusing.engine import arena as arenas
from memplan.fusing.engine.arena import Arena, Place
from memplan.fusing.engine.packs import Packs, as_4d
from memplan.fusing.engine.steps import Emitter, Runner, Values
from memplan.fusing.layers import Concat, FusedConv, Network, Node, StackNode, gates
from memplan.graph.arenas import ArenaPool
from memplan.graph.nest import leaves_of, overlapping, storages
from memplan.graph.program import Ref, mapped, refs
from memplan.graph.weights import Weights

MOST_RUNNERS = 4  # of an engine, bound to one slab: whole batches and their rests


class Engine:
    """A network's nodes, ready to run on inputs of the shapes they were built for.

    packs: what runs, and its weights. batch: how many images go through at a time.
    layout: of values in memory, see `Emitter`. arena_pool: where arenas come from.
    """

    def __init__(
        self, packs: Packs, batch: int, layout: str, arena_pool: ArenaPool
    ) -> None:
        network, nodes = packs.network, packs.nodes
        self._network, self.nodes, self.outputs = network, nodes, network.outputs
        self._packs, self.batch, self.layout = packs, batch, layout
        self._arena_pool = arena_pool
        self.images = images(network)
        self._lock = threading.Lock()
        self._packed = 0  # how often; runners hold what was packed then
        self._names = list(dict.fromkeys(refs(network.outputs)))
        self._strides: dict[str, tuple[int, ...]] = {}  # of the model's results
        self._copied: set[str] = set()  # what the model does not give back as it is
        self._constants = _constants(network, nodes, packs.weights)
        self._layouts: dict[int, tuple[dict[str, Place], Arena]] = {}
        self._written: frozenset[str] = frozenset()  # results that kernels write to

    @property
    def kernels(self) -> dict[str, str]:
        """The algorithm of each convolution, by value."""
        return self._packs.kernels

    @property
    def plan(self) -> tuple[tuple[str, ...], int]:
        """The algorithm of each convolution, in order, and images at a time."""
        return tuple(self.kernels.values()), self.batch

    @property
    def arena(self) -> Arena:
        """What its values take while as many images as go at a time run."""
        return self._layout(min(self.batch, self.images))[1]

    @property
    def bytes(self) -> int:
        """The most that it acquires of `arena_pool`."""
        return self.arena.bytes + arenas.ALIGNMENT

    def pack(self) -> None:
        """Pack the model's current weights."""
        with self._lock:
            self._packs.fill({})
            self._packed += 1

    def learn(self, expected: object, inputs: Values) -> None:
        """Lay results out as `expected`, the model's results for `inputs`, and copy
        those that the model does not give back as they are.

        Before anything runs: results in the kernels' own layout are not copied.
        """
        theirs = storages(inputs.values())
        given = {*inputs, *self._network.constants}
        for ref, value in zip(self.outputs, leaves_of(expected), strict=False):
            if isinstance(ref, Ref) and isinstance(value, torch.Tensor):
                self._strides[ref.name] = value.stride()
                if ref.name in given and not storages([value]) & theirs:
                    self._copied.add(ref.name)
        taken = {name for node in self.nodes for name in node.inputs()}
        self._written = frozenset(
            node.value
            for node in self.nodes
            if isinstance(node, FusedConv | StackNode)
            and self.native(node)
            and node.value not in taken
            and self._strides.get(node.value) == self._dense(node.value)
        )
        self._layouts.clear()

    def _dense(self, name: str) -> tuple[int, ...]:
        """The strides of a value (n, c, h, w) that fills its memory in the layout."""
        _, c, height, width = as_4d(self._network.shapes[name])
        if self.layout == "channels_last":
            return c * height * width, 1, c * width, c
        return c * height * width, height * width, width, 1

    def run(self, inputs: Values) -> object:
        """The outputs on these inputs."""
        constants = {name: held[key] for name, held, key in self._constants}
        given, device = {**constants, **inputs}, next(iter(inputs.values())).device
        made = [x for x in self._names if x not in given or x in self._copied]
        if self.batch >= self.images:
            found = self._fresh(self._written, device)
            with self._runner(self.images) as runner:
                values = runner.run({**given, **found})
                for name in made:
                    found[name] = self._outside(name, values[name], runner.storage)
        else:
            found = self._fresh(made, device)
            for start in range(0, self.images, self.batch):
                stop = min(start + self.batch, self.images)
                whole = {**inputs, **{name: found[name] for name in self._written}}
                cut = {name: x[start:stop] for name, x in whole.items()}
                with self._runner(stop - start) as runner:
                    values = runner.run({**constants, **cut})
                    for name in found.keys() - self._written:
                        found[name][start:stop] = values[name]
        results = {**given, **found}
        return mapped(self.outputs, lambda ref: results[ref.name])

    def _fresh(self, names: Iterable[str], device: torch.device) -> Values:
        """Memory for results, laid out as the model's."""
        found: Values = {}
        for name in names:
            shape, dtype = self._network.shapes[name], self._network.dtypes[name]
            strides = self._strides.get(name)
            if strides is None or overlapping(shape, strides):
                found[name] = torch.empty(shape, dtype=dtype, device=device)
            else:
                found[name] = torch.empty_strided(
                    shape, strides, dtype=dtype, device=device
                )
        return found

    def _outside(self, name: str, value: torch.Tensor, arena: int) -> torch.Tensor:
        """A result that is neither in the arena nor the caller's own."""
        inside = value.untyped_storage().data_ptr() == arena
        if not (inside or name in self._copied):
            return value
        copied: torch.Tensor = self._fresh([name], value.device)[name].copy_(value)
        return copied

    @contextlib.contextmanager
    def _runner(self, count: int) -> Iterator[Runner]:
        """A runner for this thread alone."""
        places, arena = self._layout(count)
        with self._arena_pool.slab(arena.bytes + arenas.ALIGNMENT) as slab:
            runners: dict[Any, Runner] = slab.bound(self)
            with self._lock:
                key = count, self._packed
                runner = runners.pop(key, None)
                if runner is None:
                    for old in [each for each in runners if each[1] != key[1]]:
                        del runners[old]
                    runner = self._made(count, slab.memory, places, arena)
            yield runner  # one that fails does not come back, nor does its slab
            if len(runners) < MOST_RUNNERS:
                runners[key] = runner

    def _made(
        self, count: int, memory: torch.Tensor, places: dict[str, Place], arena: Arena
    ) -> Runner:
        with torch.inference_mode(False), torch.no_grad():
            shapes = self._shapes(count)
            emitter = Emitter(self._packs, self.layout, shapes, places, arena, memory)
            return Runner(emitter, self.nodes, set(self._names))

    def _layout(self, count: int) -> tuple[dict[str, Place], Arena]:
        found = self._layouts.get(count)
        if found is not None:
            return found
        shapes = self._shapes(count)
        apart = {name for node in self.nodes for name in gates(node)}
        places = arenas.place(self.nodes, shapes, self.native, apart)
        for name in self._written:
            del places[name]
        widths = {each.buffer: each.pixel for each in places.values()}

        def size(buffer: str) -> int:
            n, _, height, width = as_4d(shapes[buffer])
            item = int(self._network.dtypes[buffer].itemsize)
            return max(1, n * height * width * widths[buffer] * item)

        arena = arenas.plan(self.nodes, places, size, self._names)
        self._layouts[count] = places, arena
        return places, arena

    def native(self, node: Node) -> bool:
        """Whether a node writes into the arena."""
        if isinstance(node, Concat):
            return self.layout == "channels_last"
        return self._packs.native(node)

    def _shapes(self, count: int) -> dict[str, tuple[int, ...]]:
        if count == self.images:
            return self._network.shapes
        constants = self._network.constants
        return {
            name: (count, *shape[1:])
            if len(shape) in (2, 4)
            and shape[0] == self.images
            and name not in constants
            else shape
            for name, shape in self._network.shapes.items()
        }


def images(network: Network) -> int:
    """How many a call has: the first number of the first input's shape."""
    shapes = [network.shapes[name] for name in network.inputs]
    return shapes[0][0] if shapes and shapes[0] else 1


def _constants(
    network: Network, nodes: list[Node], weights: Weights
) -> list[tuple[str, dict[str, torch.Tensor], str]]:
    """Tensors of the model that stand among the values: name, and where they are."""
    wanted = dict.fromkeys(name for node in nodes for name in node.inputs())
    wanted.update(dict.fromkeys(refs(network.outputs)))
    found = []
    for name in wanted:
        if name in network.constants:
            found.append((name, *weights.holder(network.constants[name])))
    return found
