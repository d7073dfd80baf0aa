"""The memory of a loop's results."""

from __future__ import annotations

from collections.abc import Iterable

from memplan.graph.liveness import lifetimes, roots_of
from memplan.graph.program import (
    Input,
    Loop,
    Meta,
    Op,
    Output,
    Program,
    Ref,
    Step,
    refs,
    results,
)


def enter_buffers(
    program: Program, loop: Loop, fresh: bool = False, relays: bool = True
) -> bool:
    """Add a loop's buffers to the values of `program`, in dying memory if possible.

    A buffer reuses the memory of a value that the loop reads last (`Output.into`), in
    its layout, if the shapes are equal and each iteration reads only the slice that it
    writes, and after it; never if `fresh`, nor a value of another layout if not
    `relays`. Otherwise, if only matrix products use it, transposed, its layout is the
    one that they want. Returns whether a buffer has the layout of a value whose memory
    it reuses, but not its own.
    """
    lives: tuple[dict[str, int], dict[str, int]] | None = None
    taken = {program.roots[total.buffer] for total in loop.totals}
    relaid = False
    for output in loop.outputs:
        _lay_out(program, output)
        meta = program.metas[output.buffer]
        program.roots[output.buffer] = output.buffer
        for entry in () if fresh else loop.inputs:
            root, there = program.roots[entry.outer], program.metas[entry.outer]
            if (
                (entry.dim, entry.window._replace(after=0))
                != (output.dim, output.window)
                or entry.window.after < 0
                or root in taken
                or (there != meta and not relays)
            ):
                continue
            lives = lives or lifetimes(program)
            if (
                fits(program, loop, entry.outer, output, *lives)
                and _alone(program, loop, root, entry)
                and _read_before_written(loop, root, output)
            ):
                output.into = entry.outer
                if there != meta:
                    relaid = True
                    output.order = memory_order(there)
                    _lay_out(program, output)
                taken.add(root)
                for name, old in program.roots.items():
                    if old == output.buffer:  # the buffer, and earlier views of it
                        program.roots[name] = root
                break
        else:
            output.order = wanted_order(program, output.buffer) or output.order
            _lay_out(program, output)
    return relaid


def fits(
    program: Program,
    loop: Loop,
    name: str,
    output: Output,
    last: dict[str, int],
    owned: dict[str, int],
) -> bool:
    """Whether a value of an output's shape, without holes, is all of a storage that
    dies in a loop. last, owned: what `lifetimes` returns."""
    root, there = program.roots[name], program.metas[name]
    meta = program.metas[output.buffer]
    return (
        isinstance(there, Meta)
        and there._replace(strides=meta.strides) == meta
        and root in owned
        and "[" not in root
        and last[root] == program.ops.index(loop)
        and program.metas[root] == there
        and (there == meta or _is_dense(there))
    )


class LayoutError(Exception):
    """A value would lie otherwise in memory, and that is seen."""


def check_layouts(old: Program, new: Program) -> None:
    """Raise LayoutError if layouts that changed are seen: in results, by custom
    operators, or by those that read memory without regard to shapes."""
    changed = {
        name for name, meta in old.metas.items() if new.metas.get(name, meta) != meta
    }

    def sees(step: Step) -> bool:
        if isinstance(step, Loop):
            return any(map(sees, step.body.ops))
        own = getattr(step.target, "namespace", "aten") == "aten"
        return not own or "as_strided" in step.key

    takers = (step for step in new.ops if not changed.isdisjoint(step.operands()))
    if not changed.isdisjoint(refs(new.outputs)) or any(map(sees, takers)):
        raise LayoutError


def written_over(program: Program) -> str | None:
    """A value that is used after its memory was overwritten, if there is one.

    A loop may reuse the memory of a value that dies there, and a later region may move
    a user of that value behind the loop.
    """
    over: dict[str, list[int]] = {}
    for i, step in enumerate(program.ops):
        for each in step.made() if isinstance(step, Loop) else ():
            root = program.roots[each.buffer]
            if each.into is not None:
                over.setdefault(root, []).append(i)
    if not over:
        return None
    made: dict[str, int] = {}
    for i, step in enumerate(program.ops):
        for name in step.operands():
            for root in roots_of(program, name):
                since = made.get(name, -1)
                if root in over and any(since < at < i for at in over[root]):
                    return name
        made.update((name, i) for name in results(step))
    return None


def place_inside(program: Program, loop: Loop) -> None:
    """Let the loops in a loop's body write its results where it keeps them.

    Only a result that nothing else in the body uses, and whose memory, if it was
    another value's, the inner loop does not read.
    """
    body = loop.body
    for output in loop.outputs:
        maker = next((step for step in body.ops if output.inner in results(step)), None)
        if not isinstance(maker, Loop) or any(
            output.inner in step.operands() for step in body.ops
        ):
            continue
        root = program.roots[output.buffer]
        if any(root in roots_of(body, name) for name in maker.operands()):
            continue
        for inner in maker.outputs:
            if inner.buffer == output.inner and inner.into is None:
                inner.inside = True
                strides = program.metas[output.buffer].strides
                meta = body.metas[inner.buffer]
                body.metas[inner.buffer] = meta._replace(strides=strides)


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


def place_totals(program: Program, loop: Loop) -> None:
    """Put totals into the memory of what they begin with, if that dies there and the
    loop reads it for nothing else."""
    last, owned = lifetimes(program)
    position = program.ops.index(loop)
    reads = [*(entry.outer for entry in loop.inputs), *loop.wholes()]
    read = {root for name in reads for root in roots_of(program, name)}
    for total in loop.totals:
        meta = program.metas[total.buffer]
        if not isinstance(total.start, Ref):
            continue
        root = program.roots[total.start.name]
        if (
            program.metas[total.start.name] == meta
            and isinstance(root, str)
            and root not in read
            and root in owned
            and last[root] == position
            and program.metas.get(root) == meta
        ):
            total.into = total.start.name
            read.add(root)
            for name, old in program.roots.items():
                if old == total.buffer:
                    program.roots[name] = root


def _alone(program: Program, loop: Loop, root: str, entry: Input) -> bool:
    """Whether each iteration reads of a storage what it reads through `entry` alone."""
    own = _part(program, entry)
    return all(
        each == entry or (own is not None and _part(program, each) == own)
        for each in loop.inputs
        if root in roots_of(program, each.outer)
    ) and not any(root in roots_of(program, name) for name in loop.wholes())


def _part(program: Program, entry: Input) -> tuple[object, ...] | None:
    """Which elements of a storage an iteration reads, whatever the value's shape; None
    unless it is all of the storage that the iterations divide among them."""
    meta, window = program.metas[entry.outer], entry.window
    if not isinstance(meta, Meta) or window.before or window.after:
        return None
    each = window.ratio  # of the loop's steps
    if each.denominator != 1 or not _is_dense(meta):
        return None
    sizes = (*meta.shape[: entry.dim], int(each), *meta.shape[entry.dim + 1 :])
    begin = int(each) * meta.strides[entry.dim]
    return meta.dtype, window.loop, begin, _merged(sizes, meta.strides)


def _merged(shape: Iterable[int], strides: Iterable[int]) -> list[tuple[int, int]]:
    """Sizes and strides, from the outermost in memory inwards, of as few dimensions as
    can be; none of one element."""
    found: list[tuple[int, int]] = []
    pairs = zip(shape, strides, strict=True)
    for size, stride in sorted(pairs, key=lambda pair: -pair[1]):
        if size != 1 and found and found[-1][1] == size * stride:
            found[-1] = found[-1][0] * size, stride
        elif size != 1:
            found.append((size, stride))
    return found


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


def _is_dense(meta: Meta) -> bool:
    return meta.strides == dense_strides(meta.shape, memory_order(meta))


def dense_strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor without holes whose dimensions lie in memory in `order`."""
    strides = [0] * len(shape)
    stride = 1
    for dim in reversed(order):
        strides[dim] = stride
        stride *= max(1, shape[dim])
    return tuple(strides)
