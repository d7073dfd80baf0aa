"""A model compiled for inputs of given shapes: captured, joined, built, checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn

from memplan.errors import InputError, MemplanError
from memplan.fusing.engine.decide import EngineBuilder
from memplan.fusing.engine.engine import Engine
from memplan.fusing.join import join
from memplan.fusing.layers import EagerOp, Network, tensors
from memplan.fusing.memory import ArenaPool
from memplan.fusing.options import FuseOptions, Joining
from memplan.fusing.prepared import Fallback, Prepared, building, inference
from memplan.fusing.recognise import recognise
from memplan.graph.call import Inputs
from memplan.graph.capture import Target, capture
from memplan.graph.check import (
    SideEffectsError,
    other_inputs,
    relative_error,
    tolerance_of,
    without_effects,
)
from memplan.graph.clock import CLEARLY_SLOWER, is_decisive, seconds, timed
from memplan.graph.export import first_line
from memplan.graph.measure import activation_peak
from memplan.graph.nest import Tensors, as_nested, leaves_of, unknown
from memplan.graph.standin import StandIn, original
from memplan.graph.weights import Watch, has_hooks

COARSER = 1e-5  # a tolerance above it is of results in 16 bits


@dataclass
class Trial:
    """An engine that was tried; None if none passed.

    error: relative, of its results. seconds: of its fastest run so far. kernels: those
    that it was chosen from. bytes: the least that any engine takes, if all take too
    many.
    """

    engine: Engine | None
    error: float
    seconds: float = float("inf")
    kernels: tuple[str, ...] = ()
    bytes: int = 0


def kernel_subsets(kernels: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Sets of kernels, each without the coarsest of the one before."""
    found = [kernels]
    for name in ("winograd4", "winograd2"):
        rest = tuple(each for each in found[-1] if each != name)
        if rest and rest != found[-1]:
            found.append(rest)
    return found


def used(engine: Engine, kernels: tuple[str, ...]) -> tuple[str, ...]:
    """The allowed kernels without Winograd algorithms that the engine does not use."""
    used = set(engine.kernels.values())
    return tuple(
        each for each in kernels if each in used or not each.startswith("winograd")
    )


NO_MORE = 1.02  # times the model's own peak, above which it takes more
SLACK = 1 << 20  # bytes more that are nothing to speak of


def room(peak: int) -> int:
    """Bytes that a fused network may take if the model takes `peak`."""
    return int(peak * NO_MORE) + SLACK


@dataclass
class Noise:
    """Random tensors of the same shapes, and the model's results for them.

    run: the model; it runs when its results are first needed. images: of a call, of
    which the model computes the first alone; 0 if it computes all.
    """

    tensors: list[torch.Tensor]
    run: Callable[[list[torch.Tensor]], object]
    images: int
    _first: list[object] | None = None
    _whole: list[object] | None = None
    _at_once: list[object] | None = None  # what an engine of all images found

    @classmethod
    def like(
        cls,
        tensors: list[torch.Tensor],
        run: Callable[[list[torch.Tensor]], object],
        images: int,
    ) -> Noise:
        """images: of a call, if shapes allow images to be independent, else 0.

        If an input image is constant, the model computes all images of the noise.
        """
        alone = images > 1 and all(varied(x, images) for x in tensors)
        return cls(noise_like(tensors), run, images if alone else 0)

    def error(self, found: object, batch: int, tolerance: float) -> float:
        """The largest relative error of an engine's results `found`, for `batch` images
        at a time.

        The model's first image alone does not show whether images influence each other,
        so results of small batches are also compared with those of all images at once.
        Beyond `tolerance`, all images are compared with the model's own.
        """
        leaves = leaves_of(found)
        if self._whole is None and self.images:
            error = self._first_error(leaves)
            if batch < self.images:
                error = max(error, self._apart(leaves))
            if error <= tolerance:
                if batch >= self.images:
                    self._at_once = leaves
                return error
        if self._whole is None:
            self._whole = leaves_of(self.run(self.tensors))
        return relative_error(self._whole, leaves)

    def _apart(self, found: list[object]) -> float:
        """The error against all images at once; infinite if those were not computed."""
        if self._at_once is None:
            return float("inf")
        return relative_error(self._at_once, found)

    def _first_error(self, found: list[object]) -> float:
        if self._first is None:
            try:
                first = self.run([x[:1] for x in self.tensors])
            except Exception:  # it wants as many images as it was given
                self.images = 0
                return float("inf")
            self._first = leaves_of(first)
        return relative_error(self._first, [_first_row(value) for value in found])


def noise_like(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """See `other_inputs`."""
    values = other_inputs(list(tensors), seed=1)
    return [each for each in values if isinstance(each, torch.Tensor)]


def _first_row(value: object) -> object:
    return value[:1] if isinstance(value, torch.Tensor) else value


def varied(value: torch.Tensor, images: int = 1) -> bool:
    """Whether elements differ within each of `images` equal parts of a tensor."""
    rows = value.reshape(images, -1)
    return rows.shape[1] > 1 and bool((rows != rows[:, :1]).any(1).all())


SLOWER = "the fused model is slower"
CLOSE = 1.05  # ratio of times below which single runs do not decide
NO_GAIN = 1.02  # times the model's own time, above which fusing does not pay


@dataclass
class Compiler:
    """Compiles one model for inputs of given shapes.

    inputs: the compiler's own. peak: bytes that a run of the model takes. tolerance:
    relative, for its type.
    """

    model: nn.Module
    inputs: Inputs
    options: FuseOptions
    arena_pool: ArenaPool
    finish: Callable[[object], object] = field(default=lambda outputs: outputs)
    tolerance: float = 0.0
    peak: int = 0
    plain: float = float("inf")  # seconds of the model's fastest run so far
    _tried: Noise | None = None

    def __post_init__(self) -> None:
        leaves = self.inputs.leaves()
        self.tensors = [each for each in leaves if isinstance(each, torch.Tensor)]

    def compile(self, expected: object) -> Prepared | Fallback:
        """The compiled model, or why it runs unchanged; expected: its results."""
        leaves = leaves_of(expected)
        if not self.tensors or unknown(leaves):
            given = bool(self.tensors)
            kind = f"returns a {unknown(leaves)}" if given else "takes no tensors"
            return Fallback(f"it {kind}", parts=given)
        self.tolerance = accepted(leaves, self.options)
        try:
            target = self._target()
        except InputError as problem:
            return Fallback(str(problem), parts=True)
        self.finish = as_nested(expected)
        network = recognise(target.program, target.module)
        nodes, outputs = join(network, self._joining())
        if all(isinstance(node, EagerOp) for node in nodes):
            return Fallback("it has no supported layers", network)
        builder = EngineBuilder(
            target.weights,
            network,
            nodes,
            outputs,
            self._by_name(network, self.tensors),
            self.options,
            self.arena_pool,
        )
        if builder.decisions.plan == ((), 0):
            return Fallback(f"{SLOWER}, by an earlier measurement", network)
        return self._chosen(builder, network, expected)

    def _target(self) -> Target:
        """The model, or what a stand-in runs in its place, as a Program."""
        if isinstance(self.model, StandIn):
            return self.model.target(self.inputs)
        return capture(self.model, self.inputs, flat=True)

    def _by_name(self, network: Network, tensors: list[torch.Tensor]) -> Tensors:
        return dict(zip(network.inputs, tensors, strict=True))

    def _chosen(
        self, builder: EngineBuilder, network: Network, expected: object
    ) -> Prepared | Fallback:
        """The fastest engine, if its results are the model's and it is no slower."""
        trial = self._engine(builder, expected)
        engine, error = trial.engine, trial.error
        if engine is None:
            return Fallback(f"the fused results differ by {error:.1e}", network)
        gain = self._gain(builder, engine, trial.seconds)
        slower = gain is not None and gain < 1 / NO_GAIN
        if slower:
            builder.decisions.set_plan((), 0)
        builder.write()
        if gain is not None and slower:
            return Fallback(f"{SLOWER}: it takes {1 / gain:.2f} times as long", network)
        names = list(dict.fromkeys(tensors(engine.nodes)))
        watch = Watch(original(self.model), names)
        return Prepared(network, engine, watch, self.finish, error, 0.0, gain)

    def _joining(self) -> Joining:
        """On a GPU torch runs convolutions, and nothing can be joined to them."""
        joining = self.options.joining
        if self.device == "cpu":
            return joining
        return replace(joining, epilogues=False, prologues=False, pools=False)

    @property
    def device(self) -> str:
        return next((str(each.device) for each in self.tensors), "cpu")

    def run(self) -> object:
        """What the model returns; `plain` keeps the least time that this took."""
        result, took = timed(partial(self.inputs.run, self.model), self.device)
        self.plain = min(self.plain, took)
        return result

    def _run_on(self, tensors: list[torch.Tensor]) -> object:
        return self.inputs.with_tensors(tensors).run(self.model)

    def _off(self, expected: object, found: object) -> float:
        return relative_error(leaves_of(expected), leaves_of(found))

    def _engine(self, builder: EngineBuilder, expected: object) -> Trial:
        """The fastest engine whose results are the model's, by an earlier decision if
        there is one that passes."""
        plan = builder.decisions.plan
        if plan is not None:
            tried = all(map(varied, self.tensors))  # on noise, when it was made
            noise = None if tried else self._noise(builder)
            trial = self._exact(builder, plan, expected, noise)
            if trial.engine is not None:
                return trial
        best = self._fastest(builder, expected)
        if best.engine is not None:
            builder.keep(best.engine, used(best.engine, best.kernels))
        return best

    def _fastest(self, builder: EngineBuilder, expected: object) -> Trial:
        """The fastest engine that takes no more memory than the model; without oneDNN,
        which needs scratch memory, if no engine with it does.

        Raises InputError if all take more memory than the model.
        """
        every = self.options.kernels
        best = self._fastest_of(builder, expected, every)
        lean = tuple(each for each in every if each != "onednn")
        if best.bytes and lean not in ((), every):
            other = self._fastest_of(builder, expected, lean)
            best = other if other.engine is not None else best
        if best.bytes:
            share = best.bytes / max(self.peak, 1)
            raise InputError(f"the fused model needs {share:.2f} times the memory")
        return best

    def _fastest_of(
        self, builder: EngineBuilder, expected: object, kernels: tuple[str, ...]
    ) -> Trial:
        """The fastest engine of several batch sizes. If two images at a time are slower
        than all, no further sizes are tried."""
        best = Trial(None, float("inf"))
        off, least = float("inf"), 0
        noise = self._noise(builder)
        for batch in builder.batches():
            trial = self._exact(builder, (kernels, batch), expected, noise)
            off = min(off, trial.error)
            if trial.engine is None:
                continue
            if self.options.measure:
                run = partial(trial.engine.run, builder.inputs)
                peak = activation_peak(run, self.device) + trial.engine.arena.bytes
                least = min(least or peak, peak)
                if peak > self._most:
                    continue
            if best.engine is not None and not self._faster(builder, trial, best):
                if best.engine.batch >= best.engine.images:
                    break
                continue
            best = trial
        if best.engine is None:
            return Trial(None, off, bytes=least)
        best.kernels = kernels
        return best

    def _faster(self, builder: EngineBuilder, trial: Trial, best: Trial) -> bool:
        """Whether an engine is faster than the best; they are timed in turns if their
        single runs do not decide."""
        assert trial.engine is not None
        assert best.engine is not None
        low, high = sorted((trial.seconds, best.seconds))
        if not is_decisive(low, self.device) or high < CLOSE * low:
            pair = [
                partial(engine.run, builder.inputs)
                for engine in (best.engine, trial.engine)
            ]
            best.seconds, trial.seconds = seconds(pair, self.device, ready=True)
        return trial.seconds < best.seconds

    def _exact(
        self,
        builder: EngineBuilder,
        plan: tuple[tuple[str, ...], int],
        expected: object,
        noise: Noise | None,
    ) -> Trial:
        """An engine for a plan, the least exact kernels removed until its results are
        right, also on `noise`."""
        trial = Trial(None, float("inf"))
        kernels, batch = plan
        for left in kernel_subsets(kernels):
            engine = builder.engine(left, batch)
            engine.learn(expected, builder.inputs)
            trial = self._tried_on(builder, engine, expected, noise)
            if trial.error <= self.tolerance:
                return trial
        return Trial(None, trial.error)

    def _tried_on(
        self,
        builder: EngineBuilder,
        engine: Engine,
        expected: object,
        noise: Noise | None,
    ) -> Trial:
        """An engine and its largest relative error, on the inputs and on noise;
        infinite if the network cannot run with this batch size."""
        trial = Trial(engine, float("inf"))
        try:
            found = self.finish(engine.run(builder.inputs))
            trial.error = self._off(expected, found)
            if trial.error > self.tolerance or noise is None:
                return trial
            again = partial(engine.run, self._by_name(builder.network, noise.tensors))
            result, trial.seconds = timed(again, self.device)
            found = self.finish(result)
        except (RuntimeError, ValueError, IndexError, MemplanError):
            if engine.batch >= engine.images:
                raise
            return trial
        error = noise.error(found, engine.batch, self.tolerance)
        trial.error = max(trial.error, error)
        return trial

    @property
    def _most(self) -> int:
        """Bytes that an engine may take: a stand-in's budget, or what the model
        takes."""
        own = self.model.budget() if isinstance(self.model, StandIn) else None
        return room(self.peak) if own is None else max(own, self.peak)

    def _noise(self, builder: EngineBuilder) -> Noise:
        if self._tried is None:
            alone = builder.separable() and not isinstance(self.model, StandIn)
            images = builder.images if alone else 0
            self._tried = Noise.like(self.tensors, self._run_on, images)
        return self._tried

    def _gain(
        self, builder: EngineBuilder, engine: Engine, took: float
    ) -> float | None:
        """The model's time over the engine's, which `took` so long; None if it is not
        to be measured. They take turns if the runs so far do not decide."""
        if not self.options.measure or builder.decisions.kept:
            return None
        if is_decisive(took, self.device) and self.plain > CLEARLY_SLOWER * took:
            return self.plain / took
        fused, plain = seconds(
            [partial(engine.run, builder.inputs), self.run],
            self.device,
            ready=True,
        )
        return plain / fused


def prepare(
    model: nn.Module,
    inputs: Inputs,
    options: FuseOptions,
    arena_pool: ArenaPool | None = None,
) -> Prepared | Fallback:
    """Compile `model` for inputs of this form, or return why it runs unchanged.

    arena_pool: memory for its arenas. Raises what the model raises.
    """
    with building(), inference(), torch.random.fork_rng(devices=[]):
        began = time.perf_counter()
        if any(map(nn.parameter.is_lazy, model.parameters())):
            inputs.run(model)  # weights get their shapes
        own = original(model)
        tensors = [x for x in inputs.leaves() if isinstance(x, torch.Tensor)]
        reason = unsupported_model(own, tensors)
        if reason:
            return Fallback(reason, watch=Watch(own, ()), every=1)
        hooked = any(map(has_hooks, own.modules()))
        copies = [each.detach().clone() for each in tensors]
        inputs = inputs.with_tensors(copies)
        work = Compiler(model, inputs, options, arena_pool or ArenaPool())
        try:
            expected = without_effects(own, copies, work.run)
            work.peak = activation_peak(work.run, work.device)
        except SideEffectsError as problem:
            watch = Watch(own, ()) if hooked else None
            return Fallback(str(problem), None, not problem.lost, watch, every=1)
        try:
            made = work.compile(expected)
        except MemplanError as problem:
            made = Fallback(str(problem))
        except Exception as problem:
            made = Fallback(f"it cannot be fused: {first_line(problem)}", parts=True)
        if isinstance(made, Fallback):
            every = 1 if hooked else made.every
            return replace(made, watch=Watch(own, ()), every=every)
        made.seconds = time.perf_counter() - began
        return made


def unsupported_model(model: nn.Module, inputs: list[torch.Tensor]) -> str:
    """Why a model cannot be compiled at all; "" if it may be."""
    tensors = [*inputs, *model.parameters(), *model.buffers()]
    devices = sorted({str(each.device) for each in tensors})
    if len(devices) > 1:
        return f"it runs on several devices: {', '.join(devices)}"
    if devices and not devices[0].startswith(("cpu", "cuda")):
        return f"it runs on {devices[0]}"
    if any(each.is_inference() for each in tensors[len(inputs) :]):
        return (
            "its weights were created in inference mode, so memplan cannot see changes"
        )
    training = next((name for name, each in model.named_modules() if _trains(each)), "")
    return f"its module {training} is in training mode" if training else ""


def _trains(module: torch.nn.Module) -> bool:
    """Whether a module is in training mode and may behave differently there."""
    if not module.training:
        return False
    if isinstance(module, nn.RReLU | nn.MultiheadAttention):
        return True
    room = type(module).__module__.removeprefix("torch.nn.modules.")
    return room not in ("activation", "container", "conv", "linear", "pooling")


def accepted(results: object, options: FuseOptions) -> float:
    """The accepted relative error: the options', or a few roundings in 16 bits."""
    rounding = tolerance_of(results)
    return max(options.tolerance, rounding if rounding > COARSER else 0.0)


def agrees(
    model: nn.Module, run: nn.Module, inputs: Inputs, options: FuseOptions
) -> bool:
    """Whether `run` returns what `model` returns for inputs of these shapes, and is no
    slower."""
    tensors = [x for x in inputs.leaves() if isinstance(x, torch.Tensor)]
    with inference(), torch.random.fork_rng(devices=[]):
        try:
            for values in (tensors, noise_like(tensors)):
                given = inputs.with_tensors([each.clone() for each in values])
                expected = leaves_of(given.run(model))
                error = relative_error(expected, leaves_of(given.run(run)))
                if error > accepted(expected, options):
                    return False
        except Exception:
            return False
        if not options.measure:
            return True
        runs = [partial(inputs.run, run), partial(inputs.run, model)]
        took, plain = seconds(runs, str(tensors[0].device))
        return took <= NO_GAIN * plain
