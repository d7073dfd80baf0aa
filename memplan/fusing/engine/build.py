"""Nodes bound to kernels, an arena and a tape, for so many images at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from memplan.fusing.engine import places as arenas
from memplan.fusing.engine.emit import Emitter
from memplan.fusing.engine.packs import Packs, four
from memplan.fusing.engine.places import Arena, Place
from memplan.fusing.engine.results import Results
from memplan.fusing.engine.runner import Runner, Values
from memplan.fusing.engine.slabs import Slabs
from memplan.fusing.front.nest import bytes_of, changed, storages
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Catenated, Joined, Node, Stacked, gates
from memplan.graph.program import refs

MOST_RUNNERS = 4  # of an engine, bound to one slab: whole batches and their rests


class Engine:
    """A network's nodes, ready to run on inputs of the shapes they were built for.

    nodes, outputs: what runs, and a nest of Ref to what it gives. batch: how many
    images go through at a time. layout: of values in memory, see `Emitter`. slabs:
    where arenas come from.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a network's run is made of
        self,
        network: Network,
        nodes: list[Node],
        outputs: Any,
        packs: Packs,
        batch: int,
        layout: str,
        slabs: Slabs | None = None,
    ) -> None:
        import torch

        self._network, self.nodes, self.outputs = network, nodes, outputs
        self._packs, self.batch, self.layout = packs, batch, layout
        self._slabs = slabs or Slabs()
        self.threads = torch.get_num_threads()
        self.images = images(network)
        self._lock = threading.Lock()
        self._packed = 0  # how often; runners hold what was packed then
        self._results = Results(outputs, network, self.images)
        self._constants = _constants(network, nodes, outputs, packs.model)
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
        """What it asks `slabs` for, at most."""
        return self.arena.bytes + arenas.ALIGNMENT

    def pack(self) -> None:
        """Take the model's weights as they are now."""
        with self._lock:
            self._packs.fill()
            self._packed += 1

    def learn(self, expected: Any, inputs: Values) -> None:
        """Lay results out as `expected` is, what the model made of `inputs`.

        Before anything runs: those that lie as kernels write them are not copied.
        """
        self._results.learn(expected, inputs)
        taken = {name for node in self.nodes for name in node.inputs()}
        self._written = frozenset(
            node.value
            for node in self.nodes
            if isinstance(node, Joined | Stacked)
            and self.native(node)
            and node.value not in taken
            and self._results.lies(node.value, self._dense(node.value))
        )
        self._layouts.clear()

    def _dense(self, name: str) -> tuple[int, ...]:
        """The strides of a value (n, c, h, w) that fills its memory in the layout."""
        _, c, height, width = four(self._network.shapes[name])
        if self.layout == "channels_last":
            return c * height * width, 1, c * width, c
        return c * height * width, height * width, width, 1

    def peak(self, inputs: Values) -> int:
        """Bytes of the arena, of what torch makes beside it, and of the results, at
        their peak."""
        constants = self._fetched()
        count = min(self.batch, self.images)
        whole = count == self.images
        given = inputs if whole else {name: x[:count] for name, x in inputs.items()}
        peak, kept = 0, storages([*given.values(), *constants.values()])

        def look(values: Values) -> None:
            nonlocal peak
            peak = max(peak, bytes_of(values.values(), kept))

        with self._runner(count) as runner:
            kept.add(runner.storage)
            own = self._fresh(count)
            values = runner.run({**constants, **given, **own}, look)
            results = [values[name] for name in self._results.names]
            size = bytes_of([changed(each, _copy) for each in results], kept)
        rest = 0 if whole else size * self.images // count
        return self.arena.bytes + max(peak, size) + rest

    def _fetched(self) -> Values:
        return {
            name: getattr(owner, attribute)
            for name, owner, attribute in self._constants
        }

    def run(self, inputs: Values) -> Any:
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
        """A runner that no other thread uses meanwhile."""
        places, arena = self._layout(count)
        slab = self._slabs.take(arena.bytes + arenas.ALIGNMENT)
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
        self._slabs.give(slab)

    def _made(
        self, count: int, memory: Any, places: dict[str, Place], arena: Arena
    ) -> Runner:
        import torch

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
            n, _, height, width = four(shapes[buffer])
            item = int(self._network.dtypes[buffer].itemsize)
            return max(1, n * height * width * widths[buffer] * item)

        arena = arenas.plan(self.nodes, places, size, self._results.names)
        self._layouts[count] = places, arena
        return places, arena

    def native(self, node: Node) -> bool:
        """Whether a node writes where it is told to."""
        if isinstance(node, Joined):
            return self._packs.kernels[node.value] != "onednn"
        if isinstance(node, Stacked):
            return self._packs.native(node.value)
        return isinstance(node, Catenated) and self.layout == "channels_last"

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


def _copy(tensor: Any) -> Any:
    return tensor.clone()


def images(network: Network) -> int:
    """How many a call has: the first number of the first input's shape."""
    shapes = [network.shapes[name] for name in network.inputs]
    return shapes[0][0] if shapes and shapes[0] else 1


def _constants(
    network: Network, nodes: list[Node], outputs: Any, model: Any
) -> list[tuple[str, Any, str]]:
    """Tensors of the model that stand among the values: name, module, attribute."""
    wanted = dict.fromkeys(name for node in nodes for name in node.inputs())
    wanted.update(dict.fromkeys(refs(outputs)))
    found = []
    for name in wanted:
        if name in network.constants:
            owner, _, attribute = network.constants[name].rpartition(".")
            found.append((name, model.get_submodule(owner), attribute))
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
