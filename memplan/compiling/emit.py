"""A compiled module as a program in Python that needs torch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
from torch import Tensor

from memplan.compiling.module import Compiled, Runner
from memplan.errors import MemplanError, UsageError
from memplan.files import PathLike, atomic_write, write_bytes
from memplan.graph.call import Inputs, Signature
from memplan.graph.check import relative_error, tolerance_of, undone
from memplan.graph.clock import seconds
from memplan.graph.lending import ALIGNMENT
from memplan.graph.measure import footprint
from memplan.graph.nest import first, leaves_of
from memplan.graph.program import Ref, mapped
from memplan.graph.python import argument, statements
from memplan.units import format_bytes
from memplan.version import __version__

TEXT = '''\
"""{name} for inference, its activations in an arena of {size}.

It needs torch alone, and {weights} beside it. Written by memplan {version}, with torch
{torch}, for calls one after another: other threads wait.

    from {module} import Model
    result = Model()({names})
"""

import threading
from pathlib import Path

import torch

aten = torch.ops.aten
ARENA = {arena}  # bytes
WEIGHTS = Path(__file__).with_suffix(".pt")
INPUTS = (  # names, shapes, types and strides
{inputs}
)


class Model:
    """Returns what {name} returns: {returns}."""

    @torch.inference_mode(False)
    def __init__(self, weights=WEIGHTS):
        self._weights = weights
        w = torch.load(weights, weights_only=True)
        memory = torch.empty(ARENA + {alignment}, dtype=torch.uint8)
        start = -memory.data_ptr() % {alignment}

        def at(offset, dtype, shape, strides):
            part = memory[start + offset : start + ARENA]
            part = part[: len(part) // dtype.itemsize * dtype.itemsize]
            return part.view(dtype).as_strided(shape, strides)

        self._lock = threading.Lock()
        self._tensors = [  # in the arena at these offsets, or weights
{tensors}
        ]

    def __reduce__(self):
        return Model, (self._weights,)  # a copy has an arena of its own

    def __call__(self, {names}):
        for (_name, *_form), _one in zip(INPUTS, [{names}]):
            if not (isinstance(_one, torch.Tensor) and _one.is_cpu):
                raise ValueError(f"{{_name}} must be a tensor on the CPU")
            if [tuple(_one.shape), _one.dtype, _one.stride()] != _form:
                _form = "shape {{}}, type {{}} and strides {{}}".format(*_form)
                raise ValueError(f"{{_name}} must have {{_form}}")
        with (
            self._lock,
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            return self._run({names})

    def _run(self, {names}):
        t = self._tensors
{statements}
        return {result}
'''


@dataclass(frozen=True)
class Emitted:
    """A program that was written.

    path, weights: its files. bytes_before, bytes_after: of activations, of the model
    and of the program, its arena included, as measured. requests: how often a call asks
    the allocator for memory. seconds_before, seconds_after: a call of each.
    """

    path: Path
    weights: Path
    bytes_before: int
    bytes_after: int
    requests: int
    seconds_before: float
    seconds_after: float

    @property
    def slowdown(self) -> float:
        """The program's time over the model's."""
        return self.seconds_after / self.seconds_before


def emit(module: Compiled, inputs: object, path: PathLike) -> Emitted:
    """Write a compiled module as a program that runs without memplan.

    module: of `compile` with CompileOptions(portable=True). inputs: as there. path: of
    the program, ends in ".py"; its weights go to the same name with ".pt". It has a
    class `Model`, to be called with the tensors among the inputs, in the order of
    forward's parameters, which returns the tensors among the model's results: one, or a
    tuple. Before it is written, its results on these inputs are compared with the
    module's.

    Raises UsageError for a module that was not compiled so, or another name;
    MemplanError if the results differ.
    """
    path = named(path)
    runner = module.runner if isinstance(module, Compiled) else None
    if runner is None and isinstance(module, Compiled):
        raise UsageError(f"there is no program to write: {module.memplan.reason}")
    if runner is None or runner.choices.asks:
        raise UsageError("only a module compiled with portable=True can be written")
    given = Inputs.of(inputs)
    given = Signature().arranged(module.model, given.args, given.kwargs)
    if difference := runner.difference(given):
        raise UsageError(f"the module is compiled {difference}")
    name, at = type(module.model).__name__, path.with_suffix(".pt")
    source, weights = _written(runner, given, name, at)
    tensors = given.tensors()
    with atomic_write(at) as stream, undone(module.model, given):
        torch.save(weights, stream)
        stream.flush()
        program = _loaded(source, f"/proc/self/fd/{stream.fileno()}")
        _compare(lambda: given.run(module), lambda: program(*tensors))
        runs = [lambda: given.run(module.model), lambda: program(*tensors)]
        with torch.no_grad():
            before, (beside, asked) = footprint(runs[0]).peak, footprint(runs[1])
            times = seconds(runs)
        write_bytes(path, source.encode())
    after = runner.schedule.plan.peak + beside
    return Emitted(path, at, before, after, asked, *times)


def named(path: PathLike) -> Path:
    """The path of a program. Raises UsageError if it does not end in ".py"."""
    found = Path(path)
    if found.suffix != ".py":
        raise UsageError(f"a program's name ends in .py, not {found.name!r}")
    return found


def _loaded(source: str, weights: str) -> Callable[..., object]:
    """The program, as if it had been imported."""
    names: dict[str, Any] = {"__file__": "program.py"}
    exec(source, names)
    model: Callable[..., object] = names["Model"](weights)
    return model


def _compare(module: Callable[[], object], program: Callable[[], object]) -> None:
    """Raise MemplanError unless both return the same tensors, up to rounding."""
    found = []
    with torch.no_grad():
        for run in (module, program):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                leaves = leaves_of(run())
            found.append([each for each in leaves if isinstance(each, Tensor)])
    expected, results = found
    error = relative_error(expected, results)
    if error > tolerance_of(expected):
        raise MemplanError(f"results of the written program differ by {error:.1e}")


def _written(
    runner: Runner, inputs: Inputs, name: str, weights: Path
) -> tuple[str, list[Tensor]]:
    """The program's text, and its weights."""
    schedule = runner.schedule
    program, peak = schedule.flat.program, schedule.plan.peak
    memory = torch.empty(schedule.bytes, dtype=torch.uint8)
    tape = schedule.tape(memory)
    arguments = {each: argument(each) for each in program.inputs}
    lines, made = statements(tape.source, tape.numbers)
    kept: list[Tensor] = []
    places = list(_places(tape.tensors, memory, kept))
    found = dict(zip(tape.results, made, strict=True))
    leaves = mapped(program.outputs, lambda ref: found[ref.name])
    returned = []
    for position, (leaf, ref) in enumerate(zip(leaves, program.outputs, strict=True)):
        if isinstance(ref, Ref):
            strides = runner.strides.get(position)
            returned.append(_laid(leaf, program.metas[ref.name].shape, strides))
    one = runner.target.rebuild is first
    tensors = inputs.tensors()
    forms = [
        f"({word!r}, {tuple(x.shape)}, {x.dtype}, {x.stride()}),"
        for word, x in zip(arguments.values(), tensors, strict=True)
    ]
    text = TEXT.format(
        name=name,
        size=format_bytes(peak),
        weights=weights.name,
        module=weights.stem,
        version=__version__,
        torch=torch.__version__,
        arena=peak,
        alignment=ALIGNMENT,
        inputs=indent("\n".join(forms), " " * 4),
        names=", ".join(arguments.values()),
        returns="one tensor" if one else "a tuple of its tensors",
        tensors=indent("\n".join(places), " " * 12),
        statements=indent("\n".join(lines), " " * 8),
        result=returned[0] if one else f"({''.join(f'{x}, ' for x in returned)})",
    )
    return text, kept


def _places(
    tensors: Sequence[Tensor], memory: Tensor, kept: list[Tensor]
) -> Iterator[str]:
    """Expressions for bound tensors, those that are not in `memory` added to `kept`.

    Raises UsageError for one that no expression gives.
    """
    start = memory.data_ptr() + -memory.data_ptr() % ALIGNMENT
    for each in tensors:
        if each.untyped_storage().data_ptr() != memory.data_ptr():
            yield f"w[{len(kept)}],"
            kept.append(each.detach())
        elif each.is_conj() or each.is_neg():
            raise UsageError("conjugate views of an arena cannot be written")
        else:
            at = each.data_ptr() - start
            yield f"at({at}, {each.dtype}, {tuple(each.shape)}, {each.stride()}),"


def _laid(leaf: str, shape: Sequence[int], strides: Sequence[int] | None) -> str:
    """A result with other strides than its kernel gives it, if there are any."""
    if strides is None:
        return leaf
    form = f"{tuple(shape)}, {tuple(strides)}, dtype={leaf}.dtype"
    return f"torch.empty_strided({form}).copy_({leaf})"
