"""A model compiled for inputs of given shapes: traced, joined, built, checked."""

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
from memplan.fusing.front.capture import (
    NotTraceableError,
    exported,
    interpret,
    trace,
)
from memplan.fusing.front.recognise import recognise
from memplan.fusing.join import join
from memplan.fusing.layers import EagerOp, Network, tensors
from memplan.fusing.memory import ArenaPool
from memplan.fusing.options import FuseOptions, Joining
from memplan.fusing.prepared import Fallback, Prepared, building, inference
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
from memplan.graph.program import Program
from memplan.graph.weights import Watch

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


def fits(engine: Engine, inputs: Tensors, model: Callable[[], object]) -> bool:
    """Whether an engine and its arena take no more than the model, by torch's
    allocator: Python code holds values beyond their last use. False if another profiler
    runs."""
    try:
        plain = activation_peak(model)
        fused = activation_peak(lambda: engine.run(inputs)) + engine.arena.bytes
    except RuntimeError:
        return False
    return fused <= room(plain)


@dataclass
class Noise:
    """Random inputs of the same shapes, and the model's results for them.

    run: the model; it runs when its results are first needed. images: of a call, of
    which the model computes the first alone; 0 if it computes all.
    """

    inputs: Tensors
    run: Callable[[dict[str, object]], object]
    images: int
    _first: list[object] | None = None
    _whole: list[object] | None = None
    _at_once: list[object] | None = None  # what an engine of all images found

    @classmethod
    def like(
        cls,
        inputs: Tensors,
        run: Callable[[dict[str, object]], object],
        images: int,
    ) -> Noise:
        """images: of a call, if shapes allow images to be independent, else 0.

        If an input image is constant, the model computes all images of the noise.
        """
        values = other_inputs(list(inputs.values()), seed=1)
        alone = images > 1 and all(varied(x, images) for x in inputs.values())
        return cls(dict(zip(inputs, values, strict=True)), run, images if alone else 0)

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
            self._whole = leaves_of(self.run(self.inputs))
        return relative_error(self._whole, leaves)

    def _apart(self, found: list[object]) -> float:
        """The error against all images at once; infinite if those were not computed."""
        if self._at_once is None:
            return float("inf")
        return relative_error(self._at_once, found)

    def _first_error(self, found: list[object]) -> float:
        if self._first is None:
            try:
                first = self.run({name: x[:1] for name, x in self.inputs.items()})
            except Exception:  # it wants as many images as it was given
                self.images = 0
                return float("inf")
            self._first = leaves_of(first)
        return relative_error(self._first, [_first_row(value) for value in found])


def _first_row(value: object) -> object:
    return value[:1] if isinstance(value, torch.Tensor) else value


def varied(value: torch.Tensor, images: int = 1) -> bool:
    """Whether elements differ within each of `images` equal parts of a tensor."""
    rows = value.reshape(images, -1)
    return rows.shape[1] > 1 and bool((rows != rows[:, :1]).any(1).all())


SLOWER = "the fused model is slower"
CLOSE = 1.05  # ratio of times below which single runs do not decide
NO_GAIN = 1.02  # times the model's own time, above which fusing does not pay


def run_model(
    model: torch.nn.Module, fixed: dict[str, object], inputs: Tensors
) -> object:
    """A model's results for these inputs and other arguments."""
    return model(**inputs, **fixed)


@dataclass
class Compiler:
    """Compiles one model for inputs of given shapes.

    peak: bytes that the model's own values take. tolerance: relative, for its type.
    """

    model: torch.nn.Module
    inputs: Tensors
    fixed: dict[str, object]
    options: FuseOptions
    arena_pool: ArenaPool
    finish: Callable[[object], object] = field(default=lambda outputs: outputs)
    tolerance: float = 0.0
    peak: int = 0  # bytes that the model's values take
    plain: float = float("inf")  # seconds of the model's fastest run so far
    _tried: Noise | None = None

    def compile(self, expected: object) -> Prepared | Fallback:
        """The compiled model, or why it runs unchanged; expected: its results."""
        leaves = leaves_of(expected)
        if not self.inputs or unknown(leaves):
            kind = f"returns a {unknown(leaves)}" if self.inputs else "takes no tensors"
            return Fallback(f"it {kind}", parts=True)
        self.tolerance = accepted(leaves, self.options)
        try:
            program = self._program(expected)
        except InputError as problem:
            return Fallback(str(problem), parts=True)
        network = recognise(program)
        nodes, outputs = join(network, self._joining())
        if all(isinstance(node, EagerOp) for node in nodes):
            return Fallback("it has no supported layers", network)
        builder = EngineBuilder(
            self.model,
            network,
            nodes,
            outputs,
            self.inputs,
            self.options,
            self.arena_pool,
        )
        if builder.decisions.plan == ((), 0):
            return Fallback(f"{SLOWER}, by an earlier measurement", network)
        return self._chosen(builder, network, expected)

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
        watch = Watch(self.model, names)
        return Prepared(network, engine, watch, self.finish, error, 0.0, gain)

    def _joining(self) -> Joining:
        """On a GPU torch runs convolutions, and nothing can be joined to them."""
        joining = self.options.joining
        if self._device == "cpu":
            return joining
        return replace(joining, epilogues=False, prologues=False, pools=False)

    @property
    def _device(self) -> str:
        return next((str(each.device) for each in self.inputs.values()), "cpu")

    def run(self, inputs: Tensors) -> object:
        """What the model returns; `plain` keeps the least time that this took."""
        run = partial(run_model, self.model, self.fixed, inputs)
        result, took = timed(run, self._device)
        self.plain = min(self.plain, took)
        return result

    def _program(self, expected: object) -> Program:
        """The model's program, traced or exported, with its metas."""
        try:
            program = trace(self.model, self.fixed)
            found, self.peak = self._interpreted(program)
            self.finish = as_nested(expected)
            if self._off(expected, self.finish(found)) <= self.tolerance:
                return program
            problem = "its trace computes different results"
        except NotTraceableError as error:
            problem = str(error)
        try:
            program = exported(self.model, self.inputs, self.fixed)
            found, self.peak = self._interpreted(program)
            self.finish = as_nested(expected)
            if self._off(expected, self.finish(found)) > self.tolerance:
                raise InputError("the exported program computes different results")
        except InputError as error:
            raise InputError(f"{problem}; {error}") from error
        return program

    def _interpreted(self, program: Program) -> tuple[object, int]:
        """Its results and peak; a run of the model's that is not its first, too."""
        run = partial(interpret, program, self.model, self.inputs)
        (found, peak), took = timed(run, self._device)
        self.plain = min(self.plain, took)
        return found, peak

    def _off(self, expected: object, found: object) -> float:
        return relative_error(leaves_of(expected), leaves_of(found))

    def _engine(self, builder: EngineBuilder, expected: object) -> Trial:
        """The fastest engine whose results are the model's, by an earlier decision if
        there is one that passes."""
        plan = builder.decisions.plan
        if plan is not None:
            tried = all(map(varied, self.inputs.values()))  # on noise, when it was made
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
        """Whether an engine is faster than the best; they are timed in turns if their
        single runs do not decide."""
        assert trial.engine is not None
        assert best.engine is not None
        low, high = sorted((trial.seconds, best.seconds))
        if not is_decisive(low, self._device) or high < CLOSE * low:
            pair = [
                partial(engine.run, self.inputs)
                for engine in (best.engine, trial.engine)
            ]
            best.seconds, trial.seconds = seconds(pair, self._device, ready=True)
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
            engine.learn(expected, self.inputs)
            trial = self._tried_on(engine, expected, noise)
            if trial.error <= self.tolerance:
                return trial
        return Trial(None, trial.error)

    def _tried_on(self, engine: Engine, expected: object, noise: Noise | None) -> Trial:
        """An engine and its largest relative error, on the inputs and on noise;
        infinite if the network cannot run with this batch size."""
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

    def _noise(self, builder: EngineBuilder) -> Noise:
        if self._tried is None:
            images = builder.images if builder.separable() else 0
            run = partial(run_model, self.model, self.fixed)
            self._tried = Noise.like(self.inputs, run, images)
        return self._tried

    def _gain(
        self, builder: EngineBuilder, engine: Engine, took: float
    ) -> float | None:
        """The model's time over the engine's, which `took` so long; None if it is not
        to be measured. They take turns if the runs so far do not decide."""
        if not self.options.measure or builder.decisions.kept:
            return None
        if is_decisive(took, self._device) and self.plain > CLEARLY_SLOWER * took:
            return self.plain / took
        fused, plain = seconds(
            [partial(engine.run, self.inputs), partial(self.run, self.inputs)],
            self._device,
            ready=True,
        )
        return plain / fused


def prepare(
    model: torch.nn.Module,
    inputs: Tensors,
    fixed: dict[str, object],
    options: FuseOptions,
    arena_pool: ArenaPool | None = None,
) -> Prepared | Fallback:
    """Compile `model` for inputs of these shapes, or return why it runs unchanged.

    inputs: the tensors of a call, by argument; fixed: its other arguments. arena_pool:
    memory for its arenas. Raises what the model raises.
    """
    with building(), inference(), torch.random.fork_rng(devices=[]):
        began = time.perf_counter()
        if any(map(torch.nn.parameter.is_lazy, model.parameters())):
            run_model(model, fixed, inputs)  # weights get their shapes
        reason = unsupported_model(model, inputs)
        if reason:
            return Fallback(reason, watch=Watch(model, ()), every=1)
        own_inputs = {name: value.detach().clone() for name, value in inputs.items()}
        work = Compiler(model, own_inputs, fixed, options, arena_pool or ArenaPool())
        try:
            expected = without_effects(model, own_inputs, work.run)
        except SideEffectsError as problem:
            return Fallback(str(problem))
        try:
            made = work.compile(expected)
        except MemplanError as problem:
            made = Fallback(str(problem))
        except Exception as problem:
            made = Fallback(f"it cannot be fused: {first_line(problem)}", parts=True)
        if isinstance(made, Fallback):
            return replace(made, watch=Watch(model, ()))
        made.seconds = time.perf_counter() - began
        return made


def unsupported_model(model: torch.nn.Module, inputs: Tensors) -> str:
    """Why a model cannot be compiled at all; "" if it may be."""
    tensors = [*inputs.values(), *model.parameters(), *model.buffers()]
    devices = sorted({str(each.device) for each in tensors})
    if len(devices) > 1:
        return f"it runs on several devices: {', '.join(devices)}"
    if not devices[0].startswith(("cpu", "cuda")):
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
    model: torch.nn.Module,
    run: Callable[[dict[str, object]], object],
    inputs: Tensors,
    fixed: dict[str, object],
    options: FuseOptions,
) -> bool:
    """Whether `run` returns what `model` returns for inputs of these shapes, and is no
    slower."""
    with inference(), torch.random.fork_rng(devices=[]):
        try:
            for values in (
                list(inputs.values()),
                other_inputs(list(inputs.values()), seed=1),
            ):
                given = dict(zip(inputs, values, strict=True))
                expected = leaves_of(run_model(model, fixed, given))
                error = relative_error(expected, leaves_of(run(given)))
                if error > accepted(expected, options):
                    return False
        except Exception:
            return False
        if not options.measure:
            return True
        runs = [partial(run, inputs), partial(run_model, model, fixed, inputs)]
        took, plain = seconds(runs, str(next(iter(inputs.values())).device))
        return took <= NO_GAIN * plain
