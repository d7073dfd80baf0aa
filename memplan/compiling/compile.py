"""Run a model's inference in one arena: the public verb."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from memplan.chunking.canonical import searchable
from memplan.chunking.descent import Descent
from memplan.chunking.options import (
    Budget,
    ChunkOptions,
    parse_budget,
)
from memplan.chunking.region import NotLoopableError
from memplan.chunking.shapes import resized, same_operators
from memplan.chunking.trial import Trial
from memplan.compiling.attention import with_attention
from memplan.compiling.batches import SIZES, images, some, with_images
from memplan.compiling.bench import (
    NO_GAIN,
    Bench,
    CompileOptions,
    NoFasterError,
    too_slow,
)
from memplan.compiling.costs import in_arena, leans
from memplan.compiling.functions import with_functions
from memplan.compiling.module import Compiled
from memplan.compiling.outcomes import Seen, seen
from memplan.compiling.parts import in_parts
from memplan.compiling.report import CompilePlan, Front
from memplan.compiling.schedule import Choices, flattened
from memplan.errors import InputError, NoPlanError
from memplan.fusing.options import FuseOptions
from memplan.graph.call import Inputs
from memplan.graph.capture import Exports, capture, export_parts
from memplan.graph.clock import timed
from memplan.graph.export import silence
from memplan.graph.infer import Inference, ShapeError
from memplan.graph.liveness import results_bytes
from memplan.graph.program import Loop, Program
from memplan.graph.standin import StandIn
from memplan.graph.written import check_parameters
from memplan.units import budget_of, format_bytes

MAX_SLOWDOWN, WITH_BUDGET = 1.02, 1.1
BUILT = 2  # modules with loops for a goal
SLOW = 2  # budgets of the front whose plans are too slow, before it ends
STEP = 0.8  # each budget of the front, of the least memory found before
HALVINGS = 3  # of the steps of loops, for inputs of other sizes
_LARGER = "on inputs of these sizes it exceeds the budget; compile it with them"
UNSEEN = "its weights were created in inference mode, so memplan cannot see changes"


def compile(  # noqa: A001 - the verb's name in memplan
    model: nn.Module,
    inputs: object,
    budget: str | int | None = None,
    options: CompileOptions | None = None,
) -> Compiled:
    """Return `model` as a module whose inference runs in one arena.

    inputs: a tuple of arguments of its forward, a mapping of keyword arguments, or one
    tensor, on the CPU. budget: for activations, the arena and what torch allocates
    beside it: bytes, as in "24MiB", a share of today's peak, as in "25%", or "min";
    without it nothing runs in chunks.

    The model is exported once; if that fails, those of its submodules that can be
    exported run so, and the model itself around them. The order of the operators is the
    best that a search finds, results are written over operands that nobody needs, and
    all storages lie in an arena at offsets that verify. The results are compared with
    the model's on these inputs and on noise; memory and time are measured. If the
    results differ, or nothing is gained, `model` runs unchanged. The attribute
    `memplan` is the CompilePlan.

    At the first call with inputs of another form (sizes, types, memory layout, other
    arguments) the module compiles for these, too. Within a budget it keeps its loops,
    without a search; where they do not meet the budget, the model runs.

    Raises NoPlanError if the budget is not kept; UsageError for contradictory
    arguments, a model in training mode or on another device; InputError for a model
    that fails.
    """
    work = Compiling(model, inputs, options)
    module = work.run(budget)
    module.settle()
    module.resize = partial(_resized, model, work.recipe(module, budget))
    return module


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
    return Compiling(model, inputs, options).front()


@dataclass(frozen=True)
class Recipe:
    """How a module was compiled.

    program: without loops. loops: those that it runs in; None if it has none.
    """

    budget: Budget | None
    options: CompileOptions
    program: Program | None
    loops: Trial | None


def _resized(model: nn.Module, recipe: Recipe, inputs: Inputs) -> Compiled:
    """The module for inputs of other sizes."""
    return Compiling(model, inputs, recipe.options).again(recipe)


def _fused(
    model: nn.Module, options: CompileOptions, fusing: FuseOptions, inputs: Inputs
) -> Compiled:
    """The module as `fuse` makes it, for inputs of any form."""
    made = Compiling(model, inputs, options, fusing).fused()
    made.resize = partial(_fused, model, options, fusing)
    return made


class Compiling:
    """Compiles a model for inputs: without loops, and within a budget."""

    def __init__(
        self,
        model: nn.Module,
        inputs: object,
        options: CompileOptions | None,
        fusing: FuseOptions | None = None,
    ) -> None:
        """fusing: see `Bench`."""
        self._bench = Bench(model, inputs, options, fusing)
        self._effects, self._quick = False, True
        limit = self._bench.options.time_limit
        self._stop = math.inf if limit is None else time.monotonic() + limit

    def run(self, budget: str | int | None) -> Compiled:
        """The module; model and inputs are as they were."""
        bench = self._bench
        check_parameters(bench.model, bench.inputs)
        with bench.unwritten():
            return bench.with_errors(self._found(budget))

    def fused(self, effects: bool = False) -> Compiled:
        """The module as `fuse` makes it; the model where that gains nothing.

        effects: whether the model has any, so that only parts of it can be exported.
        """
        bench = self._bench
        self._effects = effects
        with bench.unwritten():
            found = self._without_loops(None)[1]
            if found.runner is None and bench.refused and self._quick:
                self._quick = False
                found = self._without_loops(None)[1]
            return bench.with_errors(self._in_batches(found, bench.fusing))

    def seen(self) -> Seen | None:
        """The model's layers; None if it was not exported whole."""
        target = getattr(self._bench, "target", None)
        return None if target is None else seen(target)

    def recipe(self, module: Compiled, budget: str | int | None) -> Recipe:
        """How `module` was compiled within a budget."""
        bench = self._bench
        wanted = None if budget is None else parse_budget(budget)
        options = replace(bench.options, progress=CompileOptions.progress)
        program = module.runner.target.program if module.runner else None
        return Recipe(wanted, options, program, bench.loops.get(module))

    def again(self, recipe: Recipe) -> Compiled:
        """The module with the loops of a recipe; the model where that is not possible,
        or exceeds the budget."""
        bench = self._bench
        with bench.unwritten():
            return bench.with_errors(self._again(recipe))

    def _again(self, recipe: Recipe) -> Compiled:
        bench = self._bench
        exports, found, limit = self._without_loops(recipe.budget)
        if exports.left_alone:
            return found
        least = recipe.budget is not None and recipe.budget.least
        fits = bench.peak(found) <= limit
        if recipe.loops is not None and (least or not fits):
            try:
                most = bench.peak(found) if least else limit
                made = self._relooped(exports, recipe, most)
            except NotLoopableError as problem:
                return bench.unchanged(str(problem))
            if made is not None:
                return made
        return found if fits else bench.unchanged(_LARGER)

    def _without_loops(self, wanted: Budget | None) -> tuple[Exports, Compiled, float]:
        """What was exported, the module without loops, and the most bytes allowed."""
        bench = self._bench
        if bench.fusing is not None:
            bench.slowest = NO_GAIN if bench.fusing.measure else math.inf
        else:
            bench.slowest = bench.options.max_slowdown or _usual(wanted)
        exports = self._exported()
        limit = math.inf
        if wanted is not None and not wanted.least:
            limit = wanted.bytes_of(bench.before)
        if self._has_whole(exports):
            found = self._whole(exports, limit)
        else:
            found = self._parts(exports, wanted, limit)
        return exports, found, limit

    def _whole(self, exports: Exports, limit: float) -> Compiled:
        """The module in one part without loops: with attention and functions that are
        written out as torch's operators, or, if that does not do, as the model has
        them."""
        bench, target = self._bench, self._bench.target
        program = target.program
        if not any(isinstance(step, Loop) for step in program.ops):
            program = with_attention(program, exports.inference)
            program = with_functions(program, exports.inference)
        if program is not target.program:
            bench.target = replace(target, program=program)
            found = bench.judged(bench.made(program, limit=limit))
            if found.runner is not None:
                return found
            bench.target = target
        return bench.judged(bench.made(target.program, limit=limit))

    def _parts(self, exports: Exports, wanted: Budget | None, limit: float) -> Compiled:
        """The model with submodules in one arena."""
        options = replace(self._bench.options, reuse_outputs=False)
        fusing = self._bench.fusing

        def making(module: nn.Module, inputs: Inputs, room: int | None) -> Compiled:
            if fusing is not None:
                return _fused(module, options, fusing, inputs)
            least = wanted is not None and wanted.least
            return compile(module, inputs, "min" if least else room, options)

        return in_parts(self._bench, exports, limit, making)

    def _relooped(
        self, exports: Exports, recipe: Recipe, limit: float
    ) -> Compiled | None:
        """The module with a recipe's loops; None if it needs more than `limit`."""
        bench = self._bench
        assert recipe.program is not None
        assert recipe.loops is not None
        pair = recipe.program, bench.target.program
        old, new = (searchable(each, exports.inference) for each in pair)
        if not same_operators(recipe.loops, old, new):
            raise NotLoopableError("it runs other operators on these sizes")
        for halvings in range(HALVINGS):
            trial = resized(recipe.loops, old, new, exports.inference, halvings)
            made = bench.build({"": trial}, int(min(limit, bench.before)))
            if made is not None and bench.peak(made) <= limit:
                return bench.judged(made)
        return None

    def front(self) -> Front:
        """The plans that nothing beats; model and inputs are as they were."""
        bench = self._bench
        check_parameters(bench.model, bench.inputs)
        with bench.unwritten():
            slowest = bench.options.max_slowdown
            bench.slowest = math.inf if slowest is None else slowest
            exports = self._exported()
            if not self._has_whole(exports):
                raise NoPlanError(f"no plan was found: {exports.left_alone['']}")
            found = self._whole(exports, math.inf)
            try:
                interrupted = self._descend(exports, bench.peak(found))
            except KeyboardInterrupt:
                interrupted = True
                if not bench.plans:
                    raise
        if best := best_of(bench.plans, bench.slowest):
            return Front(best, interrupted, dict(bench.internal_errors))
        why = found.memplan.reason or "none saves memory or time"
        if best := best_of(bench.plans, math.inf):
            why = f"the fastest would take {best[0].slowdown:.2f} times as long; the "
            why += f"limit is {bench.slowest:.2f}"
        raise NoPlanError(f"no plan was found: {why}{self._late}", bench.before)

    def _descend(self, exports: Exports, lowest: int) -> bool:
        """Build plans for lower and lower budgets, until there is none; whether Ctrl-C
        ended it."""
        bench = self._bench
        descent = self._descent(exports, packed=self._packs_within(bench.before))
        slow = 0
        while lowest and slow < SLOW and not descent.interrupted:
            limit = int(STEP * lowest)
            bench.progress(f"within {format_bytes(limit)}")
            found = descent.within(limit)
            if not found:
                break
            slow += min(map(bench.slowdown, found)) > bench.slowest
            lowest = min(map(bench.peak, found))
        return descent.interrupted

    def _exported(self) -> Exports:
        bench = self._bench
        bench.progress("exporting")
        tensors = (*bench.model.parameters(), *bench.model.buffers())
        if any(each.is_inference() for each in tensors):
            exports = Exports([], {"": UNSEEN})
        elif bench.fusing is None or self._effects:
            exports = export_parts(bench.model, bench.inputs)
        else:
            exports = self._captured()
        bench.note_footprint()
        return exports

    def _captured(self) -> Exports:
        """The model in one part, in short time, if that can be; it has no effects."""
        model, inputs, inference = self._bench.model, self._bench.inputs, Inference()
        if isinstance(model, StandIn):
            return Exports([model.target(inputs)], {}, inference)
        try:
            target = capture(model, inputs, inference, quick=self._quick)
        except InputError:
            return export_parts(model, inputs)
        return Exports([target], {}, inference)

    def _in_batches(self, found: Compiled, options: FuseOptions | None) -> Compiled:
        """The fastest of modules that run a few images at a time; `found` runs all."""
        bench, best = self._bench, found
        if options is None or found.memplan.parts or isinstance(bench.model, StandIn):
            return found
        count, wanted = images(bench.inputs), options.micro_batch
        sizes: Sequence[int] = SIZES if options.measure else ()
        if wanted is not None:
            sizes = [max(n for n in range(1, wanted + 1) if not count % n)]
        for size in (each for each in sizes if each < count and not count % each):
            try:
                made = self._batch(size, best if wanted is None else None)
            except NoFasterError:
                break
            if made.runner is None:
                if wanted is not None and found.runner is not None:  # it is told
                    why = made.memplan.reason
                    found.memplan = replace(found.memplan, reason=why)
                break
            best = made
        return best

    def _batch(self, size: int, rival: Compiled | None) -> Compiled:
        """The module that runs so many images at a time.

        Raises NoFasterError if it is no faster than a rival that runs.
        """
        bench, inference = self._bench, self._bench.target.inference
        inputs = some(bench.inputs, 0, size)
        try:
            with silence():
                target = with_images(bench.target, inputs, inference)
        except (InputError, ShapeError) as problem:
            return bench.unchanged(str(problem))
        bench.whole, bench.target = bench.target, target
        bench.rival = rival if rival is not None and rival.runner is not None else None
        try:
            return self._whole(Exports([target], {}, inference), math.inf)
        finally:
            bench.target, bench.whole, bench.rival = bench.whole, None, None

    def _has_whole(self, exports: Exports) -> bool:
        """Whether the model was exported in one part, the target from now on."""
        whole = [each for each in exports.targets if not each.path]
        if whole:
            self._bench.target = whole[0]
        return bool(whole)

    def _found(self, budget: str | int | None) -> Compiled:
        wanted = None if budget is None else parse_budget(budget)
        exports, found, limit = self._without_loops(wanted)
        least = wanted is not None and wanted.least
        if found.memplan.bytes_after <= limit and not least:
            return found
        if exports.left_alone and least:
            return found
        if exports.left_alone:
            raise _too_large(found, limit, self._bench.internal_errors)
        if (floor := results_bytes(self._bench.target.program)) > limit:
            raise NoPlanError(
                f"the model's results alone take {budget_of(floor)}, above the budget "
                f"of {format_bytes(int(limit))}",
                floor,
            )
        return self._in_chunks(exports, found, limit)

    def _in_chunks(self, exports: Exports, found: Compiled, limit: float) -> Compiled:
        """The module with loops, within `limit` or with as little memory as possible.

        found: the module without loops.
        """
        bench = self._bench
        room = bench.before / 2 if limit == math.inf else limit
        packed = self._packs_within(bench.before - room)
        if limit == math.inf:
            module, fast = self._descent(exports, packed).least()
            if module is not None and fast and bench.peak(module) < bench.peak(found):
                return module
            return found
        slow, nearest = list[Compiled](), [found]
        twice = not packed and leans(bench.target.program)
        for lean in (True, False) if twice else (True,):
            descent = self._descent(exports, packed, lean)
            module, fast = descent.fast_within(int(limit))
            if module is not None and fast:
                return module
            slow += [module] if module else []
            nearest += [descent.nearest] if descent.nearest else []
            if descent.interrupted or time.monotonic() > self._stop:
                break
        if slow:
            module = min(slow, key=bench.slowdown)
            why = too_slow(module.memplan, bench.slowest)
            raise NoPlanError(
                f"{format_bytes(bench.peak(module))} in one arena fit the budget of "
                f"{format_bytes(limit)}, but it {why}; "
                "raise --max-slowdown (max_slowdown in CompileOptions) or the budget"
                f"{self._late}",
                bench.peak(module),
            )
        error = _too_large(min(nearest, key=bench.peak), limit, bench.internal_errors)
        raise NoPlanError(f"{error}{self._late}", error.peak)

    @property
    def _late(self) -> str:
        """That the search was cut off, if it was; part of an error."""
        limit = self._bench.options.time_limit
        late = limit is not None and time.monotonic() > self._stop
        return f"; the search ended at its time limit of {limit:g} s" if late else ""

    def _packs_within(self, most: float) -> bool:
        """Whether weights of convolutions are packed, by oneDNN, in so many bytes."""
        bench = self._bench
        if bench.options.pack is False or bench.options.portable:
            return False
        program, inputs = bench.target.program, bench.inputs.tensors()
        places = program.constants.items()
        constants = {x: bench.target.weights[at].detach() for x, at in places}
        with torch.inference_mode(False), torch.no_grad():
            inference = Inference(bench.target.inference)
            choices = Choices(("onednn",))
            found = flattened(program, constants, inputs, choices, inference)
        return 0 < found.packed <= most

    def _descent(
        self, exports: Exports, packed: bool, lean: bool = True
    ) -> Descent[Compiled]:
        """The search for loops; packed: whether convolutions' weights are; lean: see
        `in_arena`."""
        bench = self._bench
        inference, target = exports.inference, bench.target
        changed = replace(target, program=searchable(target.program, inference))
        slowest = WITH_BUDGET if bench.slowest == math.inf else bench.slowest
        left = max(0.0, self._stop - time.monotonic())
        options = ChunkOptions(
            max_slowdown=slowest,
            time_limit=None if left == math.inf else left,
            progress=bench.progress,
        )
        with torch.no_grad():
            whole = min(timed(lambda: bench.inputs.run(bench.model))[1] for _ in "12")
        return Descent(
            replace(exports, targets=[changed]),
            bench,
            in_arena(packed, lean),
            whole,
            options,
            BUILT,
        )


def _usual(budget: Budget | None) -> float:
    """The largest accepted ratio of times, unless an option says another."""
    return MAX_SLOWDOWN if budget is None else WITH_BUDGET


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


def _too_large(nearest: Compiled, limit: float, errors: Counter[str]) -> NoPlanError:
    """The error for a budget; nearest: the module that needs least."""
    plan, reasons = nearest.memplan, []
    found = "the lowest found in one arena is"
    if plan.parts:
        found = "with parts of the model in one arena, it takes"
    elif nearest.runner is None:
        found = "no plan was accepted that needs less than the model itself,"
        reasons.append(f"without loops, {plan.reason}")
    elif plan.peak_operator:
        at = f" at {plan.peak_line}" if plan.peak_line else ""
        reasons.append(f"{plan.peak_operator}{at} needs most")
    if errors:
        most = errors.most_common(1)[0][0]
        reasons.append(f"{errors.total()} plans were dropped for errors, as in {most}")
    why = f": {'; '.join(reasons)}" if reasons else ""
    return NoPlanError(
        f"{found} {budget_of(plan.bytes_after)}, above the budget of "
        f"{format_bytes(int(limit))}{why}",
        plan.bytes_after,
    )
