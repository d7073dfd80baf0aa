"""A model made ready for inputs of given shapes: traced, joined, built, checked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from memplan.errors import InputError, MemplanError
from memplan.fusing.engine.build import Engine
from memplan.fusing.engine.decide import Maker, seconds
from memplan.fusing.front.exported import exported
from memplan.fusing.front.interpret import interpret
from memplan.fusing.front.recognise import recognise
from memplan.fusing.front.trace import NotTraceableError, trace
from memplan.fusing.front.weights import Watch
from memplan.fusing.join import join
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Called, Joining, Node, tensors
from memplan.fusing.options import FuseOptions
from memplan.graph.measure import other_inputs, relative_error
from memplan.graph.program import Program

_BUILDING = threading.RLock()

SLOWER = "fused, it would take longer"
NO_GAIN = 1.02  # times the model's own time, above which it is not worth it


@dataclass(frozen=True)
class LeftAlone:
    """Why a model runs as it was; its layers, as far as they are known; whether parts
    of it may be fused."""

    reason: str
    network: Network | None = None
    parts: bool = False

    def stale(self) -> bool:
        """It is asked again where weights or modules changed: never."""
        return False


@dataclass
class Prepared:
    """A network that runs fused, on inputs of the shapes it was made for.

    nodes: what runs. watch: what the model was when its weights were packed. finish:
    makes of the engine's outputs the model's. error: the largest relative difference
    to the model's own results. seconds: of making it. gain: the model's time over this
    one's, when it was made; None if that was not measured.
    """

    network: Network
    engine: Engine
    watch: Watch
    finish: Callable[[Any], Any]
    error: float
    seconds: float
    gain: float | None = None

    @property
    def nodes(self) -> list[Node]:
        return self.engine.nodes

    def stale(self) -> bool:
        """Whether the model is another one by now. Weights that changed in it are
        packed anew."""
        if not self.watch.same_modules():
            return True
        if not self.watch.same_weights():
            with _BUILDING:
                self.watch = self.watch.again()
                self.engine.pack()
        return False

    def run(self, inputs: dict[str, Any]) -> Any:
        """What the model gives on these inputs."""
        return self.finish(self.engine.run(inputs))


def prepare(
    model: Any, inputs: dict[str, Any], fixed: dict[str, Any], options: FuseOptions
) -> Prepared | LeftAlone:
    """Make `model` ready for inputs of these shapes, or say why it stays as it is.

    inputs: the tensors of a call, by argument; fixed: its other arguments.
    """
    import torch

    with _BUILDING, torch.no_grad():
        began = time.perf_counter()
        try:
            made = _Preparation(model, inputs, fixed, options).made()
        except MemplanError as problem:
            return LeftAlone(str(problem))
        if isinstance(made, Prepared):
            made.seconds = time.perf_counter() - began
        return made


@dataclass
class _Preparation:
    model: Any
    inputs: dict[str, Any]
    fixed: dict[str, Any]
    options: FuseOptions
    finish: Callable[[Any], Any] = field(default=lambda outputs: outputs)

    def made(self) -> Prepared | LeftAlone:  # noqa: PLR0911 - a reason a line
        if not self.inputs:
            return LeftAlone("it takes no tensors")
        expected = self._model(self.inputs)
        try:
            program = self._program(expected)
        except InputError as problem:
            return LeftAlone(str(problem), parts=True)
        network = recognise(program)
        nodes, outputs = join(network, self._joining())
        if all(isinstance(node, Called) for node in nodes):
            return LeftAlone("it has no layers that are fused", network)
        maker = Maker(self.model, network, nodes, outputs, self.inputs, self.options)
        if maker.decisions.plan == ((), 0):
            return LeftAlone(f"{SLOWER}, as was measured before", network)
        engine, error = self._engine(maker, expected)
        if engine is None:
            return LeftAlone(f"its results would differ by {error:.1e}", network)
        gain = self._gain(maker, engine)
        slower = gain is not None and gain < 1 / NO_GAIN
        if slower:
            maker.decisions.keep_plan((), 0)
        maker.decisions.write()
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
        return self.model(**inputs, **self.fixed)

    def _program(self, expected: Any) -> Program:
        """The model's program, by tracing or by torch.export, with its metas known."""
        try:
            program = trace(self.model, self.fixed)
            found = interpret(program, self.model, self.inputs)
            if relative_error(expected, found) <= self.options.tolerance:
                return program
            problem = "its trace computes something else"
        except NotTraceableError as error:
            problem = str(error)
        try:
            program, self.finish = exported(self.model, self.inputs, self.fixed)
            found = self.finish(interpret(program, self.model, self.inputs))
        except InputError as error:
            raise InputError(f"{problem}; {error}") from error
        if relative_error(expected, found) > self.options.tolerance:
            raise InputError(f"{problem}; what torch.export gives does, too")
        return program

    def _engine(self, maker: Maker, expected: Any) -> tuple[Engine | None, float]:
        """The fastest engine whose results are the model's, and how they differ."""
        plan = maker.decisions.plan
        if plan is not None:
            engine, error = self._exact(maker, plan[0], plan[1], expected)
            if engine is not None:
                return engine, error
        kernels = self.options.kernels
        best, error, least = None, float("inf"), float("inf")
        for batch in maker.batches():
            engine, off = self._exact(maker, kernels, batch, expected)
            if engine is None:
                error = min(error, off)
                continue
            if len(maker.batches()) == 1:
                best, error = engine, off
                break
            took = seconds(lambda: engine.run(self.inputs), maker.device)  # noqa: B023
            if took < least:
                best, error, least = engine, off, took
        if best is not None:
            maker.decisions.keep_plan(_used(best, kernels), best.batch)
        return best, error

    def _exact(
        self, maker: Maker, kernels: tuple[str, ...], batch: int, expected: Any
    ) -> tuple[Engine | None, float]:
        """An engine with the coarsest of `kernels` left out until results are right."""
        error = float("inf")
        for left in _ever_more_exact(kernels):
            engine = maker.engine(left, batch)
            engine.learn(expected)
            error = self._error(engine, expected)
            if error <= self.options.tolerance:
                return engine, error
        return None, error

    def _error(self, engine: Engine, expected: Any) -> float:
        """The largest relative error on the inputs given and on others."""
        error = relative_error(expected, self.finish(engine.run(self.inputs)))
        if error > self.options.tolerance:
            return error
        values = other_inputs(list(self.inputs.values()), seed=1)
        noise = dict(zip(self.inputs, values, strict=True))
        found = self.finish(engine.run(noise))
        return max(error, relative_error(self._model(noise), found))

    def _gain(self, maker: Maker, engine: Engine) -> float | None:
        """The model's time over the engine's; None if that is not asked for."""
        if not self.options.measure or maker.decisions.kept:
            return None
        fused = seconds(lambda: engine.run(self.inputs), maker.device)
        return seconds(lambda: self._model(self.inputs), maker.device) / fused


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
