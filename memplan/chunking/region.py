"""A region: operators that run in chunks together, and the loop made of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from memplan.chunking.buffers import check_overwriting, enter_buffers, memory_order
from memplan.chunking.notaloop import NotALoopError
from memplan.chunking.renew import enter_again
from memplan.chunking.rules.flow import Call, Slice
from memplan.chunking.rules.table import flow
from memplan.graph.infer import Inference
from memplan.graph.program import (
    Bound,
    Input,
    Loop,
    Meta,
    Op,
    Output,
    Program,
    Ref,
    Step,
    Window,
    mapped,
    refs,
    results,
)


@dataclass(frozen=True)
class Region:
    """Which operators of a program run in chunks together, and how.

    slices: of each member's result, what an iteration holds. copied: members that the
    rest of the program needs whole, and that run there too. extent: size of the
    dimension that is looped over; step: how much of it an iteration takes. inner:
    regions of the loop's body, in the order in which they are made. granule: what steps
    are multiples of, for every slice to begin and end at an element. fresh: whether
    results get memory of their own even where they could take a dying value's.
    """

    slices: dict[str, Slice]
    extent: int
    step: int
    copied: frozenset[str] = frozenset()
    inner: tuple[Region, ...] = field(default=())
    granule: int = 1
    fresh: bool = False

    @property
    def chunks(self) -> int:
        """How many iterations there are, a shorter last one included."""
        return -(-self.extent // self.step)


def inner_name(name: str) -> str:
    """What a value is called in the body of a loop."""
    return f"{name}_i"


def call_of(program: Program, op: Op, loop: str) -> Call:
    """`op` as rules see it."""
    metas = tuple(program.metas[name] for name in op.operands())
    moving = program.moving.get(op.name, {})
    return Call(op, metas, program.metas[op.name], loop, moving)


def loop_name(region: Region) -> str:
    """The name of the loop that a region becomes: after its last member."""
    return f"loop_{list(region.slices)[-1]}"


def chunked(program: Program, region: Region, inference: Inference) -> Program:
    """`program` with the operators of `region` in one loop; itself unchanged.

    What the loop needs runs before it, the rest of what stood between its members
    after it. Raises NotALoopError where that is not possible.
    """
    return _Builder(program, region, inference).build()


class _Builder:
    def __init__(self, program: Program, region: Region, inference: Inference) -> None:
        self._old, self._region, self._inference = program, region, inference
        self._name = loop_name(region)
        self._members = [
            op for op in program.ops if isinstance(op, Op) and op.name in region.slices
        ]
        if len(self._members) != len(region.slices):
            raise NotALoopError("a member is not there")
        first = region.step if 2 * region.step <= region.extent else 0
        ranges = {self._name: (first, min(region.extent, first + region.step))}
        self._body = Program([], {}, [], (), {}, {}, {**program.ranges, **ranges})
        self._inputs: dict[tuple[str, int, Window], Input] = {}

    def build(self) -> Program:
        old, region = self._old, self._region
        before, after = self._order()
        for op in self._members:
            self._add(op)
        outputs = self._outputs(after)
        body = self._body
        body.outputs = tuple(Ref(output.inner) for output in outputs)
        for each in region.inner:
            body = chunked(body, each, self._inference)
        line = self._members[-1].line
        inputs = list(self._inputs.values())
        loop = Loop(self._name, body, inputs, outputs, region.extent, region.step, line)
        ops = [*before, loop, *after]
        new = replace(old, ops=ops, metas=dict(old.metas), roots=dict(old.roots))
        enter_buffers(new, loop, region.fresh)
        self._enter_again(new, after)
        check_overwriting(new)
        return new

    def _order(self) -> tuple[list[Step], list[Step]]:
        """What runs before the loop, and what runs after it."""
        slices, copied = self._region.slices, self._region.copied
        looped = {name for name in slices if name not in copied}
        needed = {
            name for op in self._members for name in op.operands() if name not in looped
        }
        ops = self._old.ops
        first = ops.index(self._members[0])
        end = ops.index(self._members[-1])
        before: list[Step] = []
        after: list[Step] = []
        for step in reversed(ops[first : end + 1]):
            names = results(step)
            if names[0] in looped:
                continue
            if needed.isdisjoint(names):
                after.append(step)
                continue
            if not looped.isdisjoint(step.operands()):
                raise NotALoopError(f"{names[0]} is needed whole, and made in the loop")
            needed.update(step.operands())
            before.append(step)
        return (
            [*ops[:first], *reversed(before)],
            [*reversed(after), *ops[end + 1 :]],
        )

    def _add(self, op: Op) -> None:
        """Put a member into the body, on slices of what it takes."""
        piece = self._region.slices[op.name]
        self._check_ends(op.name, piece)
        found = flow(call_of(self._old, op, self._name), piece)
        if found is None:
            raise NotALoopError(f"{op.key} cannot be sliced along {piece.dim}")
        names = iter(
            [
                self._operand(name, need)
                for name, need in zip(op.operands(), found.needs, strict=True)
            ]
        )
        args = op.args if found.args is None else found.args
        kwargs = op.kwargs if found.kwargs is None else found.kwargs
        args, kwargs = mapped(
            (args, kwargs),
            lambda at: Ref(next(names)) if isinstance(at, Ref) else at,
        )
        made = Op(inner_name(op.name), found.target or op.target, args, kwargs, op.line)
        self._enter(made)
        expected = self._shapes(self._old.metas[op.name], piece)
        if shapes(self._body.metas[made.name]) != expected:
            raise NotALoopError(f"{op.key} gives another shape in the loop")
        self._moves(made.name, op.name, piece)

    def _check_ends(self, name: str, piece: Slice) -> None:
        region = self._region
        for end in (region.extent, region.step):
            if (end * piece.ratio).denominator != 1:
                raise NotALoopError(f"{name} is cut within an element")

    def _moves(self, inner: str, outer: str, piece: Slice) -> None:
        """Note which dimensions of `inner`, a slice of `outer`, vary in size."""
        before, dim = self._old.moving.get(outer, {}), piece.dim
        if dim in before:
            raise NotALoopError(f"{outer} varies in size along {dim}")
        meta = self._old.metas[outer]
        if isinstance(meta, Meta):  # of several, the members' own are noted
            window = piece.window(self._name, meta.shape)
            self._body.moving[inner] = {**before, dim: window}

    def _enter(self, op: Op) -> None:
        try:
            self._inference.add(self._body, op)
        except Exception as error:
            raise NotALoopError(f"{op.key}: {error}") from error
        self._body.ops.append(op)

    def _shapes(self, meta: Any, piece: Slice) -> Any:
        """The shape of `piece` of a value, or of each of several."""
        if not isinstance(meta, Meta):
            return tuple(self._shapes(each, piece) for each in meta)
        if not meta.elements:  # what batch norm gives besides, in inference
            return meta.shape
        low, high = piece.window(self._name, meta.shape).at(self._body.ranges)
        return with_size(meta.shape, piece.dim, high - low)

    def _operand(self, name: str, need: Slice | None) -> str:
        """The value of the body that is `need` of the value `name`, made if needed."""
        held = self._region.slices.get(name)
        if need is None:
            self._body.metas.setdefault(name, self._old.metas[name])
            self._body.roots.setdefault(name, self._old.roots[name])
            if name in self._old.moving:
                self._body.moving[name] = self._old.moving[name]
            return name
        self._check_ends(name, need)
        if held is None:
            return self._cut(name, need)
        return inner_name(name) if held == need else self._narrowed(name, held, need)

    def _cut(self, name: str, need: Slice) -> str:
        """A value of outside, cut to the iteration."""
        meta = self._old.metas[name]
        if not isinstance(meta, Meta):
            raise NotALoopError(f"{name} is a tuple")
        window = need.window(self._name, meta.shape)
        key = name, need.dim, window
        if key not in self._inputs:
            count = sum(outer == name for outer, _, _ in self._inputs)
            inner = inner_name(name) + (str(count + 1) if count else "")
            self._inputs[key] = Input(inner, name, need.dim, window)
            low, high = window.at(self._body.ranges)
            shape = with_size(meta.shape, need.dim, high - low)
            self._body.metas[inner] = meta._replace(shape=shape)
            self._body.roots[inner] = self._old.roots[name]
            self._moves(inner, name, need)
        return self._inputs[key].inner

    def _narrowed(self, name: str, held: Slice, need: Slice) -> str:
        """What the iteration holds, without as much halo as it has for others."""
        import torch

        same = (held.dim, held.ratio) == (need.dim, need.ratio)
        if not same or need.before > held.before or need.after > held.after:
            raise NotALoopError(f"{name} is needed in two ways")
        inner = f"{inner_name(name)}_{need.before}_{need.after}"
        if inner not in self._body.metas:
            shape = self._old.metas[name].shape
            wide = held.window(self._name, shape)
            narrow = need.window(self._name, shape)
            ends = (Bound(narrow, 1, 0, base=wide), Bound(narrow, 0, 1, base=wide))
            cut = (Ref(inner_name(name)), need.dim, *ends)
            self._enter(Op(inner, torch.ops.aten.slice.Tensor, cut))
            self._moves(inner, name, need)
        return inner

    def _outputs(self, after: list[Step]) -> list[Output]:
        """The members that are needed outside, and where they go."""
        wanted = {name for step in after for name in step.operands()}
        wanted.update(refs(self._old.outputs))
        found = []
        for op in self._members:
            if op.name not in wanted or op.name in self._region.copied:
                continue
            meta = self._old.metas[op.name]
            if not isinstance(meta, Meta):
                raise NotALoopError(f"{op.name} is a tuple that is needed outside")
            held = self._region.slices[op.name]
            if int(self._region.extent * held.ratio) != meta.shape[held.dim]:
                raise NotALoopError(f"{op.name} is not covered by the loop")
            core = held._replace(before=0, after=0)
            inner = self._operand(op.name, core)
            window = core.window(self._name, meta.shape)
            found.append(Output(inner, op.name, held.dim, window, memory_order(meta)))
        if not found:
            raise NotALoopError("nothing comes out of it")
        return found

    def _enter_again(self, new: Program, after: list[Step]) -> None:
        """Enter again what follows from buffers that lie otherwise than before."""
        old = self._old
        changed = {
            name
            for name in results(new.ops[-len(after) - 1])
            if new.metas[name] != old.metas[name] or new.roots[name] != old.roots[name]
        }
        enter_again(new, len(new.ops) - len(after), changed, self._inference)


def shapes(meta: Any) -> Any:
    """The shape of a value, or of each of several."""
    if isinstance(meta, Meta):
        return meta.shape
    return tuple(map(shapes, meta))


def with_size(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    """`shape` with dimension `dim` of `size`."""
    return (*shape[:dim], size, *shape[dim + 1 :])
