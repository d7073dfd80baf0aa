"""A program with loops as readable Python."""

from __future__ import annotations

import inspect
import linecache
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.errors import InputError
from memplan.graph.liveness import in_place, lifetimes, overwrites
from memplan.graph.program import (
    Argument,
    Bound,
    Input,
    Loop,
    Meta,
    Op,
    Output,
    Program,
    Ref,
    Step,
    Total,
    Window,
    extent,
    placed,
    refs,
    results,
)
from memplan.text import printable

if TYPE_CHECKING:
    from memplan.chunking.module import Chunked

INDENT = "    "


def source(program: Program, title: str) -> str:
    """The text of a Python module with ``forward(inputs, weights)``.

    inputs: the tensors of `program.inputs`, in order. weights: a mapping from the names
    of `program.constants` to tensors. It returns `program.outputs`. The module imports
    only torch.
    """
    return "\n".join(_Writer(program, title).lines()) + "\n"


class _Writer:
    def __init__(self, program: Program, title: str) -> None:
        self._program, self._title = program, title
        self._functions: dict[str, Callable[..., object]] = {}

    def lines(self) -> Iterator[str]:
        body = list(self._forward())
        yield f'"""{self._title}"""'
        yield ""
        yield "from __future__ import annotations"
        yield ""
        yield "import torch"
        for function in self._functions.values():
            yield ""
            yield ""
            yield from (inspect.getsource(function).splitlines())
        yield ""
        yield ""
        yield from body

    def _forward(self) -> Iterator[str]:
        program = self._program
        yield "def forward(inputs, weights):"
        if program.inputs:
            yield f"{INDENT}{', '.join(program.inputs)}, = inputs"
        used = {name for step in program.ops for name in step.operands()}
        given = set(refs(program.outputs))
        for name, place in program.constants.items():
            if name in used | given:
                yield f"{INDENT}{name} = weights[{place!r}]"
        yield from self._steps(
            program, 1, {*program.inputs, *program.constants, *given}
        )
        yield f"{INDENT}return {_text(program.outputs)}"

    def _steps(
        self,
        program: Program,
        depth: int,
        kept: set[str],
        made: Sequence[Output | Total] = (),
    ) -> Iterator[str]:
        """The statements of a program; they delete names after their last use, except
        the `kept` ones. made: what a loop's body writes to buffers."""
        pad = INDENT * depth
        last: dict[str, int] = {}
        for i, step in enumerate(program.ops):
            for name in (*step.operands(), *results(step)):
                last[name] = i
        dying: dict[int, list[str]] = {}
        for name, i in last.items():
            if name not in kept:
                dying.setdefault(i, []).append(name)
        line = ""
        over = overwrites(program, *lifetimes(program))
        there = {each.inner for each in made if over.get(each.inner) == each.buffer}
        there |= placed(program)
        for i, step in enumerate(program.ops):
            if depth == 1 and step.line and step.line != line:
                line = step.line
                yield f"{pad}# {line}"
            yield from self._step(program, step, depth, over, made)
            for name in results(step):
                for each in made:
                    if each.inner == name and name not in there:
                        yield f"{pad}{_written(each)}.copy_({name})"
            if i in dying:
                yield f"{pad}del {', '.join(dying[i])}"

    def _step(
        self,
        program: Program,
        step: Step,
        depth: int,
        over: dict[str, str],
        made: Sequence[Output | Total],
    ) -> Iterator[str]:
        if isinstance(step, Op):
            call = self._call(_copying(program, _in_place(step, over)))
            yield f"{INDENT * depth}{step.name} = {call}"
        else:
            yield from self._loop(program, step, depth, made)

    def _call(self, op: Op) -> str:
        if op.key == "getitem":
            return f"{op.args[0].name}[{op.args[1]}]"
        packet = getattr(op.target, "overloadpacket", None)
        if packet is None:
            self._functions[op.key] = op.target
            called = op.key
        else:
            called = f"torch.ops.{op.target}"  # in full: also a custom operator's
        items = [_text(arg) for arg in op.args]
        items += [f"{key}={_text(arg)}" for key, arg in op.kwargs.items()]
        return f"{called}({', '.join(items)})"

    def _loop(
        self,
        program: Program,
        loop: Loop,
        depth: int,
        around: Sequence[Output | Total],
    ) -> Iterator[str]:
        """The statements of a loop. around: what the loop around it writes."""
        pad, inside = INDENT * depth, INDENT * (depth + 1)
        places = {each.inner: _written(each) for each in around}
        for output in loop.outputs:
            buffer = output.buffer
            made = places[buffer] if output.inside else self._buffer(program, output)
            yield f"{pad}{buffer} = {made}"
        for total in loop.totals:
            yield f"{pad}{total.buffer} = {self._begun(program, total)}"
        start, stop = _ends(loop.name)
        yield f"{pad}for {start} in range(0, {loop.extent}, {loop.step}):"
        yield f"{inside}{stop} = min({start} + {loop.step}, {loop.extent})"
        for entry in loop.inputs:
            yield f"{inside}{entry.inner} = {_narrow(entry.outer, entry)}"
        outside = {*loop.wholes(), *(total.buffer for total in loop.totals)}
        yield from self._steps(loop.body, depth + 1, outside, loop.made())

    def _buffer(self, program: Program, output: Output) -> str:
        if output.into is not None:
            return output.into
        sizes = _sizes(program, output.buffer)
        in_memory = ", ".join(sizes[dim] for dim in output.order)
        made = f"torch.empty([{in_memory}], {_options(program, output.buffer)})"
        if output.order == tuple(range(len(sizes))):
            return made
        order = [output.order.index(dim) for dim in range(len(sizes))]
        return f"{made}.permute({order})"

    def _begun(self, program: Program, total: Total) -> str:
        """A total before the first iteration."""
        if total.into is not None:
            return total.into
        sizes = ", ".join(_sizes(program, total.buffer))
        options = _options(program, total.buffer)
        if isinstance(total.start, Ref):
            return f"torch.empty([{sizes}], {options}).copy_({total.start.name})"
        return f"torch.full([{sizes}], {_text(total.start)}, {options})"


def _sizes(program: Program, name: str) -> list[str]:
    """A value's sizes; those that follow a loop as expressions."""
    moving = program.moving.get(name, {})
    return [
        _bound(extent(moving[dim])) if dim in moving else str(size)
        for dim, size in enumerate(program.metas[name].shape)
    ]


def _options(program: Program, name: str) -> str:
    meta = program.metas[name]
    return f"dtype={meta.dtype}, device={meta.device!r}"


def _written(made: Output | Total) -> str:
    """Where an iteration writes a result."""
    return made.buffer if isinstance(made, Total) else _narrow(made.buffer, made)


def _text(value: Argument) -> str:
    """An argument or a result as Python."""
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, Bound):
        return _bound(value)
    if isinstance(value, tuple | list | dict):
        return _nest(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if type(value).__module__ == "torch" and type(value).__name__ == "device":
        return f"torch.device({str(value)!r})"
    return repr(value)


def _nest(value: Argument) -> str:
    if isinstance(value, dict):
        return (
            f"{{{', '.join(f'{key!r}: {_text(item)}' for key, item in value.items())}}}"
        )
    inner = ", ".join(map(_text, value))
    if isinstance(value, list):
        return f"[{inner}]"
    return f"({inner},)" if len(value) == 1 else f"({inner})"


def _in_place(op: Op, over: dict[str, str]) -> Op:
    """The operator, or its in-place form if it may overwrite its operand."""
    operand, written = over.get(op.name), in_place(op)
    if operand is None or written is None:
        return op
    args = op.args
    if args[0] != Ref(operand):
        args = (args[1], args[0], *args[2:])
    return replace(op, target=written, args=args)


def _copying(program: Program, op: Op) -> Op:
    """The operator; or for a reshape that copies in a loop, one that always does.

    In a shorter last iteration it could be a view. What is written over its result
    would then be written over what it was made of.
    """
    if not program.ranges or program.roots[op.name] != op.name:
        return op
    if op.key != "aten.reshape":
        return op
    import torch

    return replace(op, target=torch.ops.aten._reshape_copy.default)


def _ends(loop: str) -> tuple[str, str]:
    """The names of the start and the end of a loop's range."""
    tail = loop.removeprefix("loop_")
    return f"start_{tail}", f"stop_{tail}"


def _narrow(name: str, where: Input | Output) -> str:
    low, high = _window(where.window)
    length = _difference(high, low, where.window)
    return f"{name}.narrow({where.dim}, {low}, {length})"


def _difference(high: str, low: str, window: Window) -> str:
    return f"{high} - {low}" if low.isidentifier() else f"{high} - ({low})"


def _window(window: Window) -> tuple[str, str]:
    """The two ends of a window, as expressions."""
    start, stop = _ends(window.loop)
    low, high = _scaled(start, window), _scaled(stop, window)
    if window.before:
        low = f"max(0, {_plus(low, -window.before)})"
    if window.before or window.after or window.ratio.numerator != 1:
        # A convolution with padding in front makes more than it takes, and one that
        # leaves over what does not fill a stride less: the end may be past.
        high = f"min({window.size}, {_plus(high, window.after)})"
    return low, high


def _plus(name: str, offset: int) -> str:
    if not offset:
        return name
    return f"{name} {'-' if offset < 0 else '+'} {abs(offset)}"


def _scaled(name: str, window: Window) -> str:
    ratio = window.ratio
    if ratio.numerator != 1:
        name = f"{name} * {ratio.numerator}"
    return name if ratio.denominator == 1 else f"{name} // {ratio.denominator}"


def _bound(bound: Bound) -> str:
    low, high = _window(bound.window)
    terms = []
    for factor, end in ((bound.high, high), (bound.low, low)):
        if factor:
            simple = end.isidentifier() or end[3:4] == "("
            text = end if simple else f"({end})"
            size = "" if abs(factor) == 1 else f"{abs(factor)} * "
            terms.append((factor < 0, f"{size}{text}"))
    if bound.constant or not terms:
        terms.append((bound.constant < 0, str(abs(bound.constant))))
    if bound.base is not None:
        base = _window(bound.base)[0]
        terms.append((True, base if base.isidentifier() else f"({base})"))
    text = ("-" if terms[0][0] else "") + terms[0][1]
    text += "".join(f" {'-' if minus else '+'} {term}" for minus, term in terms[1:])
    if bound.least is not None:
        text = f"max({bound.least}, {text})"
    return text if bound.most is None else f"min({bound.most}, {text})"


def compiled(
    text: str, name: str
) -> Callable[[Sequence[object], Mapping[str, object]], tuple[object, ...]]:
    """The ``forward`` of a generated module; tracebacks show its lines."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    namespace: dict[str, Any] = {}
    exec(compile(text, file, "exec"), namespace)  # our own text, never a file's
    forward: Callable[..., tuple[object, ...]] = namespace["forward"]
    return forward


def failed_statement(error: BaseException, names: Sequence[str]) -> str:
    """The statement of the modules `compiled` under `names` that raised an error."""
    files = {f"<{name}>" for name in names}
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line or "" for frame in frames if frame.filename in files]
    return lines[-1] if lines else " and ".join(names)


def emitted(module: Chunked, name: str) -> str:
    """The Python of a module that `memplan.chunk` returned; it imports only torch.

    name: of the new module, as in "chunked". Raises InputError unless the whole model
    runs in chunks as one program.
    """
    whole = module.chunks.get("")
    if whole is None:
        parts = ", ".join(module.chunks)
        reason = module.memplan.left_alone.get("", "")
        why = f"only parts run in chunks ({parts})" if parts else "nothing does"
        raise InputError(
            "only a model that is exported whole and runs in chunks can be written as "
            f"one module, and here {why}" + (f": {reason}" if reason else "")
        )
    from memplan.graph.weights import places  # loads torch

    program = whole.program
    model = module.model
    own = places(model)
    inputs = [f"{key}: {_described(program.metas[key])}" for key in program.inputs]
    results = len(list(refs(program.outputs)))
    lines = [
        "How to call it, with the model that it was made from:",
        "",
        f"    import {name}",
        "    weights = dict(model.named_parameters(remove_duplicate=False))",
        "    weights.update(model.named_buffers(remove_duplicate=False))",
    ]
    for place in program.constants.values():
        if place not in own:
            lines.append(f"    weights[{place!r}] = ...  # made in the model's code")
    lines += [
        "    with torch.no_grad():",
        f"        results = {name}.forward(inputs, weights)",
        "",
        "inputs: a list of the tensors among the model's arguments, in order:",
        *(f"    {each}" for each in inputs),
        f"results: a tuple of the {results} tensors that the model gives, in order,"
        if results != 1
        else "results: a tuple of the one tensor that the model gives.",
    ]
    if results != 1:
        lines.append("    however it nests them.")
    header = "\n".join(f"# {printable(line)}".rstrip() for line in lines)
    return f"{header}\n\n{whole.source}"


def _described(meta: Meta) -> str:
    size = "×".join(map(str, meta.shape)) or "a scalar"
    return f"{size}, {str(meta.dtype).removeprefix('torch.')}"
