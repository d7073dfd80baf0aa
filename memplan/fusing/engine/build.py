"""Nodes bound to kernels, an arena and a tape, for so many images at a time."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from memplan.fusing.engine import places as arenas
from memplan.fusing.engine.emit import Emitter, Packs, native
from memplan.fusing.engine.places import Arena, Place
from memplan.fusing.engine.runner import Runner, Values
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Node
from memplan.graph.program import mapped, refs

MOST_RUNNERS = 4  # idle ones kept for each number of images, for calls at once


class Engine:
    """A network's nodes, ready to run on inputs of the shapes they were built for.

    nodes, outputs: what runs, and a nest of Ref to what it gives. kernels: of each
    convolution by value, the algorithm. batch: how many images go through at a time.
    """

    def __init__(
        self,
        model: Any,
        network: Network,
        nodes: list[Node],
        outputs: Any,
        kernels: dict[str, str],
        batch: int,
    ) -> None:
        import torch

        self._network, self.nodes, self.outputs = network, nodes, outputs
        self.kernels, self.batch = kernels, batch
        self.threads = torch.get_num_threads()
        self.images = next(iter(network.shapes[name] for name in network.inputs))[0]
        self._lock = threading.Lock()
        self._idle: dict[int, list[Runner]] = defaultdict(list)
        self._packs = Packs(model, network, nodes, kernels)
        self._wanted = list(dict.fromkeys(refs(outputs)))
        self._strides: dict[str, tuple[int, ...]] = {}
        self.arena: Arena = self._layout(batch)[1]

    def pack(self) -> None:
        """Take the model's weights as they are now."""
        with self._lock:
            self._packs.fill()
            self._idle.clear()

    def learn(self, expected: Any) -> None:
        """Lay results out as `expected` is, the model's own results."""
        from torch.utils._pytree import tree_leaves

        for name, tensor in zip(refs(self.outputs), tree_leaves(expected), strict=False):
            self._strides[name] = tuple(tensor.stride())

    def run(self, inputs: Values) -> Any:
        """The outputs on these inputs; raises nothing that torch would not."""
        if self.batch >= self.images:
            found = self._part(inputs)
        else:
            found = self._in_parts(inputs)
        return mapped(self.outputs, lambda ref: found[ref.name])

    def _in_parts(self, inputs: Values) -> Values:
        import torch

        found: Values = {}
        for start in range(0, self.images, self.batch):
            stop = min(start + self.batch, self.images)
            cut = {name: value[start:stop] for name, value in inputs.items()}
            for name, value in self._part(cut).items():
                if name not in found:
                    shape = (self.images, *value.shape[1:])
                    strides = self._strides.get(name) or _row_major(shape)
                    found[name] = torch.empty_strided(shape, strides, dtype=value.dtype)
                found[name][start:stop] = value
        return found

    def _part(self, inputs: Values) -> Values:
        """The wanted values on as many images as there are in `inputs`."""
        images = next(iter(inputs.values())).shape[0]
        with self._lock:
            idle = self._idle[images]
            runner = idle.pop() if idle else None
        runner = runner or self._runner(images)
        values = runner.run(inputs)
        found = {name: self._own(name, values[name], runner) for name in self._wanted}
        with self._lock:
            if len(idle) < MOST_RUNNERS:
                idle.append(runner)
        return found

    def _own(self, name: str, value: Any, runner: Runner) -> Any:
        """The value in memory of its own, laid out as the model lays it out."""
        import torch

        if not isinstance(value, torch.Tensor):
            return value
        if value.untyped_storage().data_ptr() != runner.arena.data_ptr():
            return value
        strides = self._strides.get(name)
        if strides is None or len(strides) != value.dim():
            return value.clone()
        own = torch.empty_strided(
            value.shape, _scaled(strides, value.shape), dtype=value.dtype
        )
        return own.copy_(value)

    def _layout(self, images: int) -> tuple[dict[str, Place], Arena]:
        shapes = self._shapes(images)
        places = arenas.place(
            self.nodes, shapes, lambda node: native(node, self.kernels, self._network)
        )
        widths = {each.buffer: each.pixel for each in places.values()}

        def size(buffer: str) -> int:
            n, _, height, width = shapes[buffer]
            item = self._network.dtypes[buffer].itemsize
            return max(1, n * height * width * widths[buffer] * item)

        return places, arenas.plan(self.nodes, places, size, self._wanted)

    def _shapes(self, images: int) -> dict[str, tuple[int, ...]]:
        if images == self.images:
            return self._network.shapes
        return {
            name: (images, *shape[1:])
            if len(shape) == 4 and shape[0] == self.images
            else shape
            for name, shape in self._network.shapes.items()
        }

    def _runner(self, images: int) -> Runner:
        import torch

        places, arena = self._layout(images)
        memory = torch.empty(arena.bytes + arenas.ALIGNMENT, dtype=torch.uint8)
        emitter = Emitter(
            self._network, self._shapes(images), places, arena, memory, self._packs
        )
        steps = [step for node in self.nodes for step in emitter.steps(node)]
        return Runner(
            steps,
            memory,
            emitter.views(),
            emitter.convert,
            self._packs.play,
            self.threads,
        )


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _scaled(strides: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides for fewer images than they were recorded with: the first may be less."""
    return strides
