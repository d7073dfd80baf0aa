"""Chunk a model so that its activations fit a budget: the public verb."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from typing import Any

from memplan.chunking.budget import Budget, parse_budget
from memplan.chunking.build import Workbench
from memplan.chunking.oldplan import trials_of
from memplan.chunking.options import BudgetError, ChunkOptions
from memplan.chunking.parts import Target, export_parts
from memplan.chunking.plan import ChunkPlan
from memplan.chunking.planfile import read_chunk_plan
from memplan.chunking.refusals import too_large, too_slow
from memplan.chunking.search import Search, Trial
from memplan.chunking.shapes import OtherSizes
from memplan.chunking.timing import calibrated
from memplan.chunking.trial import Inputs
from memplan.errors import InputError, UsageError
from memplan.graph.export import first_line
from memplan.units import format_bytes

TIMED = 3  # plans that are timed for real
STEPS_DOWN = 24  # of a search for the least
NEAR = 0.95  # what was not found, over the lowest found, where that search ends
ROUNDS = 4  # the budget is tightened where the allocator needs more than estimated


def chunk(
    model: Any,
    inputs: Any,
    budget: str | int | None = None,
    plan: str | os.PathLike[str] | ChunkPlan | None = None,
    options: ChunkOptions | None = None,
) -> Any:
    """`model` as a module whose inference keeps to a memory budget.

    inputs: a tuple of the arguments of its forward, a mapping of keyword arguments, or
    one tensor; the result runs on inputs of their shapes. budget: for activations,
    beyond parameters and inputs: bytes, as in "512MiB", a share of what they take now,
    as in "20%", or "min". plan: a ChunkPlan or its file, made of the same model and
    shapes, instead of a search; it is checked, measured and timed as if found now.

    The module returned gives what `model` gives: the same bits, or within rounding of
    them; that was checked on these inputs and on random ones, its memory was measured
    and its time compared. It has the ChunkPlan as `memplan`.

    Ctrl-C ends the search with the best found until then, if that keeps to the budget.

    Raises BudgetError (a NoPlanError) where nothing found keeps to the budget, or
    takes longer than options.max_slowdown allows;
    UsageError for arguments that make no sense, a model in training mode among them;
    InputError for models that fail, and for plans of others.
    """
    options = options or ChunkOptions()
    if (budget is None) == (plan is None):
        raise UsageError("give either a budget or a plan, as in budget='20%'")
    chunking = _Chunking(model, inputs, options)
    try:
        return chunking.ready(chunking.run(budget, plan))
    except BudgetError as error:
        chunking.ready(error.closest)
        raise


class _Chunking:
    def __init__(self, model: Any, inputs: Any, options: ChunkOptions) -> None:
        import torch

        if not isinstance(model, torch.nn.Module):
            raise UsageError(
                f"a model is an nn.Module, and this is {type(model).__name__}"
            )
        if model.training:
            raise UsageError("the model is in training mode; call model.eval() first")
        self._model, self._options = model, options
        self._inputs = Inputs.of(inputs)

    def ready(self, module: Any) -> Any:
        """The module, able to prepare for inputs of other sizes."""
        programs = {each.path: each.program for each in self._exports.targets}
        others = OtherSizes(programs, self._options.progress)
        module.accept(self._inputs, others, self._options.other_sizes)
        return module

    def run(self, budget: str | int | None, plan: Any) -> Any:
        wanted = None if budget is None else parse_budget(budget)
        progress = self._options.progress
        progress("running the model")
        self._bench = Workbench(self._model, self._inputs, progress)
        self._before = self._bench.before
        progress("exporting")
        self._exports = export_parts(self._model, self._inputs)
        self._bench.exports = self._exports
        if plan is not None:
            return self._reuse(plan)
        assert wanted is not None
        limit = wanted.bytes_of(self._before)
        if self._before <= limit:
            return self._bench.unchanged(limit, "it fits the budget as it is")
        if not self._exports.targets:
            nothing = self._bench.unchanged(limit, "nothing of it can be exported")
            if wanted.least:
                return nothing
            raise too_large(nothing, limit, self._before)
        return self._searched(wanted, limit)

    def _searched(self, wanted: Budget, limit: int) -> Any:
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

    def _least(self) -> Any:
        """The lowest peak that is fast enough: down by steps, and between the lowest
        found and what was not to be found, until these are near each other."""
        best: Any = None
        slow: Any = None
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
        if best is None and slow is None:
            return self._bench.unchanged(self._before, "nothing found needs less")
        if best is None:
            return self._accepted(slow, self._peak(slow))
        best.memplan = replace(best.memplan, budget_bytes=high)
        return self._accepted(best, high)

    def _peak(self, module: Any) -> int:
        return int(module.memplan.measured_bytes_after)

    def _within(self, limit: int) -> list[Any]:
        """Modules whose measured peak is at most `limit` bytes, best by the model
        first, and whose results are right.

        Raises KeyboardInterrupt if Ctrl-C ended the search before there was one.
        """
        goal = limit
        self._nearest = None
        for _ in range(ROUNDS):
            good: list[Any] = []
            short = []  # the search's and the measured peaks of those that do not fit
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
        """The peak that the search sees in trials, all parts together."""
        targets = self._exports.targets
        return max(each.outside + trials[each.path].peak for each in targets)

    def _trials(self, goal: int) -> list[dict[str, Trial]]:
        """Of each way to keep to `goal` bytes, the trial of each exported part."""
        ways: list[dict[str, Trial]] = []
        for target in self._exports.targets:
            search = self._search(target)
            room = max(1, goal - target.outside)
            chosen = self._found(search, room) or [search.best]
            if not ways:
                ways = [{} for _ in chosen]
            for i, way in enumerate(ways):
                way[target.path] = chosen[min(i, len(chosen) - 1)]
        return ways

    def _found(self, search: Search, room: int) -> list[Trial]:
        """The search's trials within `room` bytes; those until then, on Ctrl-C."""
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

    def _search(self, target: Target) -> Search:
        effort = self._options.effort
        left = max(0.0, self._stop - time.monotonic())
        seconds = min(effort.seconds, left) / len(self._exports.targets)
        return Search(
            target.program,
            self._exports.inference,
            self._machine,
            replace(effort, seconds=seconds),
            self._options.progress,
            self._whole,
        )

    @property
    def _enough(self) -> float:
        slow = self._options.max_slowdown
        return math.inf if slow is None else slow

    def _too_slow(self, module: Any) -> bool:
        return bool(module.memplan.slowdown > self._enough)

    def _accepted(self, module: Any, limit: int) -> Any:
        """The module found. Raises BudgetError if it is too slow."""
        if self._too_slow(module):
            fits = f"fits {format_bytes(limit)}"
            raise too_slow(module, self._enough, fits, "give more memory (--budget)")
        if self._interrupted:
            reason = "the search was interrupted, and this is the best found until then"
            module.memplan = replace(module.memplan, reason=reason)
        return module

    def _refusal(self, limit: int) -> BudgetError:
        nearest = self._nearest or self._bench.unchanged(limit, "nothing found")
        return too_large(nearest, limit, self._before)

    def _reuse(self, plan: Any) -> Any:
        """The module of a plan that was found before, checked anew."""
        old = plan if isinstance(plan, ChunkPlan) else read_chunk_plan(plan)
        name = "the plan" if isinstance(plan, ChunkPlan) else os.fspath(plan)
        trials = trials_of(old, name, self._exports)
        try:
            module = self._bench.build(trials, old.budget_bytes)
        except Exception as error:
            raise InputError(
                f"{name} does not run on this model: {first_line(error)}; make it anew"
            ) from error
        if module is None:
            raise InputError(f"{name} gives other results than the model; make it anew")
        after = module.memplan.measured_bytes_after
        if old.status == "chunked" and after > old.budget_bytes:
            raise BudgetError(
                f"{name} needs {format_bytes(after)} here, above its budget of "
                f"{format_bytes(old.budget_bytes)}; make it anew",
                after,
                module.memplan.peak_after.get("line", ""),
                module,
            )
        if not module.chunks:
            return module
        module = self._bench.fastest([module], self._enough)
        if self._too_slow(module):
            but = f"{name} keeps to its budget"
            raise too_slow(module, self._enough, but, "make it anew")
        return module
