"""Makes a model's modules in one arena, checks and measures them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from weakref import WeakKeyDictionary

import torch
from torch import nn

from memplan.chunking.options import check_slowdown
from memplan.chunking.trial import Trial
from memplan.compiling.batches import InBatches
from memplan.compiling.kernels import Kernel
from memplan.compiling.module import Compiled, Runner
from memplan.compiling.outcomes import seen, why_unfused
from memplan.compiling.report import CompilePlan
from memplan.compiling.schedule import LESS_SCRATCH, Choices, PackedTooMuchError
from memplan.errors import InputError, MemplanError, UsageError
from memplan.fusing.options import KERNELS, FuseOptions, kernel_subsets
from memplan.graph.call import Inputs, Signature
from memplan.graph.capture import Target
from memplan.graph.check import (
    aloud,
    least_scales,
    relative_error,
    results_of,
    scaled_error,
    tolerance_of,
    undone,
)
from memplan.graph.clock import LONG, seconds, timed
from memplan.graph.export import first_line
from memplan.graph.measure import footprint
from memplan.graph.nest import changed
from memplan.graph.order import EFFORT
from memplan.graph.program import Loop, Meta, Op, Program
from memplan.graph.script import NoTapeError
from memplan.graph.standin import StandIn
from memplan.units import format_bytes

MAX_GROWTH = 1.02  # of memory, for a module that is faster
LEAST = 1  # byte: a room with less than which no operator makes do
NO_GAIN = 0.98  # times the time of what runs otherwise, above which nothing is gained
COARSER = 1e-5  # a tolerance above it is of results in 16 bits
SLACK = 1 << 20  # bytes more of a fused model that are nothing to speak of
PAGE = 4096  # bytes of growth that are nothing to speak of
SMALL = 1 << 16  # bytes of constants, computed once, that are nothing to speak of
PATIENT = 1.5  # seconds of a second measurement
DEFECT = "internal error: "
UNFUSED = "it has no supported layers"
UNHELD = "which a tape cannot hold"
LESS = 6  # times less effort for the order of unrolled loops, which run in a good one


@dataclass(frozen=True)
class CompileOptions:
    """Options of `memplan.compile`.

    max_slowdown: the largest accepted ratio of the compiled module's time to the
    model's; None for 1.02, or 1.1 with a budget. pack: whether convolutions, linear
    layers and what surrounds them run as memplan's kernels, which keep the weights in a
    layout of their own beside the model's; that mostly saves time. None to do
    it where all that is kept then takes no more than the model's activations did.
    reuse_outputs: lay results in the arena, too, so that a call asks the allocator for
    nothing. They stay valid: an arena with results that the caller holds is not used.
    Where several were held, all later calls copy theirs. progress: is told what is
    being done.
    portable: use nothing that `emit` cannot write: neither kernels of memplan's nor an
    allocator that serves what torch's kernels ask for. time_limit: seconds after which
    a search for loops ends; None to let it end by itself.
    """

    max_slowdown: float | None = None
    pack: bool | None = None
    reuse_outputs: bool = False
    progress: Callable[[str], None] = lambda _: None
    portable: bool = False
    time_limit: float | None = None

    def __post_init__(self) -> None:
        check_slowdown(self.max_slowdown)
        if self.time_limit is not None and not self.time_limit > 0:
            raise UsageError(f"time_limit is seconds above 0, not {self.time_limit}")
        if self.portable and (self.pack or self.reuse_outputs):
            raise UsageError("portable does not go with pack or reuse_outputs")


class NoFasterError(Exception):
    """A module is no faster than its rival, and was not checked."""


class Bench:
    """Makes modules of programs of one model, and measures them.

    before, requests: bytes that the model needs, and how often it asks for some.
    target: the exported model. slowest: the largest accepted ratio of times. plans: all
    that were measured. loops: of the modules that have any. internal_errors: how many
    sets of kernels or modules each defect dropped.
    """

    before: int
    requests: int
    target: Target
    slowest: float

    def __init__(
        self,
        model: nn.Module,
        inputs: object,
        options: CompileOptions | None,
        fusing: FuseOptions | None = None,
    ) -> None:
        """fusing: the options of `fuse`, where that is what is done."""
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise UsageError(f"the model must be an nn.Module, not {kind}")
        if model.training:
            raise UsageError("the model is in training mode; call model.eval() first")
        options = CompileOptions() if options is None else options
        if not isinstance(options, CompileOptions):
            kind = type(options).__name__
            raise UsageError(f"options must be CompileOptions, not {kind}")
        given = inputs if isinstance(inputs, Inputs) else Inputs.of(inputs)
        device = given.check_device(model)
        if device != "cpu":
            raise UsageError(f"memplan.compile runs on the CPU alone, not on {device}")
        self.internal_errors: Counter[str] = Counter()
        self.interrupted = False  # `fastest` takes no time
        self.model = model
        self.inputs = Signature().arranged(model, given.args, given.kwargs)
        self.progress, self.options = aloud(options.progress), options
        self.fusing = fusing
        self._forced = fusing is not None and not fusing.measure
        self.kernels: list[tuple[str, ...]] = []  # sets to try, the last without
        if fusing is not None:
            self.kernels += kernel_subsets(fusing.kernels)
            self.kernels += [("onednn",)] * ("onednn" in fusing.kernels)
            self.kernels += [()] * fusing.measure
        elif options.pack is not False and not options.portable:
            self.kernels += [*kernel_subsets(KERNELS), ("onednn",)]
        if not options.pack:
            self.kernels += [(LESS_SCRATCH,), ()]
        self.whole: Target | None = None  # where `target` is for some of the images
        self.rival: Compiled | None = None  # then: what a module must beat
        self.refused = False  # whether a tape cannot hold the program
        self.plans: list[CompilePlan] = []  # all that were measured
        self._long = False  # whether it needs no warm-up
        self._results: list[object] = []  # of the model, for its inputs and noise
        self.loops: WeakKeyDictionary[Compiled, Trial] = WeakKeyDictionary()

    def with_errors(self, module: Compiled) -> Compiled:
        """The module, its plan with the defects that were met."""
        errors = dict(self.internal_errors)
        module.memplan = replace(module.memplan, internal_errors=errors)
        return module

    def unwritten(self) -> AbstractContextManager[object]:
        """Model and inputs are put back as they were."""
        return undone(self.model, self.inputs)

    def expected(self) -> list[object]:
        """The model's results for its inputs and, unless it rejects that, for noise."""
        if not self._results:
            self._results = results_of(self.inputs, self.model, self.model)
        return self._results

    def note_footprint(self) -> None:
        """Measure the model."""
        self.progress("running the model")
        run = partial(footprint, partial(self.inputs.run, self.model))
        (self.before, self.requests), took = timed(run)
        self._long = took > LONG

    def build(self, trials: Mapping[str, Trial], limit: int) -> Compiled | None:
        """The module of a trial, measured; None if its results differ."""
        (trial,) = trials.values()
        made = self.made(trial.program, trial.again, limit)
        plan = made.memplan
        if made.runner is None:
            self.internal_errors[plan.reason] += 1
            return None
        self.loops[made] = trial
        self.progress(
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

    def is_fast(self, module: Compiled, enough: float) -> bool:
        """Whether that is at most `enough`."""
        return module.memplan.slowdown <= enough

    def fastest(self, modules: Sequence[Compiled], enough: float) -> Compiled:
        """The fastest of some modules."""
        return min(modules, key=self.slowdown)

    def unchanged(self, reason: str) -> Compiled:
        version = torch.__version__
        plan = CompilePlan("unchanged", reason, version, self.before, self.before)
        return Compiled(self.model, plan, None)

    def made(
        self, program: Program, again: tuple[str, ...] = (), limit: float = math.inf
    ) -> Compiled:
        """A module that runs `program`, measured; the model itself if that is wrong.

        Of kernels that need no more than `limit` and the model, the fastest.
        """
        self.progress("planning")
        room = min(limit, self._most)

        def rank(module: Compiled) -> tuple[int, float]:
            plan = module.memplan
            if module.runner is None:
                return 3, 0.0
            if plan.bytes_after > room:
                return 2, plan.bytes_after
            return bool(self._objection(plan)), plan.slowdown

        best, failed = None, list[str]()
        for choices in self._choices(program, limit):
            try:
                found, plain = self._tried(program, again, choices)
            except PackedTooMuchError:
                continue
            if found.runner is None:
                failed.append(found.memplan.reason)
            best = min([*([best] if best else []), found], key=rank)
            # Without packed weights memory goes before time.
            patient = self._forced or choices.kernels == (LESS_SCRATCH,)
            enough = math.inf if patient else 1.0
            fits = rank(found)[0] < 2
            if rank(best) <= (0, enough) or (plain and (fits or choices.room <= LEAST)):
                break
        assert best is not None
        if failed and self._objection(best.memplan) == UNFUSED:
            return self.unchanged(failed[0])
        if best.runner is not None:  # else its reason is told
            defects = (DEFECT in each or UNHELD in each for each in failed)
            self.internal_errors.update(compress(failed, defects))
        return best

    def measured(self, program: Program, choices: Choices) -> CompilePlan:
        """The plan of a program with these choices, or why there is none."""
        self.progress("planning")
        return self._tried(program, (), replace(choices, most=None))[0].memplan

    def _choices(self, program: Program, limit: float) -> Iterator[Choices]:
        """How a program may be scheduled, the most promising first."""
        loops = any(isinstance(step, Loop) for step in program.ops)
        base = Choices(
            fusing=self.fusing or FuseOptions(),
            anywhere=self.fusing is not None,
            reorders=self.fusing is None,  # for less memory, which takes a while
            effort=EFFORT // LESS if loops else EFFORT,
            most=self.before if self.options.pack is None else None,
            folds=max(SMALL, self.before // 50),
            holds_outputs=self.options.reuse_outputs,
            asks=not self.options.portable,
        )
        for kernels in dict.fromkeys(self.kernels):
            tight = kernels == (LESS_SCRATCH,) and limit < math.inf
            for room in (int(limit), LEAST) if tight else (0,):
                yield replace(base, kernels=kernels, room=room)

    def _tried(
        self, program: Program, again: tuple[str, ...], choices: Choices
    ) -> tuple[Compiled, bool]:
        """A module, measured; the model itself if that is wrong. And whether it would
        be the same without kernels.

        Raises PackedTooMuchError if packed weights take more than they may,
        NoFasterError if it is no faster than the rival.
        """
        try:
            given = self.target, program, self.inputs, choices
            runner = (
                InBatches(*given, whole=self.whole) if self.whole else Runner(*given)
            )
        except PackedTooMuchError:
            self.kernels.remove(choices.kernels)
            raise
        except NoTapeError as refusal:
            return self._refused(refusal), False
        except Exception as failure:  # the model itself runs
            metas = filter(lambda each: isinstance(each, Meta), program.metas.values())
            if isinstance(failure, InputError) and not all(x.bytes for x in metas):
                return self.unchanged("it has tensors without elements"), False
            return self.unchanged(f"{DEFECT}{first_line(failure)}"), False
        schedule = runner.schedule
        both = schedule.packed + schedule.flat.folded + schedule.plan.peak
        if choices.most is not None and schedule.packed and both > choices.most:
            raise PackedTooMuchError
        found = self._checked(runner, program, again)
        return found, not schedule.packed and not schedule.relieved

    def beats(self, runner: Runner, rival: Compiled) -> bool:
        """Whether a run is clearly faster than one of `rival`."""
        assert rival.runner is not None
        runs = [partial(each, self.inputs) for each in (rival.runner, runner)]
        before, after = seconds(runs, enough=0.0, ready=self._long)
        return after < NO_GAIN * before

    def _refused(self, refusal: NoTapeError) -> Compiled:
        self.refused = True
        return self.unchanged(f"it has {refusal}, {UNHELD}")

    def _checked(
        self, runner: Runner, program: Program, again: tuple[str, ...]
    ) -> Compiled:
        if difference := runner.difference(self.inputs):
            return self.unchanged(f"it can be compiled only {difference}")
        try:
            if self.rival is not None and not self.beats(runner, self.rival):
                raise NoFasterError
            self.progress("checking the results")
            error = self._error(runner)
        except NoFasterError:
            raise
        except NoTapeError as refusal:
            return self._refused(refusal)
        except Exception as failure:  # as above, of torch's kernels
            return self.unchanged(f"{DEFECT}{first_line(failure)}")
        if error > (most := self.tolerance(self.expected()[0])):
            return self.unchanged(
                f"results differ by {error:.1e}, more than {most:.0e}"
            )
        return self._measured(runner, program, again, error)

    def _error(self, runner: Runner) -> float:
        """The largest error of the runner's results, on these inputs and on noise. The
        first of them say how results are to lie."""
        models = self.expected()[:1]

        def run(given: Inputs) -> object:
            if difference := runner.difference(given):  # kernels would read elsewhere
                raise MemplanError(f"it is compiled {difference}")
            found = runner(given)
            while models:
                runner.learn(models.pop(), found)
            return found

        return self.error_of(run)

    def tolerance(self, results: object) -> float:
        """The accepted relative error of results."""
        if self.fusing is None:
            return tolerance_of(results)
        return accepted(results, self.fusing)

    def error_of(self, run: Callable[[Inputs], object]) -> float:
        """The largest error of what `run` returns, on these inputs and on noise."""
        model, inputs = self.model, self.inputs

        def as_model(*args: object, **kwargs: object) -> object:
            # None is held while the next runs, as otherwise copying would begin.
            return changed(run(Inputs(args, kwargs)), torch.clone)

        expected = self.expected()
        found = results_of(inputs, model, as_model, len(expected))
        pairs = zip(expected, found, strict=True)
        plain = max(relative_error(*pair) for pair in pairs)
        if plain <= self.tolerance(expected):
            return plain
        # What is large may be rounding: of a difference of large values, say.
        again = partial(results_of, inputs, model, model)
        least = least_scales(again, expected, tolerance_of(expected))
        return scaled_error(expected, found, least)

    def _measured(
        self, runner: Runner, program: Program, again: tuple[str, ...], error: float
    ) -> Compiled:
        """The module with its figures."""
        schedule, inputs = runner.schedule, self.inputs
        ops = schedule.flat.program.ops
        self.progress("measuring")
        beside, asked = footprint(lambda: runner(inputs))
        targets = (op.target for op in ops if isinstance(op, Op))
        kernels = [each for each in targets if isinstance(each, Kernel)]
        plan = CompilePlan(
            status="compiled",
            reason="",
            torch=torch.__version__,
            bytes_before=self.before,
            bytes_after=schedule.plan.peak + beside,
            arena=schedule.plan.peak,
            beside=beside,
            lent=schedule.lent,
            peak_operator=getattr(schedule.busiest, "key", ""),
            peak_line=schedule.busiest.line if schedule.busiest else "",
            requests_before=self.requests,
            requests_after=asked,
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
        module = Compiled(self.model, plan, runner)
        if not self._forced:
            self.timed(module)
        return module

    def timed(self, module: Compiled) -> None:
        """Add the times of model and module to its plan, which then is kept."""
        model, inputs = self.model, self.inputs
        runs = [lambda: inputs.run(model), lambda: inputs.run(module)]
        with torch.no_grad():
            before, after = seconds(runs, ready=self._long)
            if after > self.slowest * before:  # another program may have disturbed it
                more = seconds(runs, enough=PATIENT)
                before, after = map(min, zip((before, after), more, strict=True))
        module.memplan = replace(
            module.memplan, seconds_before=before, seconds_after=after
        )
        self.plans.append(module.memplan)

    def judged(self, module: Compiled) -> Compiled:
        """The module; the model itself if it gains nothing."""
        plan = module.memplan
        reason = plan.status == "compiled" and self._objection(plan)
        target = vars(self).get("target")  # none of a model that runs in parts
        if reason == UNFUSED and module.runner is not None and target is not None:
            joined = module.runner.schedule.joined
            why = why_unfused(seen(target, joined).layers)
            reason = f"none of its layers can be fused ({why})" if why else UNFUSED
        return self.unchanged(reason) if reason else module

    @property
    def _most(self) -> float:
        """Bytes that a module that is faster may need."""
        if self.fusing is None:
            return max(MAX_GROWTH * self.before, self.before + PAGE)
        if self._forced:
            return math.inf
        if isinstance(self.model, StandIn) and (own := self.model.budget()) is not None:
            return max(own, self.before)
        return self.fusing.memory * self.before + SLACK

    def _objection(self, plan: CompilePlan) -> str:
        """Why a plan gains nothing; "" if it gains memory or time."""
        if self._forced:
            return "" if plan.kernels or plan.packed else UNFUSED
        if plan.slowdown > self.slowest:
            return f"it {too_slow(plan, self.slowest)}"
        if plan.bytes_after > self._most:
            return (
                f"it would need {format_bytes(plan.bytes_after)} of memory, the model "
                f"needs {format_bytes(self.before)}"
            )
        if plan.bytes_after >= self.before and plan.slowdown >= 1:
            return "it would save neither memory nor time"
        return ""


def accepted(results: object, options: FuseOptions) -> float:
    """The accepted relative error of `fuse`: the options', or a few roundings in 16
    bits."""
    rounding = tolerance_of(results)
    return max(options.tolerance, rounding if rounding > COARSER else 0.0)


def too_slow(plan: CompilePlan, most: float) -> str:
    return f"would take {plan.slowdown:.2f} times as long; the limit is {most:.2f}"
