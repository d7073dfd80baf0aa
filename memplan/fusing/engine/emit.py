"""One node as steps: kernels with their arguments, or calls of torch."""

from __future__ import annotations

from typing import Any

from memplan.fusing.collapse import Stack
from memplan.fusing.convolution import Epilogue, Prologue
from memplan.fusing.convolution import bind as bind_convolution
from memplan.fusing.cuda.run import CudaStack
from memplan.fusing.engine import onednn
from memplan.fusing.engine.packs import Packs, four
from memplan.fusing.engine.places import Arena, Place, copies
from memplan.fusing.engine.runner import Call, Given, Native, Step, Values
from memplan.fusing.front.nest import laid_out
from memplan.fusing.front.trace import has_hooks, overwrites
from memplan.fusing.kernel import Kernel
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Called, Catenated, Joined, Node, Stacked
from memplan.fusing.reference import reference
from memplan.graph.program import Op, mapped

# What depends on how a value lies in memory, and not only on what it holds.
STRIDED = {
    *("view", "view_as", "as_strided", "stride", "is_contiguous", "storage_offset"),
    *("view_as_complex", "data_ptr", "contiguous", "clone", "unsafe_chunk"),
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
        memory: Any,
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

    def _whole(self, name: str, place: Place) -> Any:
        """A tensor of a value's own shape where it lies. One of four dimensions is as
        it is: of a single image, reshaping would change its first stride, by which
        torch's kernels tell that channels are last."""
        planes, shape = self._view(name, place), self._shapes[name]
        return planes if len(shape) == 4 else planes.reshape(shape)

    def _view(self, name: str, place: Place) -> Any:
        """A tensor (n, c, h, w) where a value lies."""
        n, c, height, width = four(self._shapes[name])
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

    def convert(self, tensor: Any) -> Any:
        """A tensor that torch made, (n, c, h, w), laid out as kernels read it."""
        planes = tensor if tensor.dim() == 4 else tensor[:, :, None, None]
        plain = planes.detach().resolve_neg()
        return plain.contiguous(memory_format=self._format())

    def _format(self) -> Any:
        import torch

        return torch.channels_last if self._last else torch.contiguous_format

    def steps(self, node: Node) -> list[Step]:
        """What to run for a node, in order."""
        if isinstance(node, Joined):
            return [self._joined(node)]
        if isinstance(node, Stacked):
            return [self._stacked(node)]
        if isinstance(node, Catenated) and not self._last:
            return [self._catenated(node)]
        if isinstance(node, Catenated):
            return [
                self._copied(piece, target)
                for piece, target in copies(node, self._places, self._shapes)
            ]
        return [self._called(node)]

    def _joined(self, node: Joined) -> Step:
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
        return Native(bound.function, bound.call, given, bound.keep[3:])

    def _by_onednn(self, node: Joined, packed: onednn.Packed) -> Step:
        convolution, activation = node.convolution, node.activation
        source, added, shape = node.source, node.added, self._shapes[node.value]

        def run(values: Values) -> Any:
            other = None if added is None else self.convert(values[added])
            x = self.convert(values[source])
            y = onednn.run(x, packed, convolution, other, activation)
            return y.view(shape) if len(shape) == 2 else y

        return Call(node.value, run)

    def _stacked(self, node: Stacked) -> Step:
        kernel = self._packs.stacks[node.value]
        operands = self._packs.operands(node)
        if not isinstance(kernel, Kernel):
            shape = self._shapes[node.value]

            def run(values: Values) -> Any:
                given = [
                    self.convert(values[each]) if isinstance(each, str) else each
                    for each in operands
                ]
                x = self.convert(values[node.source])
                if isinstance(kernel, Stack):
                    return reference(kernel, x, given).reshape(shape)
                return kernel(x, _as_cuda_takes(kernel, given)).reshape(shape)

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

    def _given(self, structure: Any, fields: dict[str, str | None]) -> list[Given]:
        """Of some pointers, those to values that are not in the arena."""
        return [
            Given(structure, field, name)
            for field, name in fields.items()
            if name is not None and name not in self._places
        ]

    def _tensor(self, name: str) -> Any:
        """The value in the arena; for others, one of its shape, yet to be given."""
        import torch

        if name in self._places:
            return self._view(name, self._places[name])
        return torch.empty(
            four(self._shapes[name]),
            dtype=self._network.dtypes[name],
            memory_format=self._format(),
            device="cpu",
        )

    def _catenated(self, node: Catenated) -> Step:
        import torch

        return Call(
            node.value,
            lambda values: torch.cat([values[each] for each in node.pieces], 1),
        )

    def _copied(self, piece: str, target: Place) -> Step:
        view = self._whole(piece, target)
        return Call("", lambda values: view.copy_(values[piece]))

    def _called(self, node: Node) -> Step:
        assert isinstance(node, Called)
        op = node.op
        over = overwrites(op.target, op.kwargs)
        exact = _minds_strides(op)

        def value(values: Values, name: str) -> Any:
            found = values[name]
            strides = self._network.strides.get(name) if exact else None
            return laid_out(found, strides)

        def run(values: Values) -> Any:
            args, kwargs = mapped(
                (op.args, op.kwargs), lambda ref: value(values, ref.name)
            )
            if over:  # what it takes may be wanted again, or be the caller's
                args = (args[0].clone(), *args[1:])
            return op.target(*args, **kwargs)

        return Call(node.value, run)


def _as_cuda_takes(kernel: CudaStack, operands: list[Any]) -> list[Any]:
    """Operands of one value a channel of each image as (n, c)."""
    kinds = [kind for each in kernel.operations for kind in each.operands]
    return [
        operand.flatten(1) if kind == "image" else operand
        for kind, operand in zip(kinds, operands, strict=True)
    ]


def _minds_strides(op: Op) -> bool:
    import torch

    if isinstance(op.target, torch.nn.Module):
        name = type(op.target).__name__
        return has_hooks(op.target) or not hasattr(torch.nn, name)
    return op.key.rpartition(".")[2] in STRIDED
