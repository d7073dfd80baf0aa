"""Where a loop's results go: into memory of their own, or over what dies there."""

from __future__ import annotations

from memplan.chunking.notaloop import NotALoopError
from memplan.graph.liveness import lifetimes, roots_of
from memplan.graph.program import (
    Input,
    Loop,
    Meta,
    Op,
    Output,
    Program,
    Step,
    results,
)


def enter_buffers(program: Program, loop: Loop, fresh: bool = False) -> None:
    """Enter a loop's buffers as values of `program`, in memory that dies where it can.

    A buffer is put into the memory of a value that the loop reads last (`Output.into`)
    if that has its shape and all reads of that memory are of the very slice that is
    written in the same iteration; never if `fresh`. Else, where only matrix products
    take it, transposed, it lies in memory as they want it.
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
                    if old == output.buffer:  # it, and what was seen in it before
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
    """The order of a value's dimensions in memory that its users would have.

    That is if all it goes through is one transposition whose result only matrix
    products take: in any other order they would copy it, in each turn of a loop.
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
    """Whether a loop of this name writes a result over what dies in it, though its
    users want it in another order: they copy it then, in each turn of theirs."""
    return any(
        output.into is not None and wanted_order(program, output.buffer) is not None
        for step in program.ops
        if isinstance(step, Loop) and step.name == loop
        for output in step.outputs
    )


def check_overwriting(program: Program) -> None:
    """Raise NotALoopError if a value is used after its memory was written to anew.

    A loop wrote into a value that died there; a later region may have moved a user of
    that value behind the loop.
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
                    raise NotALoopError(f"{name} is used after it was written over")
        made.update((name, i) for name in results(step))


def _alone(program: Program, loop: Loop, root: str, entry: Input) -> bool:
    """Whether the loop reads a storage through `entry` and in no other way."""
    return all(
        each == entry for each in loop.inputs if root in roots_of(program, each.outer)
    ) and not any(root in roots_of(program, name) for name in loop.wholes())


def _read_before_written(loop: Loop, root: str, output: Output) -> bool:
    """Whether nothing in the body reads a storage after the output is written."""
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
