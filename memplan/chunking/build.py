"""Modules made of the search's trials: checked, measured, timed against the model."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memplan.chunking.curve import at_peak
from memplan.chunking.measure import Paired, paired, run_seconds
from memplan.chunking.module import Chunk
from memplan.chunking.parts import Exports
from memplan.chunking.plan import ChunkPlan, Part, described, fingerprint
from memplan.chunking.rounding import scales
from memplan.chunking.search import Trial
from memplan.chunking.stand_in import chunked_class
from memplan.chunking.trial import Inputs, tolerance_of
from memplan.errors import InputError
from memplan.graph.liveness import profile
from memplan.graph.measure import TINY, activation_peak, relative_error
from memplan.graph.observed import Observed
from memplan.graph.program import Program

Progress = Callable[[str], None]
ROUNDINGS = 10  # times what rounding was seen to do, a difference may be


class Workbench:
    """A model, its inputs and its results; what is made of it is compared with those.

    before: bytes of activations that it takes as it is, measured. exports: its parts,
    to be set before anything is built.
    """

    exports: Exports

    def __init__(self, model: Any, inputs: Inputs, progress: Progress) -> None:
        """Raises InputError if the model fails on the inputs, or if model and inputs
        are on several devices."""
        self._model, self._inputs, self._progress = model, inputs, progress
        self.device = inputs.check_device(model)
        self._began = time.monotonic()
        self._observed = Observed()
        self._kept = inputs.kept(model)
        try:
            self._expected = inputs.results(model)
        except Exception as error:
            raise InputError(
                f"the model fails on these inputs: {type(error).__name__}: {error}"
            ) from error
        self._tolerance = tolerance_of(self._expected)
        self.before = activation_peak(self._call(model), self.device)

    def seconds_once(self) -> float:
        """The model's time, the shorter of two runs."""
        return min(run_seconds(self._call(self._model), self.device) for _ in range(2))

    def timed(self, module: Any) -> Paired:
        """The time of the model, and of `module`."""
        return paired(self._call(self._model), self._call(module), self.device)

    def unchanged(self, limit: int, reason: str) -> Any:
        """The model as it is, in the place of what would have been chunked."""
        programs = {each.path: each.program for each in self.exports.targets}
        plan = replace(
            self._plan(limit, programs),
            reason=reason,
            measured_bytes_after=self.before,
            search_seconds=self._seconds(),
        )
        return chunked_class()(self._model, {}, plan)

    def build(self, trials: Mapping[str, Trial], limit: int) -> Any:
        """The module of some trials, measured; None if its results are wrong."""
        self._progress("measuring")
        targets = {target.path: target for target in self.exports.targets}
        changed = {path: trial for path, trial in trials.items() if trial.regions}
        plan = self._plan(limit, {path: each.program for path, each in trials.items()})
        plan = replace(
            plan,
            status="chunked" if changed else "unchanged",
            reason="" if changed else "no region helps",
            parts=tuple(
                Part(path, fingerprint(targets[path].program), trial.regions)
                for path, trial in changed.items()
            ),
        )
        name = type(self._model).__name__
        chunks = {
            path: Chunk(targets[path], trial.program, path or name)
            for path, trial in changed.items()
        }
        module = chunked_class()(self._model, chunks, plan)
        try:
            error = self._error(module)
        except Exception:  # whatever it is, there are other plans
            return None
        if error > self._tolerance:
            return None
        module.memplan = replace(
            plan,
            max_relative_error=error,
            measured_bytes_after=activation_peak(self._call(module), self.device),
            search_seconds=self._seconds(),
        )
        return module

    def fastest(self, modules: Sequence[Any], enough: float = math.inf) -> Any:
        """The module that takes least time, timed against the original.

        enough: a ratio above which a module is timed once more. Ctrl-C ends it with
        the best that was timed until then.
        """
        best: Any = None
        try:
            for module in modules:
                self._progress("timing")
                ratio = self.timed(module).ratio
                if ratio > enough:  # others may have been at work: the best of two
                    ratio = min(ratio, self.timed(module).ratio)
                module.memplan = replace(module.memplan, slowdown=ratio)
                if best is None or ratio < best.memplan.slowdown:
                    best = module
        except KeyboardInterrupt:
            if best is None:
                raise
        best.memplan = replace(best.memplan, search_seconds=self._seconds())
        return best

    def _plan(self, limit: int, programs: Mapping[str, Program]) -> ChunkPlan:
        """The plan of a model whose parts become `programs`, before it is measured."""
        import torch

        targets = {target.path: target for target in self.exports.targets}
        own = {path: target.program for path, target in targets.items()}
        before, at_first = self._peak(own, overwriting=False)
        held = max(0, self.before - before)  # by variables of the model's own Python
        if held and at_first:
            at_first = {**at_first, "held": held}
        after, at_last = self._peak({**own, **programs}, overwriting=bool(programs))
        return ChunkPlan(
            "unchanged",
            "",
            limit,
            peak_bytes_before=before + held,
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
    ) -> tuple[int, dict[str, Any]]:
        """The estimated peak of all parts, and where it is."""
        outside = {target.path: target.outside for target in self.exports.targets}
        beside = self._observed.temporaries
        peaks = {
            path: outside[path] + profile(each, overwriting, beside).peak
            for path, each in programs.items()
        }
        if not peaks:
            return 0, {}
        highest = max(peaks, key=lambda path: peaks[path])
        return peaks[highest], at_peak(programs[highest], highest, beside)

    def _error(self, module: Any) -> float:
        """The largest relative error of the module's results, on all inputs."""
        found = self._inputs.results(module)
        if len(found) < len(self._expected):
            return float("inf")
        # It may take inputs that the model refuses.
        error = max(map(relative_error, self._expected, found))
        if not self._tolerance < error < math.inf:
            return error
        return max(map(relative_error, self._expected, found, self._least))

    @functools.cached_property
    def _least(self) -> list[list[float]]:
        """What results are compared with where they are less, for what cancels: a
        difference of ROUNDINGS times what rounding does is just within tolerance."""
        self._progress("finding what is rounding")
        rounded = scales(lambda: self._inputs.results(self._model), self._expected)
        times = ROUNDINGS / self._tolerance
        return [[max(TINY, times * scale) for scale in row] for row in rounded]

    def _call(self, model: Any) -> Callable[[], Any]:
        def call() -> Any:
            try:
                return self._inputs.run(model)
            finally:
                self._kept.restore()

        return call

    def _seconds(self) -> float:
        return time.monotonic() - self._began
