"""Nodes bound to kernels, an arena and a tape, for so many images at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator

import torch

from memplan.fusing.engine import arena as arenas
from memplan.fusing.engine.arena import Arena, Place
from memplan.fusing.engine.packs import Packs, as_4d
from memplan.fusing.engine.steps import Emitter, Runner, Values
from memplan.fusing.layers import Concat, FusedConv, Network, Node, StackNode, gates
from memplan.fusing.memory import ArenaPool
from memplan.graph.nest import (
    changed,
    leaves_of,
    overlapping,
    storages,
)
from memplan.graph.program import Ref, mapped, refs
from memplan.graph.weights import Weights


class Results:
    """The values named by `outputs`, a nest of Ref, laid out as the model's results.

    images: how many a whole call has.
    """

    def __init__(self, outputs: object, network: Network, images: int) -> None:
        self._outputs, self._images = outputs, images
        self._given = {*network.inputs, *network.constants}
        self.names = list(dict.fromkeys(refs(outputs)))
        self._tensors = all(name in network.shapes for name in self.names)
        self._strides: dict[str, tuple[int, ...]] = {}
        self._copied: set[str] = set()  # what the model does not give back as it is

    def learn(self, expected: object, inputs: Values) -> None:
        """Store the memory layout of the model's results, and which of them are
        `inputs` or share their memory."""
        if not self._tensors:  # their leaves are not those of `expected`
            return
        given = storages(inputs.values())
        mine = leaves_of(mapped(self._outputs, _Leaf))
        for leaf, value in zip(mine, leaves_of(expected), strict=False):
            if isinstance(leaf, _Leaf) and hasattr(value, "stride"):
                self._strides[leaf.name] = tuple(value.stride())
                if not storages([value]) & given and leaf.name in self._given:
                    self._copied.add(leaf.name)

    def of(self, values: Values, inputs: Values, arena: int | None) -> object:
        """The outputs. arena: address of the arena; None if no value lies in it."""
        found = {name: self._own(name, values, inputs, arena) for name in self.names}
        return mapped(self._outputs, lambda ref: found[ref.name])

    def _own(
        self, name: str, values: Values, inputs: Values, arena: int | None
    ) -> object:
        """A value that does not share the arena's memory."""
        if name in inputs and name not in self._copied:
            return inputs[name]
        value = values[name]
        if not isinstance(value, torch.Tensor):
            return changed(value, lambda each: _out_of(each, arena))
        inside = value.untyped_storage().data_ptr() == arena
        if not (inside or name in self._copied):
            return value
        return self._empty(name, value, tuple(value.shape)).copy_(value)

    def lies(self, name: str, strides: tuple[int, ...]) -> bool:
        """Whether it is a result, and the model lays it out by these strides."""
        return name in self.names and self._strides.get(name) == strides

    def empty(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Memory for a result that `lies`, of the shape given."""
        return torch.empty_strided(shape, self._strides[name], dtype=dtype)

    def put(
        self, found: Values, values: Values, start: int, there: Collection[str]
    ) -> None:
        """Copy results of some images into those of all, except those in `there`."""
        for name in self.names:
            if name in there:
                continue
            value = values[name]
            if name not in found:
                shape = self._images, *value.shape[1:]
                found[name] = self._empty(name, value, shape)
            found[name][start : start + value.shape[0]] = value

    def _empty(
        self, name: str, value: torch.Tensor, shape: tuple[int, ...]
    ) -> torch.Tensor:
        strides = self._strides.get(name)
        if strides is None or len(strides) != len(shape) or overlapping(shape, strides):
            return torch.empty(shape, dtype=value.dtype, device=value.device)
        return torch.empty_strided(
            shape, strides, dtype=value.dtype, device=value.device
        )


class _Leaf:
    """A Ref as pytrees do not look into it."""

    def __init__(self, ref: Ref) -> None:
        self.name = ref.name


def _out_of(value: torch.Tensor, arena: int | None) -> torch.Tensor:
    inside = value.untyped_storage().data_ptr() == arena
    return value.clone() if inside else value


MOST_RUNNERS = 4  # of an engine, bound to one slab: whole batches and their rests


class Engine:
    """A network's nodes, ready to run on inputs of the shapes they were built for.

    nodes, outputs: what runs, and a nest of Ref to what it gives. batch: how many
    images go through at a time. layout: of values in memory, see `Emitter`. arena_pool:
    where arenas come from.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a network's run is made of
        self,
        network: Network,
        nodes: list[Node],
        outputs: object,
        packs: Packs,
        batch: int,
        layout: str,
        arena_pool: ArenaPool | None = None,
    ) -> None:
        self._network, self.nodes, self.outputs = network, nodes, outputs
        self._packs, self.batch, self.layout = packs, batch, layout
        self._arena_pool = arena_pool or ArenaPool()
        self.threads = torch.get_num_threads()
        self.images = images(network)
        self._lock = threading.Lock()
        self._packed = 0  # how often; runners hold what was packed then
        self._results = Results(outputs, network, self.images)
        self._constants = _constants(network, nodes, outputs, packs.weights)
        self._layouts: dict[int, tuple[dict[str, Place], Arena]] = {}
        self._written: frozenset[str] = frozenset()  # results that kernels write to

    @property
    def kernels(self) -> dict[str, str]:
        """The algorithm of each convolution, by value."""
        return self._packs.kernels

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
            self._packs.fill()
            self._packed += 1

    def learn(self, expected: object, inputs: Values) -> None:
        """Lay results out as `expected`, the model's results for `inputs`.

        Before anything runs: results in the kernels' own layout are not copied.
        """
        self._results.learn(expected, inputs)
        taken = {name for node in self.nodes for name in node.inputs()}
        self._written = frozenset(
            node.value
            for node in self.nodes
            if isinstance(node, FusedConv | StackNode)
            and self.native(node)
            and node.value not in taken
            and self._results.lies(node.value, self._dense(node.value))
        )
        self._layouts.clear()

    def _dense(self, name: str) -> tuple[int, ...]:
        """The strides of a value (n, c, h, w) that fills its memory in the layout."""
        _, c, height, width = as_4d(self._network.shapes[name])
        if self.layout == "channels_last":
            return c * height * width, 1, c * width, c
        return c * height * width, height * width, width, 1

    def _fetched(self) -> Values:
        return {name: held[key] for name, held, key in self._constants}

    def run(self, inputs: Values) -> object:
        """The outputs on these inputs."""
        constants = self._fetched()
        if self.batch >= self.images:
            results = self._fresh(self.images)
            with self._runner(self.images) as runner:
                values = runner.run({**constants, **inputs, **results})
                return self._results.of(values, inputs, runner.storage)
        found = self._fresh(self.images)
        for start in range(0, self.images, self.batch):
            stop = min(start + self.batch, self.images)
            own = {name: found[name] for name in self._written}
            cut = {name: x[start:stop] for name, x in {**inputs, **own}.items()}
            with self._runner(stop - start) as runner:
                values = runner.run({**constants, **cut})
                self._results.put(found, values, start, self._written)
        return self._results.of(found, inputs, None)

    def _fresh(self, count: int) -> Values:
        """Memory for the results that kernels write to, of so many images."""
        shapes, dtypes = self._shapes(count), self._network.dtypes
        return {
            name: self._results.empty(name, shapes[name], dtypes[name])
            for name in self._written
        }

    @contextlib.contextmanager
    def _runner(self, count: int) -> Iterator[Runner]:
        """A runner for this thread alone."""
        places, arena = self._layout(count)
        slab = self._arena_pool.acquire(arena.bytes + arenas.ALIGNMENT)
        runners = slab.runners(self)
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
        self._arena_pool.release(slab)

    def _made(
        self, count: int, memory: torch.Tensor, places: dict[str, Place], arena: Arena
    ) -> Runner:
        with torch.inference_mode(False), torch.no_grad():
            emitter = Emitter(
                self._network,
                self._shapes(count),
                places,
                arena,
                memory,
                self._packs,
                self.layout,
            )
            steps = [emitter.steps(node) for node in self.nodes]
            forgotten = _last_uses(self.nodes, {*places, *self._results.names})
            return Runner(
                list(zip(steps, forgotten, strict=True)),
                memory,
                emitter,
                self._packs.play,
                self.threads,
            )

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

        arena = arenas.plan(self.nodes, places, size, self._results.names)
        self._layouts[count] = places, arena
        return places, arena

    def native(self, node: Node) -> bool:
        """Whether a node writes into the arena."""
        if isinstance(node, FusedConv):
            return self._packs.kernels[node.value] != "onednn"
        if isinstance(node, StackNode):
            return self._packs.native(node.value)
        return isinstance(node, Concat) and self.layout == "channels_last"

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
    network: Network, nodes: list[Node], outputs: object, weights: Weights
) -> list[tuple[str, dict[str, torch.Tensor], str]]:
    """Tensors of the model that stand among the values: name, and where they are."""
    wanted = dict.fromkeys(name for node in nodes for name in node.inputs())
    wanted.update(dict.fromkeys(refs(outputs)))
    found = []
    for name in wanted:
        if name in network.constants:
            found.append((name, *weights.holder(network.constants[name])))
    return found


def _last_uses(nodes: list[Node], kept: set[str]) -> list[tuple[str, ...]]:
    """Of each node, the values that none behind it takes, but for those in `kept`."""
    seen = set(kept)
    found: list[tuple[str, ...]] = []
    for node in reversed(nodes):
        last = {*node.inputs(), node.value} - seen
        seen |= last
        found.append(tuple(last))
    return found[::-1]
