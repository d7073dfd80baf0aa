"""A model made ready for inputs of given shapes: traced, joined, built, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from memplan.errors import InputError, MemplanError
from memplan.fusing.engine.build import Engine
from memplan.fusing.engine.clock import CLEARLY, seconds, tells
from memplan.fusing.engine.decide import Maker
from memplan.fusing.engine.slabs import Slabs
from memplan.fusing.front.exported import exported
from memplan.fusing.front.interpret import interpret
from memplan.fusing.front.nest import as_nested, leaves_of, unknown
from memplan.fusing.front.recognise import recognise
from memplan.fusing.front.trace import NotTraceableError, trace
from memplan.fusing.front.weights import Watch
from memplan.fusing.join import join
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Called, Joining, tensors
from memplan.fusing.noise import Noise, varied
from memplan.fusing.options import FuseOptions
from memplan.fusing.peaks import fits, room
from memplan.fusing.prepared import LeftAlone, Prepared
from memplan.fusing.trial import Trial, ever_more_exact, used
from memplan.graph.clock import timed
from memplan.graph.measure import relative_error
from memplan.graph.program import Program

SLOWER = "fused, it would take longer"
CLOSE = 1.05  # times: two single runs do not tell which is faster
NO_GAIN = 1.02  # times the model's own time, above which it is not worth it
COARSE = 2.0**-5  # what results in bfloat16 may differ by: a few of its roundings


def run_model(model: Any, fixed: dict[str, Any], inputs: dict[str, Any]) -> Any:
    """What a model gives on these inputs and other arguments."""
    return model(**inputs, **fixed)


@dataclass
class Making:
    """One model on its way to being ready, for inputs of given shapes.

    peak: bytes that the model's own values take. tolerance: of results of its type.
    """

    model: Any
    inputs: dict[str, Any]
    fixed: dict[str, Any]
    options: FuseOptions
    slabs: Slabs
    finish: Callable[[Any], Any] = field(default=lambda outputs: outputs)
    tolerance: float = 0.0
    peak: int = 0  # bytes that the model's values take
    plain: float = float("inf")  # seconds of the model's fastest run so far
    _tried: Noise | None = None

    def made(self, expected: Any) -> Prepared | LeftAlone:
        """The model made ready; expected: what it gives on the inputs."""
        leaves = leaves_of(expected)
        if not self.inputs or unknown(leaves):
            kind = f"returns a {unknown(leaves)}" if self.inputs else "takes no tensors"
            return LeftAlone(f"it {kind}", parts=True)
        coarse = any(str(getattr(leaf, "dtype", "")).endswith("16") for leaf in leaves)
        self.tolerance = max(self.options.tolerance, COARSE if coarse else 0.0)
        try:
            program = self._program(expected)
        except InputError as problem:
            return LeftAlone(str(problem), parts=True)
        network = recognise(program)
        nodes, outputs = join(network, self._joining())
        if all(isinstance(node, Called) for node in nodes):
            return LeftAlone("it has no layers that are fused", network)
        maker = Maker(
            self.model, network, nodes, outputs, self.inputs, self.options, self.slabs
        )
        if maker.decisions.plan == ((), 0):
            return LeftAlone(f"{SLOWER}, as was measured before", network)
        return self._chosen(maker, network, expected)

    def _chosen(
        self, maker: Maker, network: Network, expected: Any
    ) -> Prepared | LeftAlone:
        """The fastest engine, if it gives what the model gives and is no slower."""
        trial = self._engine(maker, expected)
        engine, error = trial.engine, trial.error
        if engine is None:
            return LeftAlone(f"its results would differ by {error:.1e}", network)
        gain = self._gain(maker, engine, trial.seconds)
        slower = gain is not None and gain < 1 / NO_GAIN
        if slower:
            maker.decisions.keep_plan((), 0)
        maker.write()
        if gain is not None and slower:
            return LeftAlone(f"{SLOWER}: {1 / gain:.2f} times as long", network)
        names = list(dict.fromkeys(tensors(engine.nodes)))
        watch = Watch(self.model, names)
        return Prepared(network, engine, watch, self.finish, error, 0.0, gain)

    def _joining(self) -> Joining:
        """On a GPU convolutions are torch's own, and take nothing else in."""
        joining = self.options.joining
        if self._device == "cpu":
            return joining
        return replace(joining, epilogues=False, prologues=False, pools=False)

    @property
    def _device(self) -> str:
        return next((str(each.device) for each in self.inputs.values()), "cpu")

    def run(self, inputs: dict[str, Any]) -> Any:
        """What the model gives; how long that takes is noted."""
        return self._timed(partial(run_model, self.model, self.fixed, inputs))

    def _timed(self, run: Callable[[], Any]) -> Any:
        """What a run of the whole model gives, whose time is noted."""
        result, took = timed(run, self._device)
        self.plain = min(self.plain, took)
        return result

    def _program(self, expected: Any) -> Program:
        """The model's program, by tracing or by torch.export, with its metas known."""
        try:
            program = trace(self.model, self.fixed)
            found, self.peak = self._interpreted(program)
            self.finish = as_nested(expected)
            if self._off(expected, self.finish(found)) <= self.tolerance:
                return program
            problem = "its trace computes something else"
        except NotTraceableError as error:
            problem = str(error)
        try:
            program = exported(self.model, self.inputs, self.fixed)
            found, self.peak = self._interpreted(program)
            self.finish = as_nested(expected)
            if self._off(expected, self.finish(found)) > self.tolerance:
                raise InputError("what torch.export gives computes something else")
        except InputError as error:
            raise InputError(f"{problem}; {error}") from error
        return program

    def _interpreted(self, program: Program) -> tuple[Any, int]:
        """Its results and peak; a run of the model's that is not its first, too."""
        run = partial(interpret, program, self.model, self.inputs)
        found, peak = self._timed(run)
        return found, peak

    def _off(self, expected: Any, found: Any) -> float:
        return relative_error(leaves_of(expected), leaves_of(found))

    def _engine(self, maker: Maker, expected: Any) -> Trial:
        """The fastest engine whose results are the model's, and how they differ."""
        plan = maker.decisions.plan
        if plan is not None:
            tried = all(map(varied, self.inputs.values()))  # on noise, when it was made
            noise = None if tried else self._noise(maker)
            trial = self._exact(maker, plan, expected, noise)
            if trial.engine is not None:
                return trial
        best = self._fastest(maker, expected)
        if best.engine is not None:
            maker.keep(best.engine, used(best.engine, best.kernels))
        return best

    def _fastest(self, maker: Maker, expected: Any) -> Trial:
        """The fastest engine, and how it differs; without oneDNN's convolutions, which
        take memory beside their results, where with them it takes too much.

        Raises InputError where all take more memory than the model.
        """
        every = self.options.kernels
        best = self._fastest_of(maker, expected, every)
        lean = tuple(each for each in every if each != "onednn")
        if best.bytes and lean not in ((), every):
            other = self._fastest_of(maker, expected, lean)
            best = other if other.engine is not None else best
        if best.bytes:
            share = best.bytes / max(self.peak, 1)
            raise InputError(f"fused, it would take {share:.2f} times the memory")
        return best

    def _fastest_of(
        self, maker: Maker, expected: Any, kernels: tuple[str, ...]
    ) -> Trial:
        """Of engines for so many images at a time the fastest, and how it differs.
        Where fewer at a time take longer than all, other numbers are not tried."""
        best = Trial(None, float("inf"))
        off, least = float("inf"), 0
        noise = self._noise(maker)
        for batch in maker.batches():
            trial = self._exact(maker, (kernels, batch), expected, noise)
            off = min(off, trial.error)
            if trial.engine is None:
                continue
            if self.options.measure:
                peak = trial.engine.peak(self.inputs)
                least = min(least or peak, peak)
                if peak > room(self.peak) and not self._fits(trial.engine):
                    continue
            if best.engine is not None and not self._faster(trial, best):
                if best.engine.batch >= best.engine.images:
                    break
                continue
            best = trial
        if best.engine is None:
            return Trial(None, off, bytes=least)
        best.kernels = kernels
        return best

    def _fits(self, engine: Engine) -> bool:
        run = partial(run_model, self.model, self.fixed, self.inputs)
        return self._device == "cpu" and fits(engine, self.inputs, run)

    def _faster(self, trial: Trial, best: Trial) -> bool:
        """Whether an engine is faster than the best; they take turns where what they
        took so far does not tell."""
        assert trial.engine is not None
        assert best.engine is not None
        low, high = sorted((trial.seconds, best.seconds))
        if not tells(low, self._device) or high < CLOSE * low:
            pair = [
                partial(engine.run, self.inputs)
                for engine in (best.engine, trial.engine)
            ]
            best.seconds, trial.seconds = seconds(pair, self._device, ready=True)
        return trial.seconds < best.seconds

    def _exact(
        self,
        maker: Maker,
        plan: tuple[tuple[str, ...], int],
        expected: Any,
        noise: Noise | None,
    ) -> Trial:
        """An engine for a plan's images at a time, with the coarsest of its kernels
        left out until results are right, on `noise` too."""
        trial = Trial(None, float("inf"))
        kernels, batch = plan
        for left in ever_more_exact(kernels):
            engine = maker.engine(left, batch)
            engine.learn(expected, self.inputs)
            trial = self._tried_on(engine, expected, noise)
            if trial.error <= self.tolerance:
                return trial
        return Trial(None, trial.error)

    def _tried_on(self, engine: Engine, expected: Any, noise: Noise | None) -> Trial:
        """An engine and its largest relative error, on the inputs given and on others;
        infinite where so many images at a time are not what the network can do."""
        trial = Trial(engine, float("inf"))
        try:
            found = self.finish(engine.run(self.inputs))
            trial.error = self._off(expected, found)
            if trial.error > self.tolerance or noise is None:
                return trial
            again = partial(engine.run, noise.inputs)
            result, trial.seconds = timed(again, self._device)
            found = self.finish(result)
        except (RuntimeError, ValueError, IndexError, MemplanError):
            if engine.batch >= engine.images:
                raise
            return trial
        error = noise.error(found, engine.batch, self.tolerance)
        trial.error = max(trial.error, error)
        return trial

    def _noise(self, maker: Maker) -> Noise:
        if self._tried is None:
            images = maker.images if maker.separable() else 0
            run = partial(run_model, self.model, self.fixed)
            self._tried = Noise.like(self.inputs, run, images)
        return self._tried

    def _gain(self, maker: Maker, engine: Engine, took: float) -> float | None:
        """The model's time over the engine's, which `took` so long; None if that is not
        asked for. They take turns only where the runs so far do not tell."""
        if not self.options.measure or maker.decisions.kept:
            return None
        if tells(took, self._device) and self.plain > CLEARLY * took:
            return self.plain / took
        fused, plain = seconds(
            [partial(engine.run, self.inputs), partial(self.run, self.inputs)],
            self._device,
            ready=True,
        )
        return plain / fused
