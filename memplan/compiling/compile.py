"""Run a model's inference in one arena: the public verb."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from memplan.chunking.canonical import searchable
from memplan.chunking.descent import Descent
from memplan.chunking.options import ChunkOptions, check_slowdown, parse_budget
from memplan.chunking.search import Trial
from memplan.compiling.costs import in_arena
from memplan.compiling.fused import Fused
from memplan.compiling.module import Compiled, Runner, tensors_of
from memplan.compiling.report import CompilePlan, Front
from memplan.compiling.schedule import PackedTooMuchError, flattened
from memplan.errors import MemplanError, NoPlanError, UsageError
from memplan.fusing.options import KERNELS, kernel_subsets
from memplan.graph.call import Inputs, Signature
from memplan.graph.capture import Exports, export_parts
from memplan.graph.check import (
    Snapshot,
    relative_error,
    results_of,
    scales,
    tolerance_of,
)
from memplan.graph.clock import seconds, timed
from memplan.graph.export import first_line
from memplan.graph.measure import MEMORY, Run, activation_peak, events_of
from memplan.graph.order import EFFORT
from memplan.graph.program import Loop, Op, Program
from memplan.graph.reach import Attributes
from memplan.graph.script import NoTapeError
from memplan.units import budget_of, format_bytes

MAX_SLOWDOWN, WITH_BUDGET = 1.02, 1.1
MAX_GROWTH = 1.02  # of memory, for a module that is faster
PATIENT = 1.5  # seconds of a second measurement
BUILT = 2  # modules with loops for a goal
SLOW = 2  # budgets of the front whose plans are too slow, before it ends
STEP = 0.8  # each budget of the front, of the least memory found before
DEFECT = "internal error: "
UNSEEN = "its weights were created in inference mode, so memplan cannot see changes"
LESS = 6  # times less effort for the order of unrolled loops, which run in a good one


@dataclass(frozen=True)
class CompileOptions:
    """Options of `memplan.compile`.

    max_slowdown: the largest accepted ratio of the compiled module's time to the
    model's; None for 1.02, or 1.1 with a budget. pack: whether convolutions and layers
    around them run as memplan's kernels, which keep the weights in a layout of their
    own beside the model's; that saves time and activations. None to do it where all
    that is kept then takes no more than the model's activations did. progress: is told
    what is being done.
    """

    max_slowdown: float | None = None
    pack: bool | None = None
    progress: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        check_slowdown(self.max_slowdown)


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
    return _Compiling(model, inputs, options).run(budget)


def compile_front(
    model: nn.Module, inputs: object, options: CompileOptions | None = None
) -> Front:
    """How little memory a model's inference needs in one arena, and what it costs.

    model, inputs, options: as of `compile`; without `max_slowdown` plans may take any
    time. Searches budgets downwards from the plan without chunking, each a step below
    the least memory found, until a search finds nothing, or what it finds is too slow
    twice. Of the measured plans it keeps those that no other, nor the model itself,
    equals or beats in both memory and time, and that need no more memory than the
    model: the fastest first, so that memory falls and time rises.

    Raises NoPlanError if there is none; KeyboardInterrupt after Ctrl-C if none was
    measured yet; UsageError and InputError as `compile`.
    """
    return _Compiling(model, inputs, options).front()


class _Compiling:
    """Compiles a model: without loops, and as the bench of a search for loops."""

    def __init__(
        self, model: nn.Module, inputs: object, options: CompileOptions | None
    ) -> None:
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise UsageError(f"the model must be an nn.Module, not {kind}")
        if model.training:
            raise UsageError("the model is in training mode; call model.eval() first")
        options = CompileOptions() if options is None else options
        if not isinstance(options, CompileOptions):
            kind = type(options).__name__
            raise UsageError(f"options must be CompileOptions, not {kind}")
        given = Inputs.of(inputs)
        device = given.check_device(model)
        if device != "cpu":
            raise UsageError(f"memplan.compile runs on the CPU alone, not on {device}")
        self.internal_errors: Counter[str] = Counter()
        self._model = model
        self._inputs = Signature().arranged(model, given.args, given.kwargs)
        self._progress, self._options = options.progress, options
        self._kernels: list[tuple[str, ...]] = []  # sets to try, the last without
        if options.pack is not False:
            self._kernels += [*kernel_subsets(KERNELS), ("onednn",)]
        if not options.pack:
            self._kernels += [()]
        self._plans: list[CompilePlan] = []  # all that were measured

    def run(self, budget: str | int | None) -> Compiled:
        """The module; model and inputs are as they were."""
        with self._unwritten():
            found = self._found(budget)
        errors = dict(self.internal_errors)
        found.memplan = replace(found.memplan, internal_errors=errors)
        return found

    def front(self) -> Front:
        """The plans that nothing beats; model and inputs are as they were."""
        with self._unwritten():
            slowest = self._options.max_slowdown
            self._slowest = math.inf if slowest is None else slowest
            exports = self._exported()
            if not self._has_whole(exports):
                raise NoPlanError(f"no plan was found: {exports.left_alone['']}")
            found = self._made(self._target.program)
            try:
                interrupted = self._descend(exports, self.peak(found))
            except KeyboardInterrupt:
                interrupted = True
                if not self._plans:
                    raise
        if best := best_of(self._plans, self._slowest):
            return Front(best, interrupted, dict(self.internal_errors))
        why = found.memplan.reason or "none saves memory or time"
        if best := best_of(self._plans, math.inf):
            why = f"the fastest would take {best[0].slowdown:.2f} times as long; the "
            why += f"limit is {self._slowest:.2f}"
        raise NoPlanError(f"no plan was found: {why}", self.before)

    def _descend(self, exports: Exports, lowest: int) -> bool:
        """Build plans for lower and lower budgets, until there is none; whether Ctrl-C
        ended it."""
        descent = self._descent(exports, packed=self._packs_within(self.before))
        slow = 0
        while lowest and slow < SLOW and not descent.interrupted:
            limit = int(STEP * lowest)
            self._progress(f"within {format_bytes(limit)}")
            found = descent.within(limit)
            if not found:
                break
            slow += min(map(self.slowdown, found)) > self._slowest
            lowest = min(map(self.peak, found))
        return descent.interrupted

    @contextmanager
    def _unwritten(self) -> Iterator[None]:
        """Model and inputs are put back as they were."""
        written = Snapshot([*self._inputs.leaves(), *self._model.buffers()])
        attributes = Attributes(self._model)
        try:
            yield
        finally:
            written.restore()
            if attributes.changed():
                attributes.restore()

    def _exported(self) -> Exports:
        self._progress("exporting")
        tensors = (*self._model.parameters(), *self._model.buffers())
        if any(each.is_inference() for each in tensors):
            exports = Exports([], {"": UNSEEN})
        else:
            exports = export_parts(self._model, self._inputs)
        self._progress("running the model")
        self.before = activation_peak(lambda: self._inputs.run(self._model))
        return exports

    def _has_whole(self, exports: Exports) -> bool:
        """Whether the model was exported in one part, the target from now on."""
        whole = [each for each in exports.targets if not each.path]
        if whole:
            self._target = whole[0]
        return bool(whole)

    def _found(self, budget: str | int | None) -> Compiled:
        wanted = None if budget is None else parse_budget(budget)
        slowest, usual = self._options.max_slowdown, MAX_SLOWDOWN
        if wanted is not None:
            usual = WITH_BUDGET
        self._slowest = usual if slowest is None else slowest
        exports = self._exported()
        limit = math.inf
        if wanted is not None and not wanted.least:
            limit = wanted.bytes_of(self.before)
        whole = self._has_whole(exports)
        if whole:
            found = self._judged(self._made(self._target.program))
        else:
            found = self._unchanged(exports.left_alone[""])
        least = wanted is not None and wanted.least
        if found.memplan.bytes_after <= limit and not least:
            return found
        if not whole:
            raise _too_large(found, limit, self.internal_errors)
        return self._in_chunks(exports, found, limit)

    def _in_chunks(self, exports: Exports, found: Compiled, limit: float) -> Compiled:
        """The module with loops, within `limit` or with as little memory as possible.

        found: the module without loops.
        """
        room = self.before / 2 if limit == math.inf else limit
        descent = self._descent(exports, self._packs_within(self.before - room))
        if limit == math.inf:
            module, fast = descent.least()
            if module is not None and fast and self.peak(module) < self.peak(found):
                return module
            return found
        if within := descent.within(int(limit)):
            module, fast = descent.fastest(within)
            if fast:
                return module
            raise NoPlanError(
                f"{format_bytes(self.peak(module))} in one arena fit the budget of "
                f"{format_bytes(limit)}, but it {_too_slow(module, self._slowest)}; "
                "raise --max-slowdown (max_slowdown in CompileOptions) or the budget",
                self.peak(module),
            )
        nearest = min([found, descent.nearest or found], key=self.peak)
        raise _too_large(nearest, limit, self.internal_errors)

    def _packs_within(self, most: float) -> bool:
        """Whether weights of convolutions are packed, by oneDNN, in so many bytes."""
        if self._options.pack is False:
            return False
        program, inputs = self._target.program, tensors_of(self._inputs)
        places = program.constants.items()
        constants = {x: self._target.weights[at].detach() for x, at in places}
        with torch.inference_mode(False), torch.no_grad():
            _, nbytes = flattened(program, constants, inputs, ("onednn",))
        return 0 < nbytes <= most

    def _descent(self, exports: Exports, packed: bool) -> Descent[Compiled]:
        """The search for loops; packed: whether convolutions' weights are."""
        inference, target = exports.inference, self._target
        changed = replace(target, program=searchable(target.program, inference))
        slowest = WITH_BUDGET if self._slowest == math.inf else self._slowest
        options = ChunkOptions(max_slowdown=slowest, progress=self._progress)
        with torch.no_grad():
            whole = min(timed(lambda: self._inputs.run(self._model))[1] for _ in "12")
        return Descent(
            replace(exports, targets=[changed]),
            self,
            in_arena(packed),
            whole,
            options,
            BUILT,
        )

    def build(self, trials: Mapping[str, Trial], limit: int) -> Compiled | None:
        """The module of a trial, measured; None if its results differ."""
        (trial,) = trials.values()
        made = self._made(trial.program, trial.again, limit)
        plan = made.memplan
        if made.runner is None:
            self.internal_errors[plan.reason] += 1
            return None
        self._progress(
            f"{format_bytes(plan.bytes_after)} in all, {plan.slowdown:.2f} of the time"
        )
        return made

    def peak(self, module: Compiled) -> int:
        """Bytes of the arena and what lies beside it."""
        return module.memplan.bytes_after

    def settled(self, module: Compiled, enough: float) -> bool:
        """Whether it is fast enough; `build` timed it."""
        return module.memplan.slowdown <= enough

    def slowdown(self, module: Compiled) -> float:
        """The ratio that `build` measured."""
        return module.memplan.slowdown

    def fastest(self, modules: Sequence[Compiled], enough: float) -> Compiled:
        """The fastest of some modules."""
        return min(modules, key=self.slowdown)

    def _unchanged(self, reason: str) -> Compiled:
        version = torch.__version__
        plan = CompilePlan("unchanged", reason, version, self.before, self.before)
        return Compiled(self._model, plan, None)

    def _made(
        self, program: Program, again: tuple[str, ...] = (), limit: float = math.inf
    ) -> Compiled:
        """A module that runs `program`, measured; the model itself if that is wrong.

        Of kernels that need no more than `limit` and the model, the fastest.
        """
        self._progress("planning")
        room = min(limit, MAX_GROWTH * self.before)

        def rank(module: Compiled) -> tuple[int, float]:
            plan = module.memplan
            if module.runner is None:
                return 2, 0.0
            if plan.bytes_after > room:
                return 1, plan.bytes_after
            return 0, plan.slowdown

        loops = any(isinstance(step, Loop) for step in program.ops)
        effort = EFFORT // LESS if loops else EFFORT
        most = self.before if self._options.pack is None else None
        best, failed = None, list[str]()
        for kernels in list(self._kernels):
            try:
                runner = Runner(
                    self._target, program, self._inputs, kernels, effort, most
                )
            except PackedTooMuchError:
                self._kernels.remove(kernels)
                continue
            except NoTapeError as refusal:
                reason = f"it has {refusal}, which a tape cannot hold"
                found = self._unchanged(reason)
            except Exception as failure:  # the model itself runs
                found = self._unchanged(f"{DEFECT}{first_line(failure)}")
            else:
                schedule = runner.schedule
                both = schedule.packed + schedule.plan.peak
                if most is not None and schedule.packed and both > most:
                    continue
                found = self._checked(runner, program, again)
            if found.runner is None:
                failed.append(found.memplan.reason)
            best = min([*([best] if best else []), found], key=rank)
            if rank(best) <= (0, 1.0):
                break
        assert best is not None
        if best.runner is not None:  # else its reason is told
            defects = (each for each in failed if each.startswith(DEFECT))
            self.internal_errors.update(defects)
        return best

    def _checked(
        self, runner: Runner, program: Program, again: tuple[str, ...]
    ) -> Compiled:
        if difference := runner.difference(self._inputs):
            return self._unchanged(f"it can be compiled only {difference}")
        try:
            runner.learn(self._inputs.run(self._model), runner(self._inputs))
            self._progress("checking the results")
            error = self._error(runner)
        except NoTapeError as refusal:
            return self._unchanged(f"it has {refusal}, which a tape cannot hold")
        except Exception as failure:  # as above, of torch's kernels
            return self._unchanged(f"{DEFECT}{first_line(failure)}")
        if error > (most := tolerance_of([self._inputs.run(self._model)])):
            given = tensors_of(self._inputs)
            if len({each.data_ptr() for each in given}) < len(given):
                return self._unchanged("one tensor is several of its arguments")
            return self._unchanged(
                f"results differ by {error:.1e}, more than {most:.0e}"
            )
        return self._measured(runner, program, again, error)

    def _error(self, runner: Runner) -> float:
        """The largest error of the runner's results, on these inputs and on noise."""
        model, inputs = self._model, self._inputs

        def as_model(*args: object, **kwargs: object) -> object:
            given = Inputs(args, kwargs)
            if difference := runner.difference(given):  # kernels would read elsewhere
                raise MemplanError(f"it is compiled {difference}")
            return runner(given)

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

    def _measured(
        self, runner: Runner, program: Program, again: tuple[str, ...], error: float
    ) -> Compiled:
        """The module with its figures."""
        schedule, model, inputs = runner.schedule, self._model, self._inputs
        ops = schedule.flat.program.ops
        self._progress("measuring")
        beside = activation_peak(lambda: runner(inputs))
        targets = (op.target for op in ops if isinstance(op, Op))
        kernels = [each for each in targets if isinstance(each, Fused)]
        plan = CompilePlan(
            status="compiled",
            reason="",
            torch=torch.__version__,
            bytes_before=self.before,
            bytes_after=schedule.plan.peak + beside,
            arena=schedule.plan.peak,
            beside=beside,
            requests_before=_requests(lambda: inputs.run(model)),
            requests_after=_requests(lambda: runner(inputs)),
            asking=dict(Counter(schedule.beside).most_common()),
            operators=len(ops),
            loops=sum(isinstance(step, Loop) for step in program.ops),
            again=again,
            order_proof=schedule.order.proof,
            order_bound=schedule.order.bound,
            kernels=len(kernels),
            fused=sum(each.layers for each in kernels),
            folded=schedule.flat.folded,
            packed=schedule.packed,
            error=error,
            plan=schedule.plan,
        )
        module = Compiled(model, plan, runner)
        runs = [lambda: inputs.run(model), lambda: inputs.run(module)]
        with torch.no_grad():
            before, after = seconds(runs)
            if after > self._slowest * before:  # another program may have disturbed it
                more = seconds(runs, enough=PATIENT)
                before, after = map(min, zip((before, after), more, strict=True))
        module.memplan = replace(plan, seconds_before=before, seconds_after=after)
        self._plans.append(module.memplan)
        return module

    def _judged(self, module: Compiled) -> Compiled:
        """The module; the model itself if it gains nothing."""
        plan = module.memplan
        if module.runner is None:
            return module
        if plan.slowdown > self._slowest:
            return self._unchanged(f"it {_too_slow(module, self._slowest)}")
        if plan.bytes_after > MAX_GROWTH * self.before:
            return self._unchanged(
                f"it would need {format_bytes(plan.bytes_after)} of memory, the model "
                f"needs {format_bytes(self.before)}"
            )
        if plan.bytes_after >= self.before and plan.slowdown >= 1:
            return self._unchanged("it would save neither memory nor time")
        return module


def best_of(plans: Sequence[CompilePlan], slowest: float) -> tuple[CompilePlan, ...]:
    """Those that nothing equals or beats in both memory and time, fastest first, which
    need no more memory than the model and at most `slowest` times its time."""
    best: list[CompilePlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.slowdown, plan.bytes_after)):
        least = best[-1].bytes_after if best else math.inf
        most = plan.bytes_before - (plan.slowdown >= 1)
        if plan.bytes_after < least and plan.bytes_after <= most:
            best.append(plan)
    return tuple(plan for plan in best if plan.slowdown <= slowest)


def _too_slow(module: Compiled, most: float) -> str:
    ratio = module.memplan.slowdown
    return f"would take {ratio:.2f} times as long; the limit is {most:.2f}"


def _too_large(nearest: Compiled, limit: float, errors: Counter[str]) -> NoPlanError:
    """The error for a budget; nearest: the module that needs least."""
    plan, reasons = nearest.memplan, []
    found = "the lowest found in one arena is"
    if nearest.runner is None:
        found = "no plan was accepted that needs less than the model itself,"
        reasons.append(f"without loops, {plan.reason}")
    if errors:
        most = errors.most_common(1)[0][0]
        reasons.append(f"{errors.total()} plans were dropped for errors, as in {most}")
    why = f": {'; '.join(reasons)}" if reasons else ""
    return NoPlanError(
        f"{found} {budget_of(plan.bytes_after)}, above the budget of "
        f"{format_bytes(int(limit))}{why}",
        plan.bytes_after,
    )


def _requests(run: Run) -> int:
    """Requests to the allocator in a run."""
    with torch.no_grad():
        events = events_of(run)
    return sum(event.name() == MEMORY and event.nbytes() > 0 for event in events)
