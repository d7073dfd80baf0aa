"""Nodes bound to kernels, an arena and a tape, for so many images at a time."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from memplan.fusing.engine import places as arenas
from memplan.fusing.engine.emit import Emitter
from memplan.fusing.engine.memory import arena as memory_of
from memplan.fusing.engine.packs import Packs, four
from memplan.fusing.engine.places import Arena, Place
from memplan.fusing.engine.runner import Runner, Values
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Catenated, Joined, Node, Stacked
from memplan.graph.program import mapped, refs

MOST_RUNNERS = 4  # idle ones kept for each number of images, for calls at once


class Engine:
    """A network's nodes, ready to run on inputs of the shapes they were built for.

    nodes, outputs: what runs, and a nest of Ref to what it gives. batch: how many
    images go through at a time. layout: of values in memory, see `Emitter`.
    """

    def __init__(
        self,
        network: Network,
        nodes: list[Node],
        outputs: Any,
        packs: Packs,
        batch: int,
        layout: str,
    ) -> None:
        import torch

        self._network, self.nodes, self.outputs = network, nodes, outputs
        self._packs, self.batch, self.layout = packs, batch, layout
        self.threads = torch.get_num_threads()
        shapes = [network.shapes[name] for name in network.inputs]
        self.images = shapes[0][0] if shapes and shapes[0] else 1
        self._lock = threading.Lock()
        self._idle: dict[int, list[Runner]] = defaultdict(list)
        self._wanted = list(dict.fromkeys(refs(outputs)))
        self._strides: dict[str, tuple[int, ...]] = {}

    @property
    def kernels(self) -> dict[str, str]:
        """The algorithm of each convolution, by value."""
        return self._packs.kernels

    @property
    def arena(self) -> Arena:
        """What its values take while as many images as go at a time run."""
        return self._layout(min(self.batch, self.images))[1]

    def pack(self) -> None:
        """Take the model's weights as they are now."""
        with self._lock:
            self._packs.fill()
            self._idle.clear()

    def learn(self, expected: Any) -> None:
        """Lay results out as `expected` is, the outputs as the model makes them."""
        from torch.utils._pytree import tree_leaves

        leaves = tree_leaves(expected)
        for name, value in zip(refs(self.outputs), leaves, strict=False):
            if hasattr(value, "stride"):
                self._strides[name] = tuple(value.stride())

    def run(self, inputs: Values) -> Any:
        """The outputs on these inputs."""
        found: Values = {}
        for start in range(0, self.images, self.batch):
            stop = min(start + self.batch, self.images)
            whole = stop - start == self.images
            cut = inputs if whole else _cut(inputs, start, stop)
            with self._runner(stop - start) as runner:
                values = runner.run(cut)
                for name in self._wanted:
                    if whole:
                        found[name] = self._own(name, values[name], runner)
                    else:
                        self._put(found, name, values[name], start)
        return mapped(self.outputs, lambda ref: found[ref.name])

    def _own(self, name: str, value: Any, runner: Runner) -> Any:
        """A value that stays when the arena is used again."""
        import torch

        if not isinstance(value, torch.Tensor):
            return value
        if value.device.type != "cpu" or (
            value.untyped_storage().data_ptr() != runner.storage
        ):
            return value
        return self._empty(name, value, tuple(value.shape)).copy_(value)

    def _put(self, found: Values, name: str, value: Any, start: int) -> None:
        """Copy the results of some images to where those of all go."""
        if name not in found:
            found[name] = self._empty(name, value, (self.images, *value.shape[1:]))
        found[name][start : start + value.shape[0]] = value

    def _empty(self, name: str, value: Any, shape: tuple[int, ...]) -> Any:
        import torch

        strides = self._strides.get(name)
        if strides is None or len(strides) != len(shape):
            return torch.empty(shape, dtype=value.dtype, device=value.device)
        return torch.empty_strided(
            shape, strides, dtype=value.dtype, device=value.device
        )

    @contextlib.contextmanager
    def _runner(self, images: int) -> Iterator[Runner]:
        """A runner that no other thread uses meanwhile."""
        with self._lock:
            idle = self._idle[images]
            runner = idle.pop() if idle else None
        runner = runner or self._made(images)
        yield runner
        with self._lock:
            if len(idle) < MOST_RUNNERS:
                idle.append(runner)

    def _made(self, images: int) -> Runner:
        places, arena = self._layout(images)
        memory = memory_of(arena.bytes + arenas.ALIGNMENT)
        emitter = Emitter(
            self._network,
            self._shapes(images),
            places,
            arena,
            memory,
            self._packs,
            self.layout,
        )
        steps = [step for node in self.nodes for step in emitter.steps(node)]
        return Runner(steps, memory, emitter, self._packs.play, self.threads)

    def _layout(self, images: int) -> tuple[dict[str, Place], Arena]:
        shapes = self._shapes(images)
        places = arenas.place(self.nodes, shapes, self._native)
        widths = {each.buffer: each.pixel for each in places.values()}

        def size(buffer: str) -> int:
            n, _, height, width = four(shapes[buffer])
            item = int(self._network.dtypes[buffer].itemsize)
            return max(1, n * height * width * widths[buffer] * item)

        return places, arenas.plan(self.nodes, places, size, self._wanted)

    def _native(self, node: Node) -> bool:
        """Whether a node writes where it is told to."""
        if isinstance(node, Joined):
            return self._packs.kernels[node.value] != "onednn"
        if isinstance(node, Stacked):
            return self._packs.stacks[node.value] is not None
        return isinstance(node, Catenated) and self.layout == "channels_last"

    def _shapes(self, images: int) -> dict[str, tuple[int, ...]]:
        if images == self.images:
            return self._network.shapes
        return {
            name: (images, *shape[1:])
            if len(shape) in (2, 4) and shape[0] == self.images
            else shape
            for name, shape in self._network.shapes.items()
        }


def _cut(inputs: Values, start: int, stop: int) -> Values:
    return {name: value[start:stop] for name, value in inputs.items()}
