"""Chunk a model so that its activations fit a budget: the public verb."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memplan.chunking.budget import Budget, parse_budget
from memplan.chunking.measure import activation_peak, paired, relative_error
from memplan.chunking.module import Chunk, chunked_class
from memplan.chunking.notaloop import NotALoopError
from memplan.chunking.parts import Target, export_parts
from memplan.chunking.plan import ChunkPlan, Part, described, fingerprint
from memplan.chunking.planfile import read_chunk_plan
from memplan.chunking.region import chunked
from memplan.chunking.search import Effort, Search, Trial
from memplan.chunking.timing import calibrated
from memplan.chunking.trial import Inputs, tolerance_of
from memplan.errors import (
    InputError,
    NoPlanError,
    UsageError,
)
from memplan.graph.liveness import profile
from memplan.units import format_bytes

MAX_SLOWDOWN = 1.10
TIMED = 3  # plans that are timed for real
ROUNDS = (
    4  # times the budget is tightened where the allocator needs more than estimated
)


class BudgetError(NoPlanError):
    """No plan within the budget, or none that is fast enough.

    floor: bytes of the lowest peak found. line: `file:line` of the operator that
    limits it. closest: the module chunked as near to the budget as was found.
    """

    def __init__(self, message: str, floor: int, line: str, closest: Any) -> None:
        self.floor, self.line, self.closest = floor, line, closest
        super().__init__(message, peak=floor)


@dataclass(frozen=True)
class ChunkOptions:
    """How a model is chunked.

    max_slowdown: the largest ratio of its time, chunked over as it was, that is
    accepted; None for any. effort: how far the search looks. progress: told, in a few
    words, what is going on.
    """

    max_slowdown: float | None = MAX_SLOWDOWN
    effort: Effort = dataclasses.field(default_factory=Effort)
    progress: Callable[[str], None] = lambda _: None


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
    shapes, instead of a search.

    The module returned gives what `model` gives: the same bits, or within rounding of
    them; that was checked on these inputs and on random ones, its memory was measured
    and its time compared. It has the ChunkPlan as `memplan`.

    Raises BudgetError (a NoPlanError) where nothing found keeps to the budget;
    UsageError for arguments that make no sense, a model in training mode among them;
    InputError for models that fail, and for plans of others.
    """
    options = options or ChunkOptions()
    if (budget is None) == (plan is None):
        raise UsageError("give either a budget or a plan, as in budget='20%'")
    return _Chunking(model, inputs, options).run(budget, plan)


class _Chunking:
    def __init__(self, model: Any, inputs: Any, options: ChunkOptions) -> None:
        import torch

        self._torch = torch
        if not isinstance(model, torch.nn.Module):
            raise UsageError(
                f"a model is an nn.Module, and this is {type(model).__name__}"
            )
        if model.training:
            raise UsageError("the model is in training mode; call model.eval() first")
        self._model, self._options = model, options
        self._inputs = Inputs.of(inputs)
        self._device = self._inputs.check_device(model)
        self._began = time.monotonic()

    def run(self, budget: str | int | None, plan: Any) -> Any:
        wanted = None if budget is None else parse_budget(budget)
        original = self._call(self._model)
        try:
            self._expected = self._inputs.results(self._model)
        except Exception as error:
            raise InputError(
                f"the model fails on these inputs: {type(error).__name__}: {error}"
            ) from error
        self._before = activation_peak(original, self._device)
        self._options.progress("exporting")
        self._exports = export_parts(self._model, self._inputs)
        if plan is not None:
            return self._reuse(plan)
        assert wanted is not None
        limit = wanted.bytes_of(self._before)
        if self._before <= limit:
            return self._unchanged(limit, "it fits the budget as it is")
        if not self._exports.targets:
            return self._unchanged(limit, "nothing of it can be exported")
        return self._searched(wanted, limit)

    def _call(self, model: Any) -> Callable[[], Any]:
        inputs = self._inputs
        return lambda: model(*inputs.args, **inputs.kwargs)

    def _unchanged(self, limit: int, reason: str) -> Any:
        peak = sum(profile(each.program).peak for each in self._exports.targets[:1])
        plan = ChunkPlan(
            "unchanged",
            reason,
            limit,
            peak_bytes_before=peak,
            peak_bytes_after=peak,
            measured_bytes_before=self._before,
            measured_bytes_after=self._before,
            search_seconds=time.monotonic() - self._began,
            device=self._device,
            torch=self._torch.__version__,
            left_alone=dict(self._exports.left_alone),
        )
        return chunked_class()(self._model, {}, plan)

    def _searched(self, wanted: Budget, limit: int) -> Any:
        self._machine = calibrated(self._device)
        once = paired(self._call(self._model), self._call(self._model), self._device)
        self._whole = once.first
        if wanted.least:
            return self._least()
        found = self._within(limit)
        if found:
            best = self._fastest(found)
            self._refuse_slow(best, limit)
            return best
        raise self._refusal(limit)

    def _least(self) -> Any:
        """The lowest peak that is fast enough, found by going down step by step."""
        best = None
        limit = self._before // 2
        while True:
            found = self._within(limit)
            if not found:
                break
            module = self._fastest(found)
            slow = self._options.max_slowdown
            if slow is not None and module.memplan.slowdown > slow and best is not None:
                break
            best = module
            limit = int(module.memplan.measured_bytes_after * 0.85)
        if best is None:
            raise self._refusal(limit)
        self._refuse_slow(best, best.memplan.budget_bytes)
        return best

    def _within(self, limit: int) -> list[Any]:
        """Modules whose measured peak is at most `limit` bytes, best by the model
        first, and whose results are right."""
        goal = limit
        self._nearest: Any = None
        for _ in range(ROUNDS):
            good = []
            lowest = None
            for trials in self._trials(goal):
                module = self._built(trials, limit)
                if module is None:
                    continue
                peak = module.memplan.measured_bytes_after
                if self._nearest is None or (
                    peak < self._nearest.memplan.measured_bytes_after
                ):
                    self._nearest = module
                if peak <= limit:
                    good.append(module)
                lowest = min(peak, lowest or peak)
                if len(good) == TIMED:
                    break
            if good or lowest is None:
                return good
            goal = int(goal * min(0.97, limit / lowest))
        return []

    def _trials(self, goal: int) -> list[dict[str, Trial]]:
        """Of each way to keep to `goal` bytes, the trial of each exported part."""
        ways: list[dict[str, Trial]] = []
        for target in self._exports.targets:
            search = self._search(target)
            room = max(1, goal - target.outside)
            found = [search.start] if search.start.peak <= room else search.run(room)
            chosen = found or [search.best]
            if not ways:
                ways = [{} for _ in chosen]
            for i, way in enumerate(ways):
                way[target.path] = chosen[min(i, len(chosen) - 1)]
        return ways

    def _search(self, target: Target) -> Search:
        effort = self._options.effort
        share = effort.seconds / len(self._exports.targets)
        return Search(
            target.program,
            self._exports.inference,
            self._machine,
            replace(effort, seconds=share),
            self._options.progress,
            self._whole,
        )

    def _built(self, trials: Mapping[str, Trial], limit: int) -> Any:
        """The module of some trials, measured; None if its results are wrong."""
        self._options.progress("measuring")
        targets = {target.path: target for target in self._exports.targets}
        changed = {path: trial for path, trial in trials.items() if trial.regions}
        chunks = {
            path: Chunk(
                targets[path], trial.program, path or type(self._model).__name__
            )
            for path, trial in changed.items()
        }
        parts = tuple(
            Part(path, fingerprint(targets[path].program), trial.regions)
            for path, trial in changed.items()
        )
        before = [
            targets[path].outside + profile(targets[path].program).peak
            for path in targets
        ]
        after = [targets[path].outside + trial.peak for path, trial in trials.items()]
        plan = ChunkPlan(
            "chunked" if changed else "unchanged",
            "" if changed else "no region helps",
            limit,
            parts,
            peak_bytes_before=max(before, default=0),
            peak_bytes_after=max(after, default=0),
            measured_bytes_before=self._before,
            device=self._device,
            torch=self._torch.__version__,
            regions=tuple(
                each
                for path, trial in changed.items()
                for each in described(trial.program, path)
            ),
            left_alone=dict(self._exports.left_alone),
        )
        module = chunked_class()(self._model, chunks, plan)
        error = self._error(module)
        if error > tolerance_of(self._expected):
            return None
        module.memplan = replace(
            plan,
            max_relative_error=error,
            measured_bytes_after=activation_peak(self._call(module), self._device),
            search_seconds=time.monotonic() - self._began,
        )
        return module

    def _error(self, module: Any) -> float:
        """The largest relative error of the module's results, on all inputs."""
        found = self._inputs.results(module)
        return max(
            relative_error(expected, result)
            for expected, result in zip(self._expected, found, strict=True)
        )

    def _fastest(self, modules: Sequence[Any]) -> Any:
        """The module that takes least time, timed against the original."""
        best: Any = None
        for module in modules:
            self._options.progress("timing")
            times = paired(self._call(self._model), self._call(module), self._device)
            module.memplan = replace(module.memplan, slowdown=times.ratio)
            if best is None or times.ratio < best.memplan.slowdown:
                best = module
        best.memplan = replace(
            best.memplan, search_seconds=time.monotonic() - self._began
        )
        return best

    def _refuse_slow(self, module: Any, limit: int) -> None:
        slow = self._options.max_slowdown
        plan = module.memplan
        if slow is not None and plan.slowdown > slow:
            raise BudgetError(
                f"fits {format_bytes(limit)}, but takes {plan.slowdown:.2f} times as "
                f"long, above {slow:.2f}; allow more (--max-slowdown) or give more "
                "memory (--budget)",
                plan.measured_bytes_after,
                plan.regions[0]["line"] if plan.regions else "",
                module,
            )

    def _refusal(self, limit: int) -> BudgetError:
        nearest = self._nearest
        floor = nearest.memplan.measured_bytes_after if nearest else self._before
        line = self._limiting(nearest)
        where = f", at {line}" if line else ""
        return BudgetError(
            f"no plan found within {format_bytes(limit)}: the lowest found is "
            f"{format_bytes(floor)}{where}; give at least that (--budget)",
            floor,
            line,
            nearest,
        )

    def _limiting(self, module: Any) -> str:
        """The source line of the operator at the peak that is left."""
        chunks = [*(module._parts.values() if module else ())]
        if module is not None and module._chunk is not None:
            chunks.append(module._chunk)
        programs = [each.program for each in chunks]
        programs = programs or [each.program for each in self._exports.targets]
        highest = max(programs, key=lambda program: profile(program).peak)
        return str(highest.ops[profile(highest).at].line)

    def _reuse(self, plan: Any) -> Any:
        """The module of a plan that was found before, checked anew."""
        old = plan if isinstance(plan, ChunkPlan) else read_chunk_plan(plan)
        name = "the plan" if isinstance(plan, ChunkPlan) else os.fspath(plan)
        targets = {target.path: target for target in self._exports.targets}
        trials = {}
        for part in old.parts:
            target = targets.get(part.path)
            if target is None or fingerprint(target.program) != part.fingerprint:
                raise InputError(
                    f"{name} was made of another model, of other shapes, or with "
                    f"another torch ({old.torch}); chunk this model with --budget"
                )
            program = target.program
            try:
                for region in part.regions:
                    program = chunked(program, region, self._exports.inference)
            except NotALoopError as error:
                raise InputError(
                    f"{name} does not fit this model: {error}; make it anew"
                ) from error
            trials[part.path] = Trial(part.regions, program, profile(program))
        module = self._built(trials, old.budget_bytes)
        if module is None:
            raise InputError(f"{name} gives other results than the model; make it anew")
        after = module.memplan.measured_bytes_after
        if old.status == "chunked" and after > old.budget_bytes:
            raise BudgetError(
                f"{name} needs {format_bytes(after)} here, above its budget of "
                f"{format_bytes(old.budget_bytes)}; make it anew",
                after,
                self._limiting(module),
                module,
            )
        return self._fastest([module])
