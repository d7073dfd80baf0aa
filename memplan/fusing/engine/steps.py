"""Nodes as steps: tapes of kernels with their arguments, and calls of torch between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from memplan.fusing.engine import onednn
from memplan.fusing.engine.arena import Arena, Place, copies
from memplan.fusing.engine.packs import Packs, as_4d
from memplan.fusing.kernel import Kernel
from memplan.fusing.layers import Concat, EagerOp, FusedConv, Node, StackNode
from memplan.graph.native import Bound, Segment
from memplan.graph.nest import laid_out
from memplan.graph.program import mapped

Values = dict[str, Any]  # tensors, and what else torch returned


Step = Bound | Callable[[Values], None]
"""A kernel, or a function that changes the values."""


class _Tape:
    """Kernels that run one after another without Python between them."""

    def __init__(self, steps: list[Bound], emitter: Emitter) -> None:
        self._convert, play = emitter.convert, emitter.packs.play
        assert play is not None  # where there are kernels there is a tape
        self._given = [slot for step in steps for slot in step.given]
        slots = [slot._replace(value=i) for i, slot in enumerate(self._given)]
        self._segment = Segment(play, steps, slots)

    def __call__(self, values: Values) -> None:
        # An output lies as it is to lie.
        self._segment(
            [
                values[name] if field == "output" else self._convert(values[name])
                for _, field, name in self._given
            ]
        )


class Runner:
    """Nodes bound to the arena of an emitter; one thread runs it at a time.

    kept: names of values that are wanted at the end.
    """

    def __init__(self, emitter: Emitter, nodes: list[Node], kept: set[str]) -> None:
        self._memory, self._views = emitter.memory, emitter.views()
        self.storage = self._memory.untyped_storage().data_ptr()
        self._run: list[Callable[[Values], None]] = []
        tape: list[Bound] = []
        gone: set[str] = set()

        def close() -> None:
            if tape:
                self._run.append(_Tape(list(tape), emitter))
            if gone:
                self._run.append(partial(_forget, set(gone)))
            tape.clear()
            gone.clear()

        kept = kept | self._views.keys()
        for node, dead in zip(nodes, _last_uses(nodes, kept), strict=True):
            for step in emitter.steps(node):
                if isinstance(step, Bound):
                    tape.append(step)
                else:
                    close()
                    self._run.append(step)
            gone |= dead
            if not tape:
                close()
        close()

    def run(self, inputs: Values) -> Values:
        """All live values at the end; those in the arena are valid until the next
        run."""
        values = {**self._views, **inputs}
        for step in self._run:
            step(values)
        return values


def _forget(names: set[str], values: Values) -> None:
    for name in names:
        values.pop(name, None)


def _last_uses(nodes: list[Node], kept: set[str]) -> list[set[str]]:
    """Of each node, the values that none behind it takes, but for those in `kept`."""
    seen, found = set(kept), []
    for node in reversed(nodes):
        last = {*node.inputs(), node.value} - seen
        seen |= last
        found.append(last)
    return found[::-1]


# What depends on how a value lies in memory, not only on what it holds.
STRIDED = {
    *("aten.view", "aten._unsafe_view", "aten.as_strided", "aten.view_as_complex"),
    *("aten.view_as_real", "aten.clone"),
}


class Emitter:
    """Makes the steps of nodes for one arena.

    shapes: of all values, for as many images as run at a time. memory: the arena, a
    uint8 tensor with room to align it. layout: "channels_last", or "channels_first"
    where every value is contiguous.
    """

    def __init__(
        self,
        packs: Packs,
        layout: str,
        shapes: dict[str, tuple[int, ...]],
        places: dict[str, Place],
        arena: Arena,
        memory: torch.Tensor,
    ) -> None:
        self.packs, self._network = packs, packs.network
        self._shapes, self._places = shapes, places
        self._arena, self.memory = arena, memory
        self._last = layout == "channels_last"
        self._skipped = -memory.data_ptr() % 64

    def views(self) -> Values:
        """The values in the arena, as tensors of their shapes."""
        return {name: self._whole(name, place) for name, place in self._places.items()}

    def _whole(self, name: str, place: Place) -> torch.Tensor:
        """A tensor of a value's own shape where it lies. One of four dimensions is as
        it is: of a single image, reshaping would change its first stride, by which
        torch's kernels tell that channels are last."""
        planes, shape = self._view(name, place), self._shapes[name]
        return planes if len(shape) == 4 else planes.reshape(shape)

    def _view(self, name: str, place: Place) -> torch.Tensor:
        """A tensor (n, c, h, w) where a value lies."""
        n, c, height, width = as_4d(self._shapes[name])
        flat = self.memory.view(dtype=self._network.dtypes[name])
        start = self._bytes(place) // flat.element_size()
        if not self._last:
            count = n * c * height * width
            return flat[start : start + count].view(n, c, height, width)
        row = width * place.pixel
        strides = (height * row, 1, row, place.pixel)
        return flat.as_strided((n, c, height, width), strides, start + place.channel)

    def _bytes(self, place: Place) -> int:
        return int(self._skipped) + self._arena.offsets[place.buffer]

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that torch made, (n, c, h, w), laid out as kernels read it."""
        planes = tensor if tensor.dim() == 4 else tensor[:, :, None, None]
        plain = planes.detach().resolve_neg()
        return plain.contiguous(memory_format=self._format())

    def _format(self) -> torch.memory_format:
        return torch.channels_last if self._last else torch.contiguous_format

    def steps(self, node: Node) -> list[Step]:
        """What to run for a node, in order."""
        if isinstance(node, FusedConv):
            return [self._joined(node)]
        if isinstance(node, StackNode):
            return [self._stacked(node)]
        if isinstance(node, Concat) and not self._last:
            return [self._catenated(node)]
        if isinstance(node, Concat):
            return [
                self._copied(piece, target)
                for piece, target in copies(node, self._places, self._shapes)
            ]
        return [self._called(node)]

    def _joined(self, node: FusedConv) -> Step:
        packed = self.packs.convolutions[node.value]
        if isinstance(packed, onednn.Packed):
            return self._by_onednn(node, packed)
        return self._bound(node)

    def _bound(self, node: FusedConv | StackNode) -> Bound:
        bound = self.packs.bind(node, self._tensor)
        bound.given = [each for each in bound.given if each.value not in self._places]
        return bound

    def _by_onednn(self, node: FusedConv, packed: onednn.Packed) -> Step:
        convolution, activation = node.convolution, node.activation
        source, added, shape = node.source, node.added, self._shapes[node.value]

        def run(values: Values) -> None:
            other = None if added is None else self.convert(values[added])
            x = self.convert(values[source])
            y = onednn.run(x, packed, convolution, other, activation)
            values[node.value] = y.view(shape) if len(shape) == 2 else y

        return run

    def _stacked(self, node: StackNode) -> Step:
        kernel = self.packs.stacks[node.value]
        if isinstance(kernel, Kernel):
            return self._bound(node)
        shape = self._shapes[node.value]

        def run(values: Values) -> None:
            given = self.packs.tensors(node, lambda name: self.convert(values[name]))
            x = self.convert(values[node.source])
            values[node.value] = kernel(x, given).reshape(shape)

        return run

    def _tensor(self, name: str) -> torch.Tensor:
        """The value in the arena; for others, a placeholder of its shape."""
        if name in self._places:
            return self._view(name, self._places[name])
        return torch.empty(
            as_4d(self._shapes[name]),
            dtype=self._network.dtypes[name],
            memory_format=self._format(),
            device="cpu",
        )

    def _catenated(self, node: Concat) -> Step:
        def run(values: Values) -> None:
            values[node.value] = torch.cat([values[each] for each in node.pieces], 1)

        return run

    def _copied(self, piece: str, target: Place) -> Step:
        view = self._whole(piece, target)

        def run(values: Values) -> None:
            view.copy_(values[piece])

        return run

    def _called(self, node: EagerOp) -> Step:
        op = node.op
        exact = op.key in STRIDED or not hasattr(op.target, "overloadpacket")
        strides = self._network.strides if exact else {}

        def run(values: Values) -> None:
            args, kwargs = mapped(
                (op.args, op.kwargs),
                lambda ref: laid_out(values[ref.name], strides.get(ref.name)),
            )
            values[node.value] = op.target(*args, **kwargs)

        return run
