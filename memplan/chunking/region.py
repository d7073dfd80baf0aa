"""A region: operators that run in chunks together, and the loop made of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from memplan.chunking.rules.flow import Call, Slice
from memplan.chunking.rules.table import flow
from memplan.graph.export import first_line
from memplan.graph.infer import Inference, ShapeError
from memplan.graph.liveness import lifetimes, roots_of
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
    Window,
    mapped,
    refs,
    results,
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
    of their own even if they could reuse a dying value's.
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
        """The number of iterations, including a shorter last one."""
        return -(-self.extent // self.step)


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
        self._name = loop_name(region)
        self.operator = ""  # that is being added, or was last
        self._members = [
            op for op in program.ops if isinstance(op, Op) and op.name in region.slices
        ]
        if len(self._members) != len(region.slices):
            raise NotLoopableError("a member is not there")
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
        self._infer_again(new, after)
        check_overwriting(new)
        return new

    def _order(self) -> tuple[list[Step], list[Step]]:
        """The steps before the loop, and those after it."""
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
        piece = self._region.slices[op.name]
        self._check_ends(op.name, piece)
        found = flow(call_of(self._old, op, self._name), piece)
        if found is None:
            raise NotLoopableError(f"{op.key} cannot be sliced along {piece.dim}")
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
        if inner_name(op.name) in self._old.metas:
            raise NotLoopableError(f"{op.name} would have another value's name there")
        made = Op(inner_name(op.name), found.target or op.target, args, kwargs, op.line)
        self._enter(made)
        expected = self._shapes(self._old.metas[op.name], piece)
        if shapes(self._body.metas[made.name]) != expected:
            raise RegionError(f"{op.key} has another shape in the loop")
        self._moves(made.name, op.name, piece)

    def _check_ends(self, name: str, piece: Slice) -> None:
        region = self._region
        for end in (region.extent, region.step):
            if (end * piece.ratio).denominator != 1:
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
        return with_size(meta.shape, piece.dim, high - low)

    def _operand(self, name: str, need: Slice | None) -> str:
        """The value of the body that is `need` of the value `name`, made if needed."""
        held = self._region.slices.get(name)
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
            shape = with_size(meta.shape, need.dim, high - low)
            self._body.metas[inner] = meta._replace(shape=shape)
            self._body.roots[inner] = self._old.roots[name]
            self._moves(inner, name, need)
        return self._inputs[key].inner

    def _free_name(self, name: str) -> str:
        """The name of a cut of `name`.

        In a loop within a loop, `x_i` may be there: the cut that the outer one takes.
        """
        first = inner = inner_name(name)
        count = 1
        while inner in self._old.metas or inner in self._body.metas:
            count += 1
            inner = f"{first}{count}"
        return inner

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
        for op in self._members:
            if op.name not in wanted or op.name in self._region.copied:
                continue
            meta = self._old.metas[op.name]
            if not isinstance(meta, Meta):
                raise NotLoopableError(f"{op.name} is a tuple that is needed outside")
            held = self._region.slices[op.name]
            if int(self._region.extent * held.ratio) != meta.shape[held.dim]:
                raise NotLoopableError(f"{op.name} is not covered by the loop")
            core = held._replace(before=0, after=0)
            inner = self._operand(op.name, core)
            window = core.window(self._name, meta.shape)
            found.append(Output(inner, op.name, held.dim, window, memory_order(meta)))
        if not found:
            raise NotLoopableError("nothing comes out of it")
        return found

    def _infer_again(self, new: Program, after: list[Step]) -> None:
        """Infer again the values that depend on buffers with another layout."""
        old = self._old
        changed = {
            name
            for name in results(new.ops[-len(after) - 1])
            if new.metas[name] != old.metas[name] or new.roots[name] != old.roots[name]
        }
        infer_again(new, len(new.ops) - len(after), changed, self._inference)


def shapes(meta: Metas) -> Sizes:
    """The shape of a value, or of each of several."""
    if isinstance(meta, Meta):
        return meta.shape
    return tuple(map(shapes, meta))


def with_size(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    """`shape` with dimension `dim` of `size`."""
    return (*shape[:dim], size, *shape[dim + 1 :])


def enter_buffers(program: Program, loop: Loop, fresh: bool = False) -> None:
    """Add a loop's buffers to the values of `program`, in dying memory if possible.

    A buffer reuses the memory of a value that the loop reads last (`Output.into`) if
    the shapes are equal and each iteration reads only the slice that it writes; never
    if `fresh`. Otherwise, if only matrix products use it, transposed, its layout is the
    one that they want.
    """
    lives: tuple[dict[str, int], dict[str, int]] | None = None
    position = program.ops.index(loop)
    taken: set[str] = set()
    for output in loop.outputs:
        _lay_out(program, output)
        meta = program.metas[output.buffer]
        program.roots[output.buffer] = output.buffer
        for entry in () if fresh else loop.inputs:
            root = program.roots[entry.outer]
            if (
                (entry.dim, entry.window) != (output.dim, output.window)
                or program.metas[entry.outer] != meta
                or root in taken
                or "[" in root
            ):
                continue
            lives = lives or lifetimes(program)
            last, owned = lives
            if (
                root in owned
                and last[root] == position
                and program.metas[root] == meta
                and _alone(program, loop, root, entry)
                and _read_before_written(loop, root, output)
            ):
                output.into = entry.outer
                taken.add(root)
                for name, old in program.roots.items():
                    if old == output.buffer:  # the buffer, and earlier views of it
                        program.roots[name] = root
                break
        else:
            output.order = wanted_order(program, output.buffer) or output.order
            _lay_out(program, output)


def _lay_out(program: Program, output: Output) -> None:
    meta = program.metas[output.buffer]
    strides = dense_strides(meta.shape, output.order)
    program.metas[output.buffer] = meta._replace(strides=strides)


def wanted_order(program: Program, name: str) -> tuple[int, ...] | None:
    """The order of a value's dimensions in memory that its users want, or None.

    They want one if the only user is a transposition whose result only matrix products
    use: in any other order they copy it, in each iteration of a loop.
    """
    users = [step for step in program.ops if name in step.operands()]
    if len(users) != 1 or not isinstance(users[0], Op):
        return None
    rank = len(program.metas[name].shape)
    order = list(range(rank))
    turn = users[0]
    if turn.key in ("aten.transpose", "aten.permute") and rank > 2:
        if turn.key == "aten.permute":
            order = [dim % rank for dim in turn.args[1]]
        else:
            one, other = (dim % rank for dim in turn.args[1:3])
            order[one], order[other] = order[other], order[one]
    else:
        return None
    takers = [step for step in program.ops if turn.name in step.operands()]
    products = {"aten.matmul", "aten.bmm", "aten.baddbmm"}

    def multiplies(step: Step) -> bool:
        if isinstance(step, Op):
            return step.key in products
        return all(
            isinstance(each, Op) and each.key in products
            for each in step.body.ops
            if turn.name in each.operands()
        ) and turn.name not in {entry.outer for entry in step.inputs}

    return tuple(order) if takers and all(map(multiplies, takers)) else None


def displaced(program: Program, loop: str) -> bool:
    """Whether a loop reuses dying memory for a result that its users want in another
    order, so that they copy it in each iteration."""
    return any(
        output.into is not None and wanted_order(program, output.buffer) is not None
        for step in program.ops
        if isinstance(step, Loop) and step.name == loop
        for output in step.outputs
    )


def check_overwriting(program: Program) -> None:
    """Raise NotLoopableError if a value is used after its memory was overwritten.

    A loop may reuse the memory of a value that dies there, and a later region may move
    a user of that value behind the loop.
    """
    over: dict[str, list[int]] = {}
    for i, step in enumerate(program.ops):
        for output in step.outputs if isinstance(step, Loop) else ():
            root = program.roots[output.buffer]
            if output.into is not None:
                over.setdefault(root, []).append(i)
    if not over:
        return
    made: dict[str, int] = {}
    for i, step in enumerate(program.ops):
        for name in step.operands():
            for root in roots_of(program, name):
                since = made.get(name, -1)
                if root in over and any(since < at < i for at in over[root]):
                    raise NotLoopableError(f"{name} is used after it was written over")
        made.update((name, i) for name in results(step))


def _alone(program: Program, loop: Loop, root: str, entry: Input) -> bool:
    """Whether the loop reads a storage only through `entry`."""
    return all(
        each == entry for each in loop.inputs if root in roots_of(program, each.outer)
    ) and not any(root in roots_of(program, name) for name in loop.wholes())


def _read_before_written(loop: Loop, root: str, output: Output) -> bool:
    """Whether the body reads a storage only before the output is written."""
    for step in reversed(loop.body.ops):
        if output.inner in results(step):
            return True
        if any(root in roots_of(loop.body, name) for name in step.operands()):
            return False
    return False


def memory_order(meta: Meta) -> tuple[int, ...]:
    """A tensor's dimensions from the outermost in memory inwards."""
    dims = range(len(meta.shape))
    return tuple(sorted(dims, key=lambda dim: (-meta.strides[dim], dim)))


def dense_strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor without holes whose dimensions lie in memory in `order`."""
    strides = [0] * len(shape)
    stride = 1
    for dim in reversed(order):
        strides[dim] = stride
        stride *= max(1, shape[dim])
    return tuple(strides)


def infer_again(
    program: Program, start: int, changed: set[str], inference: Inference
) -> None:
    """Infer again, from the step at `start`, the values that depend on values whose
    strides or storage `changed`, also in the bodies of loops. `changed` grows.

    Programs share loops, so a loop that changes is replaced by a copy.
    """
    for i in range(start, len(program.ops)):
        step = program.ops[i]
        if changed.isdisjoint(step.operands()):
            continue
        if isinstance(step, Loop):
            program.ops[i] = _updated(program, step, changed, inference)
            continue
        _enter(program, step, changed, inference)


def _enter(program: Program, op: Op, changed: set[str], inference: Inference) -> None:
    before = program.metas[op.name], program.roots[op.name]
    try:
        inference.add(program, op)
    except ShapeError as error:
        raise NotLoopableError(str(error)) from error
    if (program.metas[op.name], program.roots[op.name]) != before:
        changed.add(op.name)


def _updated(
    program: Program, loop: Loop, changed: set[str], inference: Inference
) -> Loop:
    """The loop with a body that sees the changed values."""
    old = loop.body
    body = replace(old, ops=list(old.ops), metas=dict(old.metas), roots=dict(old.roots))
    inside: set[str] = set()
    for name in changed.intersection(loop.wholes()):
        body.metas[name], body.roots[name] = program.metas[name], program.roots[name]
        inside.add(name)
    for entry in loop.inputs:
        if entry.outer in changed:
            strides = program.metas[entry.outer].strides
            body.metas[entry.inner] = body.metas[entry.inner]._replace(strides=strides)
            body.roots[entry.inner] = program.roots[entry.outer]
            inside.add(entry.inner)
    infer_again(body, 0, inside, inference)
    return replace(loop, body=body)
