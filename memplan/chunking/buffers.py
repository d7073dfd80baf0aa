"""The memory of a loop's results."""

from __future__ import annotations

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
    results,
)


def enter_buffers(program: Program, loop: Loop, fresh: bool = False) -> None:
    """Add a loop's buffers to the values of `program`, in dying memory if possible.

    A buffer reuses the memory of a value that the loop reads last (`Output.into`) if
    the shapes are equal and each iteration reads only the slice that it writes; never
    if `fresh`. Otherwise, if only matrix products use it, transposed, its layout is the
    one that they want.
    """
    lives: tuple[dict[str, int], dict[str, int]] | None = None
    position = program.ops.index(loop)
    taken = {program.roots[total.buffer] for total in loop.totals}
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
