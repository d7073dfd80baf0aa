"""Nodes as steps: tapes of kernels with their arguments, and calls of torch between."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from memplan.fusing.collapse import Stack
from memplan.fusing.convolution import Epilogue, Prologue
from memplan.fusing.convolution import bind as bind_convolution
from memplan.fusing.engine import onednn
from memplan.fusing.engine.arena import Arena, Place, copies
from memplan.fusing.engine.packs import Packs, as_4d
from memplan.fusing.kernel import Kernel
from memplan.fusing.layers import Concat, EagerOp, FusedConv, Network, Node, StackNode
from memplan.fusing.reference import reference
from memplan.graph.nest import laid_out
from memplan.graph.program import mapped

Values = dict[str, Any]  # tensors, and what else torch returned
Play = Callable[[object, int, int], None]  # `memplan_tape` of tape.h


class PointerSlot(NamedTuple):
    """A pointer in a ctypes structure that is set to a value's address before a run."""

    structure: ctypes.Structure
    field: str
    value: str


@dataclass(slots=True)
class Native:
    """A kernel and its arguments.

    function: its address. call: a ctypes structure. given: pointers to values
    outside the arena, set before each run. keep: what else the call points into.
    """

    function: int
    call: ctypes.Structure
    given: list[PointerSlot] = field(default_factory=list)
    keep: tuple[object, ...] = ()


@dataclass(slots=True)
class Call:
    """A function of the values, run by Python; its result is the value `name`, or
    nothing where that is empty."""

    name: str
    run: Callable[[Values], object]


Step = Native | Call


class Layout(Protocol):
    """Where values lie, and how kernels read those that lie elsewhere."""

    def views(self) -> Values: ...
    def convert(self, tensor: torch.Tensor) -> torch.Tensor: ...


class _Entry(ctypes.Structure):
    _fields_ = (("function", ctypes.c_void_p), ("call", ctypes.c_void_p))


class _Tape:
    """Kernels that run one after another without Python between them."""

    def __init__(self, steps: list[Native], play: Play | None, threads: int) -> None:
        self._steps, self._play, self._threads = steps, play, threads
        self._entries = (_Entry * len(steps))(
            *(_Entry(step.function, ctypes.addressof(step.call)) for step in steps)
        )
        self._given = [given for step in steps for given in step.given]

    def run(
        self, values: Values, convert: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        held = []  # what kernels read stays until they have run
        for structure, field_, value in self._given:
            tensor = values[value]
            if field_ != "output":  # that lies as it is to lie
                tensor = convert(tensor)
            held.append(tensor)
            setattr(structure, field_, tensor.data_ptr())
        assert self._play is not None  # where there are kernels there is a tape
        self._play(self._entries, len(self._entries), self._threads)


@dataclass(slots=True)
class _Part:
    """A tape or a call, and the values that are dead after it."""

    run: _Tape | Call
    forget: list[str] = field(default_factory=list)


class Runner:
    """Steps bound to one arena; one thread runs it at a time.

    steps: of every node, and the values that nothing behind it takes. memory: the
    arena. layout: what says where values lie in it, and lays out others as kernels want
    them. play: the library's function that runs a tape.
    """

    def __init__(
        self,
        steps: list[tuple[list[Step], tuple[str, ...]]],
        memory: torch.Tensor,
        layout: Layout,
        play: Play | None,
        threads: int,
    ) -> None:
        self._memory, self._convert = memory, layout.convert
        self.storage = memory.untyped_storage().data_ptr()
        self._views = layout.views()
        self._parts: list[_Part] = []
        run: list[Native] = []
        forget: list[str] = []

        def close() -> None:
            if run:
                self._parts.append(_Part(_Tape(list(run), play, threads)))
            if self._parts:
                self._parts[-1].forget.extend(forget)
            run.clear()
            forget.clear()

        for taken, last in steps:
            for step in taken:
                if isinstance(step, Native):
                    run.append(step)
                else:
                    close()
                    self._parts.append(_Part(step))
            forget.extend(last)
            if not run:
                close()
        close()

    def run(self, inputs: Values) -> Values:
        """All live values at the end; those in the arena are valid until the next
        run."""
        values = {**self._views, **inputs}
        for part in self._parts:
            step = part.run
            if isinstance(step, _Tape):
                step.run(values, self._convert)
            else:
                result = step.run(values)
                if step.name:
                    values[step.name] = result
            for name in part.forget:
                values.pop(name, None)
        return values


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

    def __init__(  # noqa: PLR0913, PLR0917 - what the engine has
        self,
        network: Network,
        shapes: dict[str, tuple[int, ...]],
        places: dict[str, Place],
        arena: Arena,
        memory: torch.Tensor,
        packs: Packs,
        layout: str,
    ) -> None:
        self._network, self._shapes, self._places = network, shapes, places
        self._arena, self._memory, self._packs = arena, memory, packs
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
        flat = self._memory.view(dtype=self._network.dtypes[name])
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
        packed = self._packs.convolutions[node.value]
        if isinstance(packed, onednn.Packed):
            return self._by_onednn(node, packed)
        prologue = Prologue()
        if node.before is not None:
            vectors = self._packs.vectors[node.before]
            prologue = Prologue(*vectors, relu=node.rectified)
        added = None if node.added is None else self._tensor(node.added)
        bound = bind_convolution(
            packed,
            self._tensor(node.source),
            self._tensor(node.value),
            prologue,
            Epilogue(added, clamp=node.activation),
        )
        fields = {"input": node.source, "output": node.value, "add": node.added}
        given = self._given(bound.call, fields)
        return Native(bound.function, bound.call, given, bound.held[3:])

    def _by_onednn(self, node: FusedConv, packed: onednn.Packed) -> Step:
        convolution, activation = node.convolution, node.activation
        source, added, shape = node.source, node.added, self._shapes[node.value]

        def run(values: Values) -> object:
            other = None if added is None else self.convert(values[added])
            x = self.convert(values[source])
            y = onednn.run(x, packed, convolution, other, activation)
            return y.view(shape) if len(shape) == 2 else y

        return Call(node.value, run)

    def _stacked(self, node: StackNode) -> Step:
        kernel = self._packs.stacks[node.value]
        operands = self._packs.operands(node)
        if not isinstance(kernel, Kernel):
            shape = self._shapes[node.value]

            def run(values: Values) -> object:
                given = [
                    self.convert(values[each]) if isinstance(each, str) else each
                    for each in operands
                ]
                x = self.convert(values[node.source])
                if isinstance(kernel, Stack):
                    return reference(kernel, x, given).reshape(shape)
                return kernel(x, given).reshape(shape)

            return Call(node.value, run)
        tensors = [
            self._tensor(each) if isinstance(each, str) else each for each in operands
        ]
        bound = kernel.bind(
            self._tensor(node.source), tensors, self._tensor(node.value)
        )
        given = self._given(bound.call, {"input": node.source, "output": node.value})
        for entry, each in zip(bound.held[0], operands, strict=False):
            if isinstance(each, str):
                given += self._given(entry, {"data": each})
        return Native(bound.function, bound.call, given, bound.held)

    def _given(
        self, structure: ctypes.Structure, fields: dict[str, str | None]
    ) -> list[PointerSlot]:
        """The pointers to values outside the arena."""
        return [
            PointerSlot(structure, field, name)
            for field, name in fields.items()
            if name is not None and name not in self._places
        ]

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
        return Call(
            node.value,
            lambda values: torch.cat([values[each] for each in node.pieces], 1),
        )

    def _copied(self, piece: str, target: Place) -> Step:
        view = self._whole(piece, target)
        return Call("", lambda values: view.copy_(values[piece]))

    def _called(self, node: Node) -> Step:
        assert isinstance(node, EagerOp)
        op = node.op
        exact = op.key in STRIDED or not hasattr(op.target, "overloadpacket")

        def value(values: Values, name: str) -> object:
            found = values[name]
            strides = self._network.strides.get(name) if exact else None
            return laid_out(found, strides)

        def run(values: Values) -> object:
            args, kwargs = mapped(
                (op.args, op.kwargs), lambda ref: value(values, ref.name)
            )
            return op.target(*args, **kwargs)

        return Call(node.value, run)
