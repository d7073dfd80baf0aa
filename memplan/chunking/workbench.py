"""Build modules from the search's trials; check, measure and time them."""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import nn

from memplan.chunking.code import failed_statement
from memplan.chunking.curve import at_peak
from memplan.chunking.module import Chunk, Chunked
from memplan.chunking.plan import ChunkPlan, Part, Peak, described, fingerprint
from memplan.chunking.region import defect
from memplan.chunking.trial import Trial
from memplan.errors import InputError
from memplan.graph.call import Inputs
from memplan.graph.capture import Exports
from memplan.graph.check import (
    Scales,
    Snapshot,
    least_scales,
    relative_error,
    results_of,
    scaled_error,
    tolerance_of,
)
from memplan.graph.clock import FAR_BELOW, LATE, in_pairs, interval, timed
from memplan.graph.liveness import Beside, one_body, profile
from memplan.graph.measure import Observed, activation_peak, iterations
from memplan.graph.program import Program
from memplan.graph.workspace import temporaries

Progress = Callable[[str], None]
THOROUGH = 30.0  # seconds to time for the second time, if it stays undecided


class Workbench:
    """A model with its inputs and results, with which chunked modules are compared.

    before: measured bytes of the unchanged model's activations. exports: its parts; set
    them before you build. rejections: why `build` returned None, each time.
    interrupted: whether Ctrl-C ended the timing of modules.
    internal_errors: how many regions or modules each defect of memplan dropped.
    """

    exports: Exports

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        progress: Progress,
        observe: bool = True,
    ) -> None:
        """observe: whether estimates count what each operator is seen to need, which
        runs it; else what a table says. Raises InputError if the model fails on the
        inputs, or if model and inputs are on several devices."""
        self.rejections: list[str] = []
        self.interrupted = False
        self.internal_errors: Counter[str] = Counter()
        self._model, self._inputs, self._progress = model, inputs, progress
        self.device = inputs.check_device(model)
        self._began = time.monotonic()
        self._built: dict[object, Chunked | None] = {}
        self._timed: set[Chunked] = set()
        self._twice: set[Chunked] = set()  # those timed a second time
        self._observe = observe
        self._snapshot = Snapshot([*inputs.leaves(), *model.buffers()])
        try:
            self._expected = self._results(model)
        except Exception as error:  # the user's code may raise anything
            raise InputError(
                f"the model fails on these inputs: {type(error).__name__}: {error}"
            ) from error
        self._tolerance = tolerance_of(self._expected)
        self.before = activation_peak(self._call(model), self.device)

    def seconds_once(self) -> float:
        """The model's time in seconds: the shorter of two runs."""
        run = self._call(self._model)
        with torch.no_grad():
            return min(timed(run, self.device)[1] for _ in range(2))

    def peak(self, module: Chunked) -> int:
        """The bytes of the module's activations, as measured."""
        return int(module.memplan.measured_bytes_after)

    def settled(self, module: Chunked, enough: float) -> bool:
        """False: modules are timed together."""
        return False

    def slowdown(self, module: Chunked) -> float:
        """The ratio that `fastest` measured."""
        return float(module.memplan.slowdown)

    def is_fast(self, module: Chunked, enough: float) -> bool:
        """Whether `fastest` left it open that it takes at most `enough` times as
        long."""
        return bool(module.memplan.slowdown_low <= enough)

    def _time(self, module: Chunked, enough: float, most: float) -> None:
        """Times a module, while it is undecided for at most so many seconds; what was
        measured before does not count."""
        self._progress("timing")
        runs = self._call(self._model), self._call(module)
        with torch.no_grad():
            ratios = in_pairs(*runs, self.device, enough, most)
        module.memplan = with_times(module.memplan, ratios, enough)

    def unchanged(self, limit: int, reason: str) -> Chunked:
        """The model unchanged, as a module without chunks."""
        programs = {each.path: each.program for each in self.exports.targets}
        plan = replace(
            self._plan(limit, programs),
            reason=reason,
            measured_bytes_after=self.before,
            search_seconds=self._seconds(),
        )
        return Chunked(self._model, {}, plan, self._inputs)

    def build(self, trials: Mapping[str, Trial], limit: int) -> Chunked | None:
        """The module of some trials, measured; None if it fails or its results differ.

        The last of `rejections` is then the reason. None is built twice.
        """
        key = tuple((path, each.again, each.digest) for path, each in trials.items())
        if key not in self._built:
            self._built[key] = self._new(trials, limit)
        module = self._built[key]
        if module is not None:
            module.memplan = replace(module.memplan, budget_bytes=limit)
        return module

    def _new(self, trials: Mapping[str, Trial], limit: int) -> Chunked | None:
        self._progress("measuring")
        targets = {target.path: target for target in self.exports.targets}
        changed = {
            path: trial
            for path, trial in trials.items()
            if trial.regions or trial.again
        }
        plan = self._plan(limit, {path: each.program for path, each in trials.items()})
        plan = replace(
            plan,
            status="chunked" if changed else "unchanged",
            reason="" if changed else "no region helps",
            parts=tuple(
                Part(
                    path,
                    fingerprint(targets[path].program),
                    trial.regions,
                    trial.again,
                )
                for path, trial in changed.items()
            ),
        )
        name = type(self._model).__name__
        try:
            chunks = {
                path: Chunk(targets[path], trial.program, path or name)
                for path, trial in changed.items()
            }
            module = Chunked(self._model, chunks, plan, self._inputs)
            error = self._error(module)
        except Exception as failure:  # generated code, which must run
            where = failed_statement(failure, [path or name for path in changed])
            self.rejections.append(defect(where, failure))
            self.internal_errors[self.rejections[-1]] += 1
            return None
        if stale := next(filter(None, map(Chunk.outdated, chunks.values())), ""):
            self.rejections.append(f"the model itself runs: {stale}")
            return None
        if error > self._tolerance:
            self.rejections.append(
                f"results differ by {error:.1e}, more than {self._tolerance:.0e}"
            )
            return None
        module.memplan = replace(
            plan,
            max_relative_error=error,
            measured_bytes_after=activation_peak(self._call(module), self.device),
            search_seconds=self._seconds(),
        )
        return module

    def fastest(self, modules: Sequence[Chunked], enough: float = math.inf) -> Chunked:
        """The fastest of some modules (at least one), timed against the original.

        enough: timed until it is sure which ratios are above. The fastest of many may
        be so by chance: if it is not far below, it is timed a second time, longer, and
        that alone counts; where that stays undecided, its plan says so. What is timed
        stays so at the next call.
        Ctrl-C ends the timing with the best module so far.
        """
        best: Chunked | None = None
        try:
            for module in modules:
                if module not in self._timed:
                    self._time(module, enough, LATE)
                    self._timed.add(module)
                if best is None or self.slowdown(module) < self.slowdown(best):
                    best = module
            assert best is not None
            while best not in self._twice and in_doubt(best.memplan, enough):
                self._time(best, enough, THOROUGH)
                self._twice.add(best)
                best = min(modules, key=self.slowdown)
        except KeyboardInterrupt:
            if best is None:
                raise
            self.interrupted = True
        best.memplan = replace(best.memplan, search_seconds=self._seconds())
        return best

    def _plan(self, limit: int, programs: Mapping[str, Program]) -> ChunkPlan:
        """The plan of a model whose parts become `programs`, without measurements."""
        targets = {target.path: target for target in self.exports.targets}
        own = {path: target.program for path, target in targets.items()}
        before, at_first = self._peak(own, overwriting=False)
        if at_first and self.before > before:
            at_first = {**at_first, "beyond": self.before - before}
        after, at_last = self._peak({**own, **programs}, overwriting=bool(programs))
        return ChunkPlan(
            "unchanged",
            "",
            limit,
            peak_bytes_before=before,
            peak_bytes_after=after,
            peak_before=at_first,
            peak_after=at_last,
            measured_bytes_before=self.before,
            device=self.device,
            torch=torch.__version__,
            regions=tuple(
                each
                for path, program in programs.items()
                for each in described(program, path)
            ),
            left_alone=dict(self.exports.left_alone),
        )

    def _peak(
        self, programs: Mapping[str, Program], overwriting: bool
    ) -> tuple[int, Peak]:
        """The estimated peak of all parts, and where it is."""
        outside = {target.path: target.outside for target in self.exports.targets}
        bodies = iterations if self._observe else one_body
        peaks: dict[str, int] = {}
        for path, each in programs.items():
            found = profile(each, overwriting, self._beside[path], bodies=bodies)
            peaks[path] = outside[path] + found.peak
        if not peaks:
            return 0, Peak()
        highest = max(peaks, key=lambda path: peaks[path])
        there = programs[highest], highest, self._beside[highest]
        where = at_peak(*there, overwriting, bodies)
        return peaks[highest], where

    @functools.cached_property
    def _beside(self) -> dict[str, Beside]:
        """What operators need beside operands and results, in each part."""
        found: dict[str, Beside] = {}
        for target in self.exports.targets:
            weights, constants = target.weights, target.program.constants.items()
            seen = Observed({value: weights[name] for value, name in constants})
            found[target.path] = seen.temporaries if self._observe else temporaries
        return found

    def _error(self, module: Chunked) -> float:
        """The largest relative error of the module's results, on all inputs."""
        found = self._results(module.run, len(self._expected))
        # The module may accept inputs that the model rejects.
        error = max(map(relative_error, self._expected, found))
        if not self._tolerance < error < math.inf:
            return error
        return scaled_error(self._expected, found, self._least)

    @functools.cached_property
    def _least(self) -> Scales:
        self._progress("measuring the rounding")
        run = functools.partial(self._results, self._model)
        return least_scales(run, self._expected, self._tolerance)

    def _results(self, run: Callable[..., object], required: int = 1) -> list[object]:
        return results_of(self._inputs, self._model, run, required)

    def _call(self, model: nn.Module) -> Callable[[], object]:
        def call() -> object:
            try:
                return self._inputs.run(model)
            finally:
                self._snapshot.restore()

        return call

    def _seconds(self) -> float:
        return time.monotonic() - self._began


def in_doubt(plan: ChunkPlan, enough: float) -> bool:
    """Whether it may take more than `enough` times as long, and may take less."""
    return plan.slowdown_low <= enough and plan.slowdown_high > FAR_BELOW * enough


def undecided(plan: ChunkPlan, enough: float) -> bool:
    """Whether it seems to take more than `enough` times as long, but that is unsure."""
    return plan.slowdown_low <= enough < plan.slowdown


def with_times(plan: ChunkPlan, ratios: Sequence[float], enough: float) -> ChunkPlan:
    """The plan with the times of pairs of runs; where these do not decide whether they
    are above `enough`, its reason says so."""
    low, high = interval(ratios)
    plan = replace(plan, slowdown=median(ratios), slowdown_low=low, slowdown_high=high)
    if not undecided(plan, enough):
        return replace(plan, reason="")
    reason = f"the time is undecided: {low:.2f} to {high:.2f} times the original"
    return replace(plan, reason=f"{reason}; the limit is {enough:.2f}")
