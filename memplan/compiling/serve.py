"""Which kernels write into memory that they are given, and what the others ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from memplan.graph.execute import COPIES, Served, writers
from memplan.graph.liveness import owners
from memplan.graph.native import Native
from memplan.graph.nest import storages
from memplan.graph.program import Meta, Op, Program, Ref, is_pointwise, mapped
from memplan.graph.requests import Asked, Request, watched
from memplan.graph.script import NoTapeError

# Kernels that read all of a row before they write it.
ROWS = {"aten._softmax", "aten._log_softmax"}
UNWRITTEN = "aten.empty_strided"


@dataclass(frozen=True)
class Ways:
    """How the operators of a program get the memory of their results.

    served: those that write where they are told, by their name. asked: what the others
    ask the allocator for. apart: those that write over no operand. astray: operands of
    kernels that lie otherwise than their metas say, as some results of torch's do.
    """

    served: dict[str, Served]
    asked: dict[str, Asked]
    apart: frozenset[str] = frozenset()
    astray: set[str] = field(default_factory=set)

    def with_copies(self, copies: Sequence[Op]) -> Ways:
        """The same with copies that are to lie elsewhere than what they copy."""
        more = {op.name: Served(op.target) for op in copies}
        served, apart = {**self.served, **more}, self.apart | more.keys()
        return replace(self, served=served, apart=apart)

    def overwritable(self, program: Program, op: Op) -> list[str]:
        """Operands over which a kernel may write an operator's result."""
        way = self.served.get(op.name)
        if way is None or op.name in self.apart:
            return []
        taken = [arg.name for arg in op.args if isinstance(arg, Ref)]
        if isinstance(op.target, Native):
            return [taken[at] for at in op.target.over]
        if way.over or op.key == "aten.slice_scatter":
            taken = taken[:1]
        elif not is_pointwise(op) and op.key not in ROWS:
            return []
        # The results of torch's own may lie otherwise than their metas say.
        return [name for name in taken if self._is_exact(program.roots[name])]

    def _is_exact(self, root: Any) -> bool:
        return root in self.served or (root in self.asked and self.asked[root].exact)

    def beside(self, _: Program, op: Op) -> int:
        """Bytes that live only while an operator runs."""
        asked = self.asked.get(op.name)
        return asked.scratch if asked is not None else 0


def ways_of(
    program: Program, constants: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> Ways:
    """How the operators of a flat program get the memory of their results.

    Runs the program once. A kernel counts if it frees what it asks the allocator for,
    leaves its target in place, and gives the same bits as the operator itself. Raises
    NoTapeError if a result lies in an operand's memory, and the program says otherwise.
    """
    values: dict[str, Any] = dict(constants)
    values.update(zip(program.inputs, inputs, strict=True))
    uses = {name: i for i, op in enumerate(program.ops) for name in op.operands()}
    found = Ways({}, {})
    known: dict[object, tuple[Served, Asked] | None] = {}
    with torch.inference_mode():
        for i, op in enumerate(program.ops):
            assert isinstance(op, Op)
            args, kwargs = mapped((op.args, op.kwargs), lambda ref: values[ref.name])
            run = partial(op.target, *args, **kwargs)
            result = run()
            if isinstance(op.target, Native):
                found.astray.update(_astray(program, op, args))
            if own := owners(program, op):
                _check_apart(op, args, kwargs, result)
                way = None
                if own == [op.name]:
                    way = _way(program, op, args, kwargs, result, known)
                if way is not None:
                    found.served[op.name], scratch = way
                    if scratch.requests:
                        found.asked[op.name] = scratch
                    result = _strided(result, program.metas[op.name])
                else:
                    # Not the first time: a library may keep what it made then.
                    again, asked = watched(run)
                    del again
                    exact = own == [op.name] and _is_exact(
                        result, program.metas[op.name]
                    )
                    found.asked[op.name] = replace(asked, exact=exact)
            values[op.name] = result
            for name in op.operands():
                if uses[name] == i:
                    values.pop(name, None)
            del args, kwargs, result, run
    return found


def _is_exact(result: Tensor, meta: Meta) -> bool:
    return result.stride() == meta.strides and not result.storage_offset()


def _strided(result: Tensor, meta: Meta) -> Tensor:
    """A result as a tape has it: with the strides that its meta says."""
    if result.stride() == meta.strides:
        return result
    made = torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype)
    return made.copy_(result)


def _astray(program: Program, op: Op, tensors: Sequence[Tensor]) -> Iterator[str]:
    """The operands that lie otherwise than their metas say."""
    for name, tensor in zip(op.operands(), tensors, strict=True):
        wanted: Meta = program.metas[name]
        strides = zip(tensor.shape, tensor.stride(), wanted.strides, strict=True)
        if any(size > 1 and one != other for size, one, other in strides):
            yield name


def _check_apart(op: Op, args: Any, kwargs: Any, result: Any) -> None:
    """Raise NoTapeError if a result shares memory with an operand."""
    shared = storages([args, kwargs]) & storages([result])
    if shared - {0}:  # where nothing lies that has no bytes
        raise NoTapeError(f"{op.key}, whose result lies in its operand")


def _way(
    program: Program,
    op: Op,
    args: Any,
    kwargs: Any,
    result: Any,
    known: dict[object, tuple[Served, Asked] | None],
) -> tuple[Served, Asked] | None:
    """How the operator's result is written, and what the kernel asks for meanwhile."""
    if op.key in COPIES or op.key in (UNWRITTEN, "aten.slice_scatter"):
        return Served(op.target), Asked((), 0)
    if isinstance(op.target, Native):
        size = op.target.scratch
        rows = (Request(size, 0, 1, None),) if size else ()
        return Served(op.target), Asked(rows, 2 * len(rows))
    metas = mapped((op.args, op.kwargs), lambda ref: program.metas[ref.name])
    key = (op.target, repr(metas))
    if key not in known:
        meta: Meta = program.metas[op.name]
        ways = writers(op)
        tried = ((way, _scratch(way, args, kwargs, result, meta)) for way in ways)
        known[key] = next(((way, each) for way, each in tried if each), None)
    return known[key]


def _scratch(
    way: Served, args: Any, kwargs: Any, result: Tensor, meta: Meta
) -> Asked | None:
    """What a kernel asks for; None if it does not do what `served` asks of it, on these
    arguments."""
    out = torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype)
    if way.over and (meta.shape, meta.dtype) != (args[0].shape, args[0].dtype):
        return None
    at = out.data_ptr()
    try:
        _, asked = watched(_writing(way, args, kwargs, out))
    except RuntimeError:  # it does not take these arguments
        return None
    if out.data_ptr() != at or not _is_scratch(way, asked, out.nbytes):
        return None
    if asked.requests:  # a library may keep what it made the first time
        _, asked = watched(_writing(way, args, kwargs, out))
    same = torch.equal(out.nan_to_num(), result.nan_to_num())
    return asked if same else None


def _is_scratch(way: Served, asked: Asked, size: int) -> bool:
    """Whether a kernel frees all that it asks for, and none of it is the result: many
    overloads copy that, none of which has a kernel of the CPU's own."""
    if not asked.requests:
        return True
    own = way.target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU)
    return own and all(x.died and x.bytes != size for x in asked.requests)


def _writing(way: Served, args: Any, kwargs: Any, out: Tensor) -> Callable[[], None]:
    def run() -> None:
        if way.over:
            out.copy_(args[0])
            way.target(out, *args[1:], **kwargs)
        else:
            way.target(*args, **kwargs, out=out)

    return run
