"""Chunk a model so that its activations fit a budget: the public verb."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from torch import nn

from memplan.chunking.canonical import searchable
from memplan.chunking.module import Chunked
from memplan.chunking.options import (
    Budget,
    BudgetError,
    ChunkOptions,
    parse_budget,
    too_large,
    too_slow,
)
from memplan.chunking.plan import ChunkPlan, fingerprint
from memplan.chunking.planfile import read_chunk_plan
from memplan.chunking.recompute import Base, again, bases
from memplan.chunking.region import NotLoopableError, chunked
from memplan.chunking.search import Search, Trial
from memplan.chunking.shapes import OtherSizes
from memplan.chunking.timing import calibrated
from memplan.chunking.workbench import Workbench
from memplan.errors import InputError, UsageError
from memplan.graph.call import Inputs, Signature
from memplan.graph.capture import Exports, Target, export_parts
from memplan.graph.liveness import profile
from memplan.graph.program import Program
from memplan.graph.standin import StandIn
from memplan.units import format_bytes

TIMED = 3  # plans that are timed, not only estimated
STEPS_DOWN = 24  # at most, of the search for the least budget
NEAR = 0.95  # that search ends when the highest failed budget is this near the best
AGAIN = "search again with --budget"
ROUNDS = 4  # tries with a tighter goal, if the allocator needs more than estimated


def chunk(
    model: nn.Module,
    inputs: object,
    budget: str | int | None = None,
    plan: str | os.PathLike[str] | ChunkPlan | None = None,
    options: ChunkOptions | None = None,
) -> Chunked:
    """Return `model` as a module whose inference keeps to a memory budget.

    inputs: a tuple of arguments of its forward, a mapping of keyword arguments, or one
    tensor; the result runs on inputs of the same shapes. budget: for activations,
    without parameters and inputs: bytes, as in "512MiB", a share of today's peak, as in
    "20%", or "min". plan: a ChunkPlan or its file, made for the same model and shapes;
    it replaces the search, and is checked, measured and timed like a new one.

    The module returns the same bits as `model`, or the same within rounding. This is
    checked on these inputs and on random ones; memory and time are measured. Its
    attribute `memplan` is the ChunkPlan.

    A model of `memplan.fuse` stays one: the chunked model is fused between the loops.

    Ctrl-C ends the search; the best module so far is returned if it fits the budget.

    Raises BudgetError (a NoPlanError) if no plan fits the budget within
    options.max_slowdown; UsageError for contradictory arguments and for a model in
    training mode; InputError for a model that fails and a plan of another model.
    """
    if isinstance(model, StandIn):  # what another verb made goes around the chunks
        if isinstance(model, Chunked):
            return chunk(model.model, inputs, budget, plan, options)
        model.around(model.model)  # raises before the search where it cannot
        return cast(
            Chunked, model.around(chunk(model.model, inputs, budget, plan, options))
        )
    options = options or ChunkOptions()
    if (budget is None) == (plan is None):
        raise UsageError("give either a budget or a plan, as in budget='20%'")
    chunking = _Chunking(model, inputs, options)
    try:
        return chunking.ready(chunking.run(budget, plan))
    except BudgetError as error:
        chunking.ready(error.closest)
        raise


@dataclass
class Tried:
    """What a search begins with, the largest room in which it found nothing, and what
    came nearest then."""

    base: Base
    failed: int = 0
    best: Trial | None = None


class Tries:
    """What searches of a program begin with; each is made when it is first needed."""

    def __init__(self, program: Program) -> None:
        self.known: list[Tried] = []
        self._more = bases(program)

    def __iter__(self) -> Iterator[Tried]:
        yield from tuple(self.known)
        for base in self._more:
            self.known.append(Tried(base))
            yield self.known[-1]


class _Chunking:
    def __init__(self, model: nn.Module, inputs: object, options: ChunkOptions) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"the model must be an nn.Module, not {type(model).__name__}"
            )
        if model.training:
            raise UsageError("the model is in training mode; call model.eval() first")
        self._model, self._options = model, options
        given = Inputs.of(inputs)
        self._inputs = Signature().arranged(model, given.args, given.kwargs)
        self._tries: dict[str, Tries] = {}  # of each part

    def ready(self, module: Chunked) -> Chunked:
        """The module, with the defects that the search met, and able to prepare for
        inputs of other sizes."""
        errors = dict(self._bench.internal_errors)
        module.memplan = replace(module.memplan, internal_errors=errors)
        programs = {each.path: each.program for each in self._exports.targets}
        others = OtherSizes(programs, self._options.progress)
        module.accept(others, self._options.other_sizes)
        return module

    def run(
        self,
        budget: str | int | None,
        plan: str | os.PathLike[str] | ChunkPlan | None,
    ) -> Chunked:
        """Search, or reuse `plan`, and return the module."""
        wanted = None if budget is None else parse_budget(budget)
        progress = self._options.progress
        progress("running the model")
        self._bench = Workbench(self._model, self._inputs, progress)
        self._before = self._bench.before
        progress("exporting")
        self._exports = export_parts(self._model, self._inputs, searchable)
        self._bench.exports = self._exports
        if plan is not None:
            return self._reuse(plan)
        assert wanted is not None
        limit = wanted.bytes_of(self._before)
        if self._before <= limit:
            return self._bench.unchanged(limit, "it fits the budget unchanged")
        if not self._exports.targets:
            nothing = self._bench.unchanged(limit, "no part of it can be exported")
            if wanted.least:
                return nothing
            raise too_large(nothing, limit, self._before, [], {})
        return self._searched(wanted, limit)

    def _searched(self, wanted: Budget, limit: int) -> Chunked:
        self._machine = calibrated(self._bench.device)
        self._whole = self._bench.seconds_once()
        limit_s = self._options.time_limit
        self._stop = math.inf if limit_s is None else time.monotonic() + limit_s
        self._interrupted = False
        if wanted.least:
            return self._least()
        found = self._within(limit)
        if not found:
            raise self._refusal(limit)
        return self._accepted(self._bench.fastest(found, self._enough), limit)

    def _least(self) -> Chunked:
        """The module with the lowest peak that is fast enough, by bisection between
        the best budget found and the highest that failed."""
        best: Chunked | None = None
        slow: Chunked | None = None
        low, high, limit = 0, self._before, self._before // 2
        for _ in range(STEPS_DOWN):
            try:
                found = self._within(limit)
            except KeyboardInterrupt:
                if best is None:
                    raise
                self._interrupted = True
                break
            found = found or ([] if self._nearest is None else [self._nearest])
            lower = [each for each in found if self._peak(each) < high]
            module = self._bench.fastest(lower, self._enough) if lower else None
            if module is None or self._peak(module) > limit or self._too_slow(module):
                low = limit
            if module is not None and self._too_slow(module):
                slow = module
            elif module is not None:
                best, high = module, self._peak(module)
            if self._interrupted or low > NEAR * high or time.monotonic() > self._stop:
                break
            limit = (low + high) // 2 if low else int(0.85 * high)
        if best is None:
            if slow is None:
                return self._bench.unchanged(self._before, "no plan needs less")
            return self._accepted(slow, self._peak(slow))
        best.memplan = replace(best.memplan, budget_bytes=high)
        return self._accepted(best, high)

    def _peak(self, module: Chunked) -> int:
        return int(module.memplan.measured_bytes_after)

    def _within(self, limit: int) -> list[Chunked]:
        """Correct modules whose measured peak is at most `limit` bytes, best first.

        Raises KeyboardInterrupt if Ctrl-C ended the search before there was one.
        """
        goal = limit
        self._nearest: Chunked | None = None
        for _ in range(ROUNDS):
            good: list[Chunked] = []
            short = []  # estimated and measured peaks of the modules that do not fit
            for trials in self._trials(goal):
                try:
                    module = self._bench.build(trials, limit)
                except KeyboardInterrupt:
                    self._interrupted = True
                    break
                if module is None:
                    continue
                peak = self._peak(module)
                if self._nearest is None or peak < self._peak(self._nearest):
                    self._nearest = module
                if peak <= limit:
                    good.append(module)
                else:
                    short.append((self._estimated(trials), peak))
                if len(good) == TIMED:
                    break
            if self._interrupted and not good:
                raise KeyboardInterrupt
            if good or not short:
                return good
            estimated, measured = min(short, key=lambda pair: pair[1])
            goal = int(min(goal * 0.97, limit * estimated / measured))
        return []

    def _estimated(self, trials: dict[str, Trial]) -> int:
        """The estimated peak of all parts together."""
        targets = self._exports.targets
        return max(each.outside + trials[each.path].peak for each in targets)

    def _trials(self, goal: int) -> list[dict[str, Trial]]:
        """Ways to keep to `goal` bytes: each has a trial for every exported part."""
        ways: list[dict[str, Trial]] = []
        for target in self._exports.targets:
            chosen = self._chosen(target, max(1, goal - target.outside))
            if not ways:
                ways = [{} for _ in chosen]
            for i, way in enumerate(ways):
                way[target.path] = chosen[min(i, len(chosen) - 1)]
        return ways

    def _chosen(self, target: Target, room: int) -> list[Trial]:
        """Trials of a part within `room` bytes, or the one that comes nearest."""
        if target.path not in self._tries:
            self._tries[target.path] = Tries(target.program)
        tries = self._tries[target.path]
        for tried in tries:
            if room <= tried.failed:
                continue
            search = self._search(tried.base)
            if found := self._found(search, room):
                return found
            tried.failed, tried.best = room, search.best
        nearest = [each.best for each in tries.known if each.best]
        return [min(nearest, key=lambda trial: trial.peak)]

    def _found(self, search: Search, room: int) -> list[Trial]:
        """Trials within `room` bytes; after Ctrl-C, those found so far."""
        if search.start.peak <= room:
            return [search.start]
        if self._interrupted:
            return []
        try:
            return search.run(room)
        except KeyboardInterrupt:
            self._interrupted = True
            done = [trial for trial in search.done if trial.peak <= room]
            return sorted(done, key=lambda trial: trial.seconds)

    def _search(self, base: Base) -> Search:
        effort = self._options.effort
        left = max(0.0, self._stop - time.monotonic())
        seconds = min(effort.seconds, left) / len(self._exports.targets)
        search = Search(
            base,
            self._exports.inference,
            self._machine,
            replace(effort, seconds=seconds),
            self._options.progress,
            self._whole,
        )
        search.errors = self._bench.internal_errors
        return search

    @property
    def _enough(self) -> float:
        slow = self._options.max_slowdown
        return math.inf if slow is None else slow

    def _too_slow(self, module: Chunked) -> bool:
        return bool(module.memplan.slowdown > self._enough)

    def _accepted(self, module: Chunked, limit: int) -> Chunked:
        """The module found. Raises BudgetError if it is too slow."""
        if self._too_slow(module):
            fits = f"fits {format_bytes(limit)}"
            raise too_slow(module, self._enough, fits, "raise the budget (--budget)")
        if self._interrupted:
            reason = "the search was interrupted; this is the best plan so far"
            module.memplan = replace(module.memplan, reason=reason)
        return module

    def _refusal(self, limit: int) -> BudgetError:
        nearest = self._nearest or self._bench.unchanged(limit, "no plan found")
        bench = self._bench
        errors = bench.internal_errors
        return too_large(nearest, limit, self._before, bench.rejections, errors)

    def _reuse(self, plan: str | os.PathLike[str] | ChunkPlan) -> Chunked:
        """The module of a stored plan, checked and measured like a new one."""
        old = plan if isinstance(plan, ChunkPlan) else read_chunk_plan(plan)
        name = "the plan" if isinstance(plan, ChunkPlan) else os.fspath(plan)
        trials = trials_of(old, name, self._exports)
        module = self._bench.build(trials, old.budget_bytes)
        if module is None:
            raise InputError(
                f"{name} does not fit this model: {self._bench.rejections[-1]}; {AGAIN}"
            )
        after = module.memplan.measured_bytes_after
        if old.status == "chunked" and after > old.budget_bytes:
            raise BudgetError(
                f"{name} needs {format_bytes(after)} here, above its budget of "
                f"{format_bytes(old.budget_bytes)}; {AGAIN}",
                after,
                module.memplan.peak_after.get("line", ""),
                module,
            )
        if not module.chunks:
            return module
        module = self._bench.fastest([module], self._enough)
        if self._too_slow(module):
            fits = f"{name} fits its budget"
            raise too_slow(module, self._enough, fits, AGAIN)
        return module


def trials_of(plan: ChunkPlan, name: str, exports: Exports) -> dict[str, Trial]:
    """The trial of each part of `plan`, which messages call `name`.

    Raises InputError if the plan is of another model or other shapes.
    """
    targets = {target.path: target for target in exports.targets}
    trials = {}
    for part in plan.parts:
        target = targets.get(part.path)
        if target is None or fingerprint(target.program) != part.fingerprint:
            raise InputError(
                f"{name} was made for another model, for other shapes, or with "
                f"another torch ({plan.torch}); chunk this model with --budget"
            )
        try:
            program = again(target.program, part.again)
            for region in part.regions:
                program = chunked(program, region, exports.inference)
        except NotLoopableError as error:
            raise InputError(
                f"{name} does not fit this model: {error}; {AGAIN}"
            ) from error
        trials[part.path] = Trial(
            part.regions, program, profile(program), again=part.again
        )
    return trials
