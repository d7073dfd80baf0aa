"""A program as a tape: operators that run in one arena, called by torch's interpreter.

Storages of the arena are bound once, as tensors over it. A tape is a graph of
TorchScript's intermediate form, which torch runs in C++ without Python between the
operators. Views of the arena and of weights are made when the tape is bound, so they
cost nothing; values that depend on the inputs' addresses are made as it runs. Operators
that make their results themselves get the memory that they ask for from the arena, too.
Kernels of memplan's own run in segments, each as one operator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from memplan.graph.held import HeldResults
from memplan.graph.liveness import bytes_of, in_place
from memplan.graph.native import OPERATOR, OUT, Assembled, Bound, Native, Segment
from memplan.graph.program import Argument, Meta, Op, Program, Ref, mapped, refs
from memplan.graph.requests import HOST, TORCH, Placed, Service
from memplan.graph.script import NoTapeError, Text, code, element, schema_name, spelled

Out = Any
"""An overload with one tensor `out` that it writes, beside the arguments of another."""

# A slice where its operator does not say otherwise.
WHOLE = {"dim": 0, "start": 0, "end": sys.maxsize, "step": 1}


@dataclass(frozen=True)
class Served:
    """How an operator writes into a tensor that it is given: by the overload `target`.

    over: it writes over its first operand; where that must stay, over a copy.
    """

    target: Out
    over: bool = False


def writers(op: Op) -> Iterator[Served]:
    """Overloads that may compute `op` into a given tensor; a trial must confirm them.

    Many `out` overloads compute a result of their own and copy it.
    """
    if not isinstance(op.target, torch._ops.OpOverload):
        return
    schema = op.target._schema
    wanted = [(each.name, str(each.type)) for each in schema.arguments]
    for name in op.target.overloadpacket.overloads():
        found = getattr(op.target.overloadpacket, name)
        given = found._schema.arguments
        outs = [each for each in given if each.is_out]
        rest = [(each.name, str(each.type)) for each in given if not each.is_out]
        if len(outs) == 1 and rest == wanted and not _is_ambiguous(found):
            yield Served(found)
    over = in_place(op)
    if isinstance(over, torch._ops.OpOverload):
        yield Served(over, over=True)


def _is_ambiguous(target: Out) -> bool:
    """Whether another overload takes arguments of the same types: a graph's text has no
    overloads, so max into a tensor would be the larger of two tensors."""
    packet, own = target.overloadpacket, target._overloadname
    return any(
        _types(getattr(packet, name)) == _types(target)
        for name in packet.overloads()
        if name != own and getattr(packet, name)._overloadname != own
    )


def _types(target: Out) -> list[str]:
    return [str(each.type) for each in target._schema.arguments]


@dataclass(frozen=True)
class Layout:
    """Where the results of a program's operators lie.

    offsets: bytes, of each storage in the arena by its root. over: results that lie in
    the memory of an operand, by their name. served: of operators, how they write where
    they are told; the others make results of their own. asked: what these ask for, and
    where in the arena it lies; torch allocates the rest. host, lent: a result, and
    offsets of storages that lie in its memory until it is written.
    """

    offsets: Mapping[str, int]
    over: Mapping[str, str]
    served: Mapping[str, Served]
    asked: Mapping[str, Sequence[Placed]]
    host: str = ""
    lent: Mapping[str, int] = field(default_factory=dict)


class Tape:
    """A program bound to an arena of its own; one call at a time.

    program: flat, without loops. constants: the values of `program.constants`, and of
    constants that passes made.
    """

    def __init__(
        self,
        program: Program,
        arena: Tensor,
        layout: Layout,
        constants: Mapping[str, Tensor],
    ) -> None:
        asked = layout.asked
        self._service = Service(arena, asked) if asked else None
        self._program, self._arena, self._layout = program, arena, layout
        self._text = Text()
        self._marked = torch.empty(0, dtype=torch.uint8)
        self._real: dict[str, Any] = dict(constants)  # what stays where it is
        self._names: dict[str, str] = {n: f"%{n}" for n in program.inputs}
        self._storage: dict[str, str] = {}  # of results over operands: the arena's root
        self._kernels: list[tuple[Op, Bound]] = []  # those that run together
        self._segments: list[Segment] = []
        self._host = ""
        if layout.host:
            self._host = self._new(program.metas[layout.host], HOST)
        for op in program.ops:
            assert isinstance(op, Op)
            self._step(op)
        self._close()
        self.results = list(dict.fromkeys(refs(program.outputs)))
        self._held = HeldResults()
        self.given: list[StorageWeakRef] = []
        for name in self.results:
            self._hold(name)
        made = [name for name in self.results if name not in self._held]
        # Without autograd's part of each call; views of the caller's need that.
        self._below = not any(program.roots[name] in program.inputs for name in made)
        outputs = [self._result(name) for name in made]
        inputs = [f"%{name}" for name in program.inputs]
        self.source = self._text.source(inputs, outputs)
        self._run = torch._C._create_function_from_graph(
            "tape", torch._C.parse_ir(self.source)
        )

    def __call__(
        self, inputs: Sequence[Tensor], copies: bool = False
    ) -> tuple[Tensor, ...]:
        """The tensors of `results`, for inputs in the program's order.

        Those that lie in the arena are valid up to the next call, and `given` are their
        storages; with `copies` they are copied.
        """
        text, service = self._text, self._service
        # Optimized, equal operators would become one, whose result then lives longer
        # than planned, and what depends on no input would be computed once.
        optimizes = torch._C._get_graph_executor_optimize()
        below = None
        try:
            torch._C._set_graph_executor_optimize(False)
            if service is not None:
                service.begin()
            if self._below:
                below = torch._C._AutoDispatchBelowAutograd()
            made = self._run(*inputs, text.tensors, text.numbers, text.marks)
        finally:
            del below  # ends it
            if service is not None:
                service.end()
            torch._C._set_graph_executor_optimize(optimizes)
        if not self._held:
            return tuple(made)
        held, self.given = self._held.tensors()
        if copies:
            held = {name: each.clone() for name, each in held.items()}
        others = iter(made)
        return tuple(
            held[name] if name in held else next(others) for name in self.results
        )

    @property
    def tensors(self) -> list[Tensor]:
        """The bound tensors, in the order of `source`."""
        return self._text.tensors

    @property
    def numbers(self) -> list[float]:
        """The bound numbers, likewise."""
        return self._text.numbers

    @property
    def missed(self) -> int:
        """Requests of the last call that differed from those known of its operators."""
        return self._service.missed if self._service is not None else 0

    def _hold(self, name: str) -> None:
        """Find where in the arena a result lies, if it does."""
        own: str = self._program.roots[name]
        root = self._storage.get(own, own)
        at = self._layout.offsets.get(root)
        real = self._real.get(name)
        if at is None or real is None or real.is_conj() or real.is_neg():
            return
        part = self._arena[at : at + bytes_of(self._program, root)]
        self._held.add(name, real, root, part)

    def _result(self, name: str) -> str:
        """A tensor for the caller: never a view of the arena or of a constant."""
        if name in self._names:
            return self._names[name]
        self._mark(TORCH)
        line = f"aten::clone({self._value(Ref(name))}, {self._none()})"
        return self._emit("Tensor", line)

    def _emit(self, kind: str, call: str) -> str:
        name = self._text.fresh()
        self._text.lines.append(f"{name} : {kind} = {call}")
        return name

    def _none(self) -> str:
        return self._text.constant("NoneType", "")

    def _step(self, op: Op) -> None:
        if isinstance(op.target, Native):
            self._kernel(op, op.target)
            return
        if isinstance(op.target, Assembled):
            if op.target.copies:
                self._close()
            self._assemble(op, op.target)
            return
        root = self._program.roots[op.name]
        own = root == op.name or (isinstance(root, tuple) and f"{op.name}[" in root[0])
        known = all(name in self._real for name in op.operands())
        if not own and known and op.target is not getitem:
            self._real[op.name] = self._call(op)  # a view, made once
            return
        self._close()
        served = self._layout.served.get(op.name)
        if op.target is getitem:
            self._item(op)
        elif not own or served is None:
            self._mark(op.name)
            self._asks(op)
        else:
            self._written(op, served)

    def _written(self, op: Op, served: Served) -> None:
        """An operator that writes its result where it is told."""
        target = self._target(op)
        if op.key == "aten.empty_strided":
            return
        self._mark(op.name)  # for what the kernel asks for, if anything
        if op.key in COPIES:
            self._copy(op, target)
        elif op.key == "aten.slice_scatter":
            self._scatter(op, target)
        elif served.over:
            if op.name not in self._layout.over:
                self._copied(target, op.args[0])
            written = Op(op.name, served.target, op.args[1:], op.kwargs)
            self._calls(served.target, written, target, first=True)
        else:
            self._calls(served.target, op, target)

    def _calls(self, target: Out, op: Op, out: str, first: bool = False) -> None:
        args = self._arguments(target, op, out, first)
        self._emit("Tensor", f"{schema_name(target)}({args})")

    def _kernel(self, op: Op, target: Native) -> None:
        """A kernel, which runs with those before and behind it."""
        if target.into:
            self._is(op, op.args[-1].name)
        else:
            self._target(op)
        operands = [self._known(name) for name in op.operands()]
        ((size, at, _),) = self._layout.asked.get(op.name) or [(0, 0, True)]
        scratch = self._arena[at : at + size]
        call = target.call(operands, self._known(op.name), scratch)
        self._play = target.play
        self._kernels.append((op, call))

    def _is(self, op: Op, other: str) -> None:
        """The operator's value is another one."""
        known = self._real if other in self._real else self._names
        known[op.name] = known[other]

    def _assemble(self, op: Op, target: Assembled) -> None:
        """Copies of what does not lie in the whole yet."""
        operands = op.operands()
        for position, part in target.copies.items():
            self._put(operands[0], (*part, 1), Ref(operands[position]))
        self._is(op, operands[0])

    def _put(self, whole: str, part: Sequence[int], source: Ref) -> None:
        """Copy into a slice of a value: a dimension, its start, end and step."""
        if whole in self._real:
            view = torch.ops.aten.slice.Tensor(self._real[whole], *part)
            self._copied(self._text.bound(view), source)
            return
        words = ", ".join(map(self._whole, part))
        view = self._emit("Tensor", f"aten::slice({self._names[whole]}, {words})")
        self._copied(view, source)

    def _known(self, name: str) -> Tensor:
        """The tensor that stays where it is, or one of its form."""
        found: Tensor | None = self._real.get(name)
        if found is None:
            meta: Meta = self._program.metas[name]
            found = torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype)
        return found

    def _close(self) -> None:
        """The kernels since the last operator of torch, as one operator."""
        if not self._kernels:
            return
        names: dict[str, int] = {}  # of tensors that are made as the tape runs
        slots = []
        for op, call in self._kernels:
            operands = op.operands()
            for slot in call.given:
                at = slot.value
                name = op.name if at == OUT else operands[at]
                if name not in self._real:
                    number = names.setdefault(name, len(names))
                    slots.append(slot._replace(value=number))
        segment = Segment(self._play, [call for _, call in self._kernels], slots)
        self._segments.append(segment)
        self._kernels = []
        # Without a tensor that is seen from outside, torch would leave it out.
        words = [*(self._names[name] for name in names), self._text.bound(self._marked)]
        tensors = self._text.list_of("Tensor[]", words)
        self._emit("int", f"{OPERATOR}({tensors}, {self._whole(segment.number)})")

    def _target(self, op: Op) -> str:
        """The tensor that the operator writes: in the arena, or new for a result."""
        over = self._layout.over.get(op.name)
        root = op.name
        if over is not None:
            where: str = self._program.roots[over]
            root = self._storage.get(where, where)
            self._storage[op.name] = root
        meta: Meta = self._program.metas[op.name]
        if root in self._layout.offsets:
            tensor = placed(self._arena, self._layout.offsets[root], meta)
            self._real[op.name] = tensor
            return self._text.bound(tensor)
        if root in self._layout.lent:
            name = self._in_host(self._layout.lent[root], meta)
        elif over is not None:
            name = self._names[over]
        else:
            name = self._host if root == self._layout.host else self._new(meta)
        self._names[op.name] = name
        return name

    def _in_host(self, offset: int, meta: Meta) -> str:
        """The tensor of this form at `offset` bytes of a result that comes later."""
        first = offset // int(meta.dtype.itemsize)
        words = [self._ints(meta.shape), self._ints(meta.strides), self._whole(first)]
        return self._emit(
            "Tensor", f"aten::as_strided({self._host}, {', '.join(words)})"
        )

    def _new(self, meta: Meta, mark: str = TORCH) -> str:
        self._mark(mark)
        size = self._ints(meta.shape)
        stride = self._ints(meta.strides)
        options = ", ".join(
            (self._whole(code(meta.dtype)), self._none(), self._none(), self._none())
        )
        return self._emit("Tensor", f"aten::empty_strided({size}, {stride}, {options})")

    def _copy(self, op: Op, target: str) -> None:
        """A copy in another layout, shape or dtype: written through a view."""
        source = op.args[0].name
        shape = self._program.metas[source].shape
        if shape != self._program.metas[op.name].shape:
            if op.name in self._real:
                target = self._text.bound(self._real[op.name].view(shape))
            else:
                target = self._emit(
                    "Tensor", f"aten::view({target}, {self._ints(shape)})"
                )
        self._copied(target, op.args[0])

    def _scatter(self, op: Op, target: str) -> None:
        """Part of the first operand, replaced by the second."""
        if op.name not in self._layout.over:
            self._copied(target, op.args[0])
        given = dict(zip(WHOLE, op.args[2:], strict=False)) | op.kwargs
        own = {name: value for name, value in given.items() if value is not None}
        self._put(op.name, [*(WHOLE | own).values()], op.args[1])

    def _copied(self, target: str, source: Ref) -> None:
        blocking = self._text.constant("bool", "[value=0]")
        call = f"aten::copy_({target}, {self._value(source)}, {blocking})"
        self._emit("Tensor", call)

    def _mark(self, name: str) -> None:
        """Tell the service that this operator's requests come next."""
        if self._service is None or name not in self._service.marks:
            return
        text = self._text
        size = text.list_of("int[]", [f"%m{len(text.marks)}"])
        text.marks.append(self._service.marks[name])
        options = ", ".join((self._whole(code(torch.uint8)), *[self._none()] * 4))
        made = self._emit("Tensor", f"aten::empty({size}, {options})")
        # Without a use that is seen from outside, torch would leave it out.
        self._emit("Tensor", f"aten::set_({text.bound(self._marked)}, {made})")

    def _asks(self, op: Op) -> None:
        """A call whose results torch allocates."""
        target: Any = op.target
        if not isinstance(target, torch._ops.OpOverload):
            raise NoTapeError(f"the operator {op.key}")
        call = f"{schema_name(target)}({self._arguments(target, op, None)})"
        kinds = [spelled(each.type) for each in target._schema.returns]
        names = [self._text.fresh() for _ in kinds]
        heads = ", ".join(f"{n} : {k}" for n, k in zip(names, kinds, strict=True))
        self._text.lines.append(f"{heads} = {call}")
        if len(names) == 1:
            self._names[op.name] = names[0]
        for i, name in enumerate(names):
            self._names[f"{op.name}[{i}]"] = name

    def _item(self, op: Op) -> None:
        source, index = op.args[0].name, op.args[1]
        if source in self._real:
            self._real[op.name] = self._real[source][index]
        elif (name := f"{source}[{index}]") in self._names and (
            f"{source}[1]" in self._names or source not in self._names
        ):
            self._names[op.name] = self._names[name]
        else:
            at = self._whole(index)
            call = f"aten::__getitem__({self._names[source]}, {at})"
            self._names[op.name] = self._emit("Tensor", call)

    def _call(self, op: Op) -> Any:
        args, kwargs = mapped((op.args, op.kwargs), lambda ref: self._real[ref.name])
        with torch.no_grad():
            return op.target(*args, **kwargs)

    def _value(self, value: Ref) -> str:
        if value.name in self._names:
            return self._names[value.name]
        return self._text.bound(self._real[value.name])

    def _arguments(
        self, target: Out, op: Op, out: str | None, first: bool = False
    ) -> str:
        """The arguments in the schema's order. first: `out` is the first of them."""
        kwargs = dict(op.kwargs)
        words, args = [], list(op.args)
        for i, each in enumerate(target._schema.arguments):
            if each.is_out or (first and not i):
                assert out is not None
                words.append(out)
            elif args:
                words.append(self._word(args.pop(0), each.type))
            elif each.name in kwargs:
                words.append(self._word(kwargs[each.name], each.type))
            else:
                words.append(self._word(each.default_value, each.type))
        return ", ".join(words)

    def _word(self, value: Argument, kind: Any) -> str:  # noqa: PLR0911
        text = self._text
        if isinstance(value, Ref):
            return self._value(value)
        if value is None:
            return self._none()
        if isinstance(value, tuple | list):
            return self._list(value, kind)
        if isinstance(value, bool):
            return text.constant("bool", f"[value={int(value)}]")
        if isinstance(value, float) or str(kind) == "float":
            return text.number(float(value))
        if isinstance(value, int):
            return self._whole(value)
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return self._whole(code(value))
        if isinstance(value, torch.device):
            return text.constant("Device", f'[value="{value}"]')
        if isinstance(value, str):
            return text.constant("str", f'[value="{value}"]')
        raise NoTapeError(f"an argument {value!r}")

    def _list(self, value: Sequence[Argument], kind: Any) -> str:
        inner = element(kind)
        items = [self._word(each, inner) for each in value]
        return self._text.list_of(f"{spelled(inner)}[]", items)

    def _ints(self, values: Sequence[int]) -> str:
        return self._text.list_of("int[]", [self._whole(each) for each in values])

    def _whole(self, value: int) -> str:
        return self._text.constant("int", f"[value={int(value)}]")


COPIES = {
    "aten.clone",
    "aten.contiguous",
    "aten.reshape",
    "aten._to_copy",
    "aten.to",
    "aten.expand_copy",
}


def placed(arena: Tensor, offset: int, meta: Meta) -> Tensor:
    """The tensor of this form at `offset` bytes of an arena of bytes."""
    whole = arena[offset:].view(torch.uint8)
    item = int(meta.dtype.itemsize)
    usable = whole[: whole.numel() // item * item].view(meta.dtype)
    return usable.as_strided(meta.shape, meta.strides)
