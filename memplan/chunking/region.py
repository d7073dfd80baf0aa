"""A region: operators that run in chunks together, and the loop made of them."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field, replace

from memplan.chunking.buffers import (
    LayoutError,
    check_layouts,
    dense_strides,
    enter_buffers,
    memory_order,
    place_inside,
    place_totals,
    written_over,
)
from memplan.chunking.inferred import infer_again
from memplan.chunking.rules.flow import Call, Slice
from memplan.chunking.rules.table import flow
from memplan.chunking.rules.totals import TOTAL, Accumulation, Added, earlier, place_of
from memplan.chunking.sliding import slide
from memplan.graph.export import first_line
from memplan.graph.infer import Inference, ShapeError
from memplan.graph.program import (
    Bound,
    Input,
    Loop,
    Meta,
    Metas,
    Op,
    Output,
    Program,
    Ref,
    Step,
    Total,
    Window,
    mapped,
    refs,
    results,
    unused,
)

Sizes = tuple[object, ...]
"""The shape of a value, or a tuple of the shapes of several."""


class NotLoopableError(Exception):
    """The operators form no loop, because of their shapes or dependencies."""


class RegionError(NotLoopableError):
    """A defect of memplan, as in a rule. The message names the operator."""


@dataclass(frozen=True)
class Region:
    """Which operators of a program run in chunks together, and how.

    slices: the slice of each member's result that an iteration holds. copied: members
    that also run outside the loop, where their whole result is needed. extent: size of
    the looped dimension; step: how much of it an iteration covers. inner: regions of
    the loop's body, in the order in which they are made. granule: steps are multiples
    of it, so that every slice begins and ends at an element. fresh: results get memory
    of their own even if they could reuse a dying value's. slides: whether they may be
    written over what iterations read with more around it; see `slide`.
    """

    slices: dict[str, Slice]
    extent: int
    step: int
    copied: frozenset[str] = frozenset()
    inner: tuple[Region, ...] = field(default=())
    granule: int = 1
    fresh: bool = False
    whole: frozenset[str] = frozenset()
    slides: bool = False

    @property
    def chunks(self) -> int:
        """The number of iterations, including a shorter last one."""
        return -(-self.extent // self.step)

    @functools.cached_property
    def digest(self) -> bytes:
        """Tells regions apart; members count in their order."""
        own = [tuple(self.slices.items()), self.extent, self.step, sorted(self.copied)]
        rest = [
            self.granule,
            self.fresh,
            self.slides,
            [each.digest for each in self.inner],
        ]
        mark = repr((own, rest, sorted(self.whole)))
        return hashlib.blake2b(mark.encode(), digest_size=16).digest()

    @property
    def adds_up(self) -> bool:
        """Whether a member is added up over the iterations."""
        return any(piece.total for piece in self.slices.values())

    @property
    def inside(self) -> frozenset[str]:
        """Members whose results are known only in the loop."""
        return frozenset(self.slices) - self.copied | self.whole


def inner_name(name: str) -> str:
    """The name of a value in the body of a loop."""
    return f"{name}_i"


def call_of(program: Program, op: Op, loop: str) -> Call:
    """`op` as rules see it."""
    metas = tuple(program.metas[name] for name in op.operands())
    moving = program.moving.get(op.name, {})
    return Call(op, metas, program.metas[op.name], loop, moving)


def loop_name(region: Region) -> str:
    """The name of a region's loop, after its last member."""
    return f"loop_{list(region.slices)[-1]}"


def chunked(program: Program, region: Region, inference: Inference) -> Program:
    """A copy of `program` with the operators of `region` in one loop.

    Operators between the members run before the loop if it needs them, else after it.
    Raises NotLoopableError if that is impossible; RegionError if a rule is wrong.
    """
    builder = _Builder(program, region, inference)
    try:
        try:
            return builder.build()
        except LayoutError:
            builder = _Builder(program, region, inference)
            builder.relays = False
            return builder.build()
    except NotLoopableError:
        raise
    except Exception as error:  # a defect must not end the search
        raise RegionError(defect(builder.operator, error)) from error


def defect(operator: str, error: Exception) -> str:
    """An internal error as reports name it."""
    return f"{operator}: {first_line(error)}"


class _Builder:
    def __init__(self, program: Program, region: Region, inference: Inference) -> None:
        self._old, self._region, self._inference = program, region, inference
        self.relays = True  # see `enter_buffers`
        self._name = loop_name(region)
        self.operator = ""  # that is being added, or was last
        names = region.slices.keys() | region.whole
        self._members = [
            op for op in program.ops if isinstance(op, Op) and op.name in names
        ]
        if len(self._members) != len(names):
            raise NotLoopableError("a member is not there")
        first = region.step if 2 * region.step <= region.extent else 0
        ranges = {self._name: (first, min(region.extent, first + region.step))}
        self._body = Program([], {}, [], (), {}, {}, {**program.ranges, **ranges})
        self._inputs: dict[tuple[str, int, Window], Input] = {}
        self._totals: list[Total] = []
        self._ends: list[Op] = []  # make the results of totals, after the loop
        self._moving = dict(program.moving)

    def build(self) -> Program:
        old, region = self._old, self._region
        before, after = self._order()
        for op in self._members:
            self._add(op)
        outputs = self._outputs(after)
        body = self._body
        names = [each.inner for each in outputs]
        names += [each.inner for each in self._totals]
        body.outputs = tuple(map(Ref, names))
        inputs, totals = list(self._inputs.values()), self._totals
        sizes, line = (region.extent, region.step), self._members[-1].line
        loop = Loop(self._name, body, inputs, outputs, *sizes, line, totals)
        ops = [*before, loop, *self._ends, *after]
        new = replace(old, ops=ops, metas=dict(old.metas), roots=dict(old.roots))
        new.moving = self._moving
        for total in self._totals:
            new.metas[total.buffer] = body.metas[total.buffer]
            new.roots[total.buffer] = total.buffer
        for op in self._ends:
            self._inference.add(new, op)
        place_totals(new, loop)
        if region.slides:
            slide(new, loop, self._inference)
        for each in region.inner:
            loop.body = chunked(loop.body, each, self._inference)
        relaid = enter_buffers(new, loop, region.fresh, self.relays)
        place_inside(new, loop)
        self._infer_again(new, loop, after)
        if relaid:
            check_layouts(old, new)
        if name := written_over(new):
            raise NotLoopableError(f"{name} is used after it was written over")
        return new

    def _order(self) -> tuple[list[Step], list[Step]]:
        """The steps before the loop, and those after it."""
        looped = self._region.inside
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
                raise NotLoopableError(
                    f"{names[0]} is needed whole, and made in the loop"
                )
            needed.update(step.operands())
            before.append(step)
        return (
            [*ops[:first], *reversed(before)],
            [*reversed(after), *ops[end + 1 :]],
        )

    def _add(self, op: Op) -> None:
        """Add a member to the body, on slices of its operands."""
        self.operator = op.key
        if op.name in self._region.whole:
            self._add_whole(op)
            return
        piece = self._region.slices[op.name]
        self._check_ends(op.name, piece)
        found = flow(call_of(self._old, op, self._name), piece)
        if found is None:
            raise NotLoopableError(f"{op.key} cannot be sliced along {piece.dim}")
        if inner_name(op.name) in self._old.metas:
            raise NotLoopableError(f"{op.name} would have another value's name there")
        if isinstance(found, Accumulation):
            self._add_total(op, found, piece)
            return
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
            raise RegionError(f"{op.key} has another shape in the loop")
        self._moves(made.name, op.name, piece)

    def _add_whole(self, op: Op) -> None:
        """Add a member that every iteration computes whole."""
        args, kwargs = mapped(
            (op.args, op.kwargs),
            lambda at: Ref(self._operand(at.name, None)) if isinstance(at, Ref) else at,
        )
        made = Op(inner_name(op.name), op.target, args, kwargs, op.line)
        if made.name in self._old.metas:
            raise NotLoopableError(f"{op.name} would have another value's name there")
        self._enter(made)
        if op.name in self._old.moving:
            self._body.moving[made.name] = self._old.moving[op.name]

    def _add_total(self, op: Op, found: Accumulation, piece: Slice) -> None:
        """Add the operators that add a slice to a total, and note those that follow."""
        body, operands, inner = self._body, op.operands(), inner_name(op.name)
        names = [f"{op.name}_total_{i}" for i in range(1, len(found.ends))]
        buffer, *names = (
            [f"{op.name}_total", *names, op.name] if found.ends else [op.name]
        )
        if any(name in self._old.metas for name in (buffer, *names) if name != op.name):
            raise NotLoopableError(f"{op.name} would have another value's name there")
        strides = dense_strides(found.shape, tuple(range(len(found.shape))))
        device = self._old.metas[op.name].device
        total = Meta(found.shape, strides, found.dtype, device)
        body.metas[buffer], body.roots[buffer] = total, buffer
        # What is of the result's shape varies with loops around this one as that does.
        moving = self._old.moving.get(op.name, {})
        made: list[str] = []

        def value(at: Ref | Bound) -> Ref | Bound:
            if isinstance(at, Bound):
                return at
            if at == TOTAL:
                return Ref(buffer)
            place = place_of(at)
            if at == earlier(place):
                return Ref(made[place])
            return Ref(self._operand(operands[place], found.needs[place]))

        def called(name: str, added: Added) -> Op:
            args, kwargs = mapped((added.args, added.kwargs), value)
            made.append(name)
            return Op(name, added.operator(), args, kwargs, op.line)

        for i, each in enumerate(found.steps, 1):
            last = i == len(found.steps)
            name = inner if last else self._free_name(f"{op.name}_part_{i}")
            self._enter(called(name, each))
            cut = Window(self._name, found.size, piece.ratio)
            body.moving[name] = moving if each.along is None else {each.along: cut}
        if body.metas[inner][::2] != total[::2]:
            raise RegionError(f"{op.key} has another shape in the loop")
        start = mapped(found.start, lambda at: Ref(operands[place_of(at)]))
        if self._region.inside & {*refs(start)}:
            raise NotLoopableError(f"{op.name} begins with what the loop makes")
        body.totals[buffer] = inner
        self._totals.append(Total(inner, buffer, start, piece.dim))
        made.clear()
        self._ends += map(called, names, found.ends)
        if moving:
            self._moving.update(dict.fromkeys((buffer, *names), moving))
            body.moving[buffer] = moving

    def _check_ends(self, name: str, piece: Slice) -> None:
        region, ratio = self._region, piece.ratio
        for end in (region.extent, region.step):
            if end * ratio.numerator % ratio.denominator:
                raise NotLoopableError(f"{name} is cut within an element")

    def _moves(self, inner: str, outer: str, piece: Slice) -> None:
        """Record which dimensions of `inner`, a slice of `outer`, vary in size."""
        before, dim = self._old.moving.get(outer, {}), piece.dim
        if dim in before:
            raise NotLoopableError(f"{outer} varies in size along {dim}")
        meta = self._old.metas[outer]
        if isinstance(meta, Meta):  # of several, the members' own are noted
            window = piece.window(self._name, meta.shape)
            self._body.moving[inner] = {**before, dim: window}

    def _enter(self, op: Op) -> None:
        self._inference.add(self._body, op)
        self._body.ops.append(op)

    def _shapes(self, meta: Metas, piece: Slice) -> Sizes:
        """The shape of `piece` of a value, or of each of several."""
        if not isinstance(meta, Meta):
            return tuple(self._shapes(each, piece) for each in meta)
        if not meta.elements:  # the unused results of batch norm in inference
            return meta.shape
        low, high = piece.window(self._name, meta.shape).at(self._body.ranges)
        return meta.cut(piece.dim, high - low).shape

    def _operand(self, name: str, need: Slice | None) -> str:
        """The value of the body that is `need` of the value `name`, made if needed."""
        held = self._region.slices.get(name)
        if held is not None and held.total:
            raise NotLoopableError(f"{name} is known only after the loop")
        if name in self._region.whole:
            if need is not None:
                raise NotLoopableError(f"{name} is whole in the loop")
            return inner_name(name)
        if need is None:
            if held is not None and name not in self._region.copied:
                raise NotLoopableError(f"{name} is needed whole, and made in the loop")
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
        """A value from outside the loop, cut to the iteration."""
        meta = self._old.metas[name]
        if not isinstance(meta, Meta):
            raise NotLoopableError(f"{name} is a tuple")
        window = need.window(self._name, meta.shape)
        key = name, need.dim, window
        if key not in self._inputs:
            inner = self._free_name(name)
            self._inputs[key] = Input(inner, name, need.dim, window)
            low, high = window.at(self._body.ranges)
            self._body.metas[inner] = meta.cut(need.dim, high - low)
            self._body.roots[inner] = self._old.roots[name]
            self._moves(inner, name, need)
        return self._inputs[key].inner

    def _free_name(self, name: str) -> str:
        """The name of a cut of `name`.

        In a loop within a loop, `x_i` may be there: the cut that the outer one takes.
        """
        return unused(inner_name(name), self._old, self._body)

    def _narrowed(self, name: str, held: Slice, need: Slice) -> str:
        """The part of what the iteration holds that has a smaller halo."""
        import torch

        same = (held.dim, held.ratio) == (need.dim, need.ratio)
        if not same or need.before > held.before or need.after > held.after:
            raise NotLoopableError(f"{name} is needed in two ways")
        inner = f"{inner_name(name)}_{need.before}_{need.after}".replace("-", "m")
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
        """The members that are needed outside the loop, and their buffers."""
        wanted = {name for step in after for name in step.operands()}
        wanted.update(refs(self._old.outputs))
        found = []
        if not wanted.isdisjoint(self._region.whole):
            raise NotLoopableError("a member that stays inside is needed outside")
        for op in self._members:
            held = self._region.slices.get(op.name)
            if held is None:
                continue
            if op.name not in wanted or op.name in self._region.copied or held.total:
                continue
            meta = self._old.metas[op.name]
            if not isinstance(meta, Meta):
                raise NotLoopableError(f"{op.name} is a tuple that is needed outside")
            if int(self._region.extent * held.ratio) != meta.shape[held.dim]:
                raise NotLoopableError(f"{op.name} is not covered by the loop")
            core = held._replace(before=0, after=0)
            inner = self._operand(op.name, core)
            window = core.window(self._name, meta.shape)
            found.append(Output(inner, op.name, held.dim, window, memory_order(meta)))
        if not found and not self._totals:
            raise NotLoopableError("nothing comes out of it")
        return found

    def _infer_again(self, new: Program, loop: Loop, after: list[Step]) -> None:
        """Infer again the values that depend on buffers with another layout."""
        old = self._old
        changed = {
            name
            for name in (*results(loop), *(end.name for end in self._ends))
            if name not in old.metas
            or new.metas[name] != old.metas[name]
            or new.roots[name] != old.roots[name]
        }
        try:
            infer_again(new, len(new.ops) - len(after), changed, self._inference)
        except ShapeError as error:
            raise NotLoopableError(str(error)) from error


def shapes(meta: Metas) -> Sizes:
    """The shape of a value, or of each of several."""
    if isinstance(meta, Meta):
        return meta.shape
    return tuple(map(shapes, meta))
