"""A model made ready for inputs of given shapes: traced, joined, built, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from memplan.errors import InputError, MemplanError
from memplan.fusing.engine.build import Engine
from memplan.fusing.engine.clock import seconds
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
from memplan.fusing.options import FuseOptions
from memplan.fusing.prepared import LeftAlone, Prepared
from memplan.graph.measure import other_inputs, relative_error
from memplan.graph.program import Program

SLOWER = "fused, it would take longer"
NO_GAIN = 1.02  # times the model's own time, above which it is not worth it
SLACK = 1 << 20  # bytes more that are nothing to speak of
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
    _tried: tuple[dict[str, Any], Any] | None = None

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
        engine, error = self._engine(maker, expected)
        if engine is None:
            return LeftAlone(f"its results would differ by {error:.1e}", network)
        gain = self._gain(maker, engine)
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
        if next(iter(self.inputs.values())).device.type == "cpu":
            return joining
        return replace(joining, epilogues=False, prologues=False, pools=False)

    def _model(self, inputs: dict[str, Any]) -> Any:
        return run_model(self.model, self.fixed, inputs)

    def _program(self, expected: Any) -> Program:
        """The model's program, by tracing or by torch.export, with its metas known."""
        try:
            program = trace(self.model, self.fixed)
            found, self.peak = interpret(program, self.model, self.inputs)
            self.finish = as_nested(expected)
            if self._off(expected, self.finish(found)) <= self.tolerance:
                return program
            problem = "its trace computes something else"
        except NotTraceableError as error:
            problem = str(error)
        try:
            program = exported(self.model, self.inputs, self.fixed)
            found, self.peak = interpret(program, self.model, self.inputs)
            self.finish = as_nested(expected)
            if self._off(expected, self.finish(found)) > self.tolerance:
                raise InputError("what torch.export gives computes something else")
        except InputError as error:
            raise InputError(f"{problem}; {error}") from error
        return program

    def _off(self, expected: Any, found: Any) -> float:
        return relative_error(leaves_of(expected), leaves_of(found))

    def _engine(self, maker: Maker, expected: Any) -> tuple[Engine | None, float]:
        """The fastest engine whose results are the model's, and how they differ."""
        plan = maker.decisions.plan
        if plan is not None:
            noise = not all(map(_varied, self.inputs.values()))  # it was tried on some
            engine, error = self._exact(maker, plan[0], plan[1], expected, noise)
            if engine is not None:
                return engine, error
        best, error = self._fastest(maker, expected)
        if best is not None:
            maker.keep(best, _used(best, self.options.kernels))
        return best, error

    def _fastest(self, maker: Maker, expected: Any) -> tuple[Engine | None, float]:
        """Of engines for so many images at a time the fastest, and how it differs.

        Where fewer at a time take longer than all, other numbers are not tried. Raises
        InputError where all take more memory than the model.
        """
        best: Engine | None = None
        error, off, least = float("inf"), float("inf"), 0
        most = int(self.peak * NO_GAIN) + SLACK
        for batch in maker.batches():
            engine, differs = self._exact(maker, self.options.kernels, batch, expected)
            off = min(off, differs)
            if engine is None:
                continue
            if self.options.measure:
                peak = engine.peak(self.inputs)
                least = min(least or peak, peak)
                if peak > most:
                    continue
            if best is not None:
                pair = [partial(each.run, self.inputs) for each in (best, engine)]
                took = seconds(pair, maker.device, ready=True)
                if took[0] <= took[1] and best.batch >= best.images:
                    break
                if took[0] <= took[1]:
                    continue
            best, error = engine, differs
        if best is None and least:
            share = least / max(self.peak, 1)
            raise InputError(f"fused, it would take {share:.2f} times the memory")
        return best, off if best is None else error

    def _exact(
        self,
        maker: Maker,
        kernels: tuple[str, ...],
        batch: int,
        expected: Any,
        noise: bool = True,
    ) -> tuple[Engine | None, float]:
        """An engine with the coarsest of `kernels` left out until results are right, on
        `noise` too."""
        error = float("inf")
        for left in _ever_more_exact(kernels):
            engine = maker.engine(left, batch)
            engine.learn(expected, self.inputs)
            error = self._error(engine, expected, noise)
            if error <= self.tolerance:
                return engine, error
        return None, error

    def _error(self, engine: Engine, expected: Any, noise: bool) -> float:
        """The largest relative error on the inputs given and on others; infinite where
        so many images at a time are not what the network can do."""
        try:
            found = self.finish(engine.run(self.inputs))
            error = self._off(expected, found)
            if error > self.tolerance or not noise:
                return error
            given, wanted = self._noise()
            found = self.finish(engine.run(given))
        except (RuntimeError, ValueError, IndexError, MemplanError):
            if engine.batch >= engine.images:
                raise
            return float("inf")
        return max(error, self._off(wanted, found))

    def _noise(self) -> tuple[dict[str, Any], Any]:
        """Other inputs, and what the model makes of them, computed once."""
        if self._tried is None:
            values = other_inputs(list(self.inputs.values()), seed=1)
            noise = dict(zip(self.inputs, values, strict=True))
            self._tried = noise, self._model(noise)
        return self._tried

    def _gain(self, maker: Maker, engine: Engine) -> float | None:
        """The model's time over the engine's; None if that is not asked for."""
        if not self.options.measure or maker.decisions.kept:
            return None
        fused, plain = seconds(
            [partial(engine.run, self.inputs), partial(self._model, self.inputs)],
            maker.device,
            ready=True,
        )
        return plain / fused


def _varied(value: Any) -> bool:
    """Whether a tensor's elements differ: results on others tell little."""
    return bool(value.numel() > 1 and (value != value.flatten()[0]).any())


def _ever_more_exact(kernels: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Sets of kernels, each without the coarsest of the one before."""
    found = [kernels]
    for name in ("winograd4", "winograd2"):
        rest = tuple(each for each in found[-1] if each != name)
        if rest and rest != found[-1]:
            found.append(rest)
    return found


def _used(engine: Engine, kernels: tuple[str, ...]) -> tuple[str, ...]:
    """Of the kernels allowed, those that the engine's choice was made among."""
    used = set(engine.kernels.values())
    return tuple(
        each for each in kernels if each in used or not each.startswith("winograd")
    )
