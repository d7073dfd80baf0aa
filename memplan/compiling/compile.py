"""Run a model's inference in one arena: the public verb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from memplan.chunking.chunk import chunk
from memplan.chunking.module import Chunk
from memplan.chunking.options import BudgetError, ChunkOptions, parse_budget
from memplan.compiling.module import Compiled, Runner
from memplan.compiling.report import CompilePlan
from memplan.errors import NoPlanError, UsageError
from memplan.graph.call import Inputs, Signature
from memplan.graph.capture import Target, export_parts
from memplan.graph.check import (
    Snapshot,
    relative_error,
    results_of,
    scales,
    tolerance_of,
)
from memplan.graph.clock import seconds
from memplan.graph.execute import NoTapeError
from memplan.graph.measure import MEMORY, Run, activation_peak, events_of
from memplan.graph.program import Loop, Program
from memplan.graph.reach import Attributes
from memplan.units import format_bytes

MAX_SLOWDOWN, WITH_BUDGET = 1.02, 1.1
MAX_GROWTH = 1.02  # of memory, for a module that is faster
PATIENT = 1.5  # seconds of a second measurement


@dataclass(frozen=True)
class CompileOptions:
    """Options of `memplan.compile`.

    max_slowdown: the largest accepted ratio of the compiled module's time to the
    model's; None for 1.02, or 1.1 with a budget. pack: whether to keep the weights of
    convolutions in their kernels' layout beside the model's own, which saves time and
    activations; None to do it where all that is kept then takes no more than the
    model's activations did. progress: is told what is being done.
    """

    max_slowdown: float | None = None
    pack: bool | None = None
    progress: Callable[[str], None] = lambda _: None


def compile(  # noqa: A001 - the verb's name in memplan
    model: nn.Module,
    inputs: object,
    budget: str | int | None = None,
    options: CompileOptions | None = None,
) -> Compiled:
    """Return `model` as a module whose inference runs in one arena.

    inputs: a tuple of arguments of its forward, a mapping of keyword arguments, or one
    tensor, on the CPU; the result runs on inputs of the same shapes. budget: for
    activations, the arena and what torch allocates beside it: bytes, as in "24MiB", a
    share of today's peak, as in "25%", or "min"; without it nothing runs in chunks.

    The model is exported once. The order of its operators is the best that a search
    finds, results are written over operands that nobody needs, and all storages lie in
    an arena at offsets that verify. The results are compared with the model's on these
    inputs and on noise; memory and time are measured. If the results differ, or nothing
    is gained, `model` runs unchanged. The attribute `memplan` is the CompilePlan.

    Raises NoPlanError if the budget is not kept; UsageError for contradictory
    arguments, a model in training mode or on another device; InputError for a model
    that fails.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model must be an nn.Module, not {type(model).__name__}")
    if model.training:
        raise UsageError("the model is in training mode; call model.eval() first")
    return _Compiling(model, inputs, options or CompileOptions()).run(budget)


class _Compiling:
    def __init__(
        self, model: nn.Module, inputs: object, options: CompileOptions
    ) -> None:
        given = Inputs.of(inputs)
        device = given.check_device(model)
        if device != "cpu":
            raise UsageError(f"memplan.compile runs on the CPU alone, not on {device}")
        self._model, self._given = model, inputs
        self._inputs = Signature().arranged(model, given.args, given.kwargs)
        self._progress, self._slowest = options.progress, options.max_slowdown
        self._pack = options.pack

    def run(self, budget: str | int | None) -> Compiled:
        """The module; model and inputs are as they were."""
        written = Snapshot([*self._inputs.leaves(), *self._model.buffers()])
        attributes = Attributes(self._model)
        try:
            return self._found(budget)
        finally:
            written.restore()
            if attributes.changed():
                attributes.restore()

    def _found(self, budget: str | int | None) -> Compiled:
        wanted = None if budget is None else parse_budget(budget)
        progress = self._progress
        if self._slowest is None:
            self._slowest = MAX_SLOWDOWN if budget is None else WITH_BUDGET
        progress("exporting")
        exports = export_parts(self._model, self._inputs)
        progress("running the model")
        self._before = activation_peak(lambda: self._inputs.run(self._model))
        least = wanted is not None and wanted.least
        limit = None if wanted is None or least else wanted.bytes_of(self._before)
        whole = [each for each in exports.targets if not each.path]
        if not whole:
            return self._kept(self._unchanged(exports.left_alone[""]), limit)
        slowest = self._slowest
        if not least:
            found = self._made(whole[0], whole[0].program)
            if limit is None or found.memplan.bytes_after <= limit:
                return found
            if found.runner is not None:  # what it saves, loops may take
                slowest /= min(1.0, found.memplan.slowdown)
        best = self._unchanged("no loop needs less memory")
        for part in self._chunked(limit, slowest):
            made = self._made(part.target, part.program)
            plan = made.memplan
            self._progress(plan.reason or f"{format_bytes(plan.bytes_after)} in all")
            if plan.bytes_after <= best.memplan.bytes_after:
                best = made
            if limit is None or plan.bytes_after <= limit:
                break
        return self._kept(best, limit)

    def _chunked(self, limit: int | None, slowest: float) -> Iterator[Chunk]:
        """The model in chunks, within `limit` or with as little memory as possible.

        An arena may take less than the same chunks without one, so what comes near the
        limit is tried too.
        """
        options = ChunkOptions(max_slowdown=slowest, progress=self._progress)
        if limit is not None:
            try:
                found = chunk(self._model, self._given, limit, options=options)
            except BudgetError as error:
                found = error.closest
            yield from found.chunks.values()
        found = chunk(self._model, self._given, "min", options=options)
        yield from found.chunks.values()

    def _kept(self, module: Compiled, limit: int | None) -> Compiled:
        after = module.memplan.bytes_after
        if limit is not None and after > limit:
            reason = module.memplan.reason
            raise NoPlanError(
                f"the model needs {format_bytes(after)} in one arena, above its budget "
                f"of {format_bytes(limit)}" + (f": {reason}" if reason else ""),
                after,
            )
        return module

    def _unchanged(self, reason: str) -> Compiled:
        version = torch.__version__
        plan = CompilePlan("unchanged", reason, version, self._before, self._before)
        return Compiled(self._model, plan, None)

    def _made(self, target: Target, program: Program) -> Compiled:
        """A module that runs `program`; the model itself if that is wrong or slow."""
        self._progress("planning")
        packs = (True, False) if self._pack is None else (self._pack,)
        found = None
        for pack in packs:
            try:
                runner = Runner(target, program, self._inputs, pack)
            except NoTapeError as refusal:
                return self._unchanged(f"it has {refusal}, which a tape cannot hold")
            packed = runner.schedule.packed
            kept = packed + runner.schedule.plan.peak
            if self._pack is None and packed and kept > self._before:
                continue
            found = self._checked(runner, program)
            if found.runner is not None or not packed:
                break
        assert found is not None  # the last one has nothing packed, or was asked for
        return found

    def _checked(self, runner: Runner, program: Program) -> Compiled:
        progress = self._progress
        runner(self._inputs)
        progress("checking the results")
        error = self._error(runner)
        if error > (most := tolerance_of([self._inputs.run(self._model)])):
            return self._unchanged(
                f"results differ by {error:.1e}, more than {most:.0e}"
            )
        return self._measured(runner, program, error)

    def _error(self, runner: Runner) -> float:
        """The largest error of the runner's results, on these inputs and on noise."""
        model, inputs = self._model, self._inputs

        def as_model(*args: object, **kwargs: object) -> object:
            return runner(Inputs(args, kwargs))

        expected = results_of(inputs, model, model)
        found = results_of(inputs, model, as_model, len(expected))
        if all(
            relative_error(*pair) == 0 for pair in zip(expected, found, strict=True)
        ):
            return 0.0
        rounding = scales(lambda: results_of(inputs, model, model), expected)
        most = tolerance_of(expected)
        least = [[10 * each / most for each in row] for row in rounding]
        pairs = zip(expected, found, least, strict=True)
        return max(relative_error(*each) for each in pairs)

    def _measured(self, runner: Runner, program: Program, error: float) -> Compiled:
        """The module with its figures; the model itself if it is too slow."""
        schedule, model, inputs = runner.schedule, self._model, self._inputs
        self._progress("measuring")
        beside = activation_peak(lambda: runner(inputs))
        plan = CompilePlan(
            status="compiled",
            reason="",
            torch=torch.__version__,
            bytes_before=self._before,
            bytes_after=schedule.plan.peak + beside,
            arena=schedule.plan.peak,
            beside=beside,
            requests_before=_requests(lambda: inputs.run(model)),
            requests_after=_requests(lambda: runner(inputs)),
            asking=dict(Counter(schedule.beside).most_common()),
            operators=len(schedule.flat.program.ops),
            loops=sum(isinstance(step, Loop) for step in program.ops),
            order_proof=schedule.order.proof,
            order_bound=schedule.order.bound,
            folded=schedule.flat.folded,
            packed=schedule.packed,
            error=error,
            plan=schedule.plan,
        )
        module = Compiled(model, plan, runner)
        runs = [lambda: inputs.run(model), lambda: inputs.run(module)]
        assert self._slowest is not None
        with torch.no_grad():
            before, after = seconds(runs)
            if after > self._slowest * before:  # another program may have disturbed it
                again = seconds(runs, enough=PATIENT)
                before, after = map(min, zip((before, after), again, strict=True))
        module.memplan = replace(plan, seconds_before=before, seconds_after=after)
        if after > self._slowest * before:
            return self._unchanged(
                f"it would take {after / before:.2f} times as long; the limit is "
                f"{self._slowest:.2f}"
            )
        if plan.bytes_after > MAX_GROWTH * self._before:
            return self._unchanged(
                f"it would need {format_bytes(plan.bytes_after)} of memory, the model "
                f"needs {format_bytes(self._before)}"
            )
        if plan.bytes_after >= self._before and after >= before:
            return self._unchanged("it would save neither memory nor time")
        return module


def _requests(run: Run) -> int:
    """Requests to the allocator in a run."""
    with torch.no_grad():
        events = events_of(run)
    return sum(event.name() == MEMORY and event.nbytes() > 0 for event in events)
