"""A model compiled for inputs of given shapes: captured, joined, built, checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from memplan.errors import InputError, MemplanError
from memplan.fusing.engine.decide import MODEL_IS_FASTER, EngineBuilder
from memplan.fusing.engine.engine import Engine
from memplan.fusing.join import join
from memplan.fusing.layers import EagerOp, Network, tensors
from memplan.fusing.options import FuseOptions, Joining, kernel_subsets
from memplan.fusing.planes import with_planes
from memplan.fusing.prepared import Fallback, Prepared, building, inference
from memplan.fusing.recognise import recognise
from memplan.graph.arenas import ArenaPool
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
from memplan.graph.infer import Inference
from memplan.graph.measure import activation_peak
from memplan.graph.nest import as_nested, leaves_of, unknown
from memplan.graph.standin import StandIn, original
from memplan.graph.weights import Watch, has_hooks, places

COARSER = 1e-5  # a tolerance above it is of results in 16 bits


@dataclass
class Trial:
    """An engine that was tried: the largest relative error of its results, and the
    seconds of its fastest run so far."""

    engine: Engine
    error: float = float("inf")
    seconds: float = float("inf")


SLACK = 1 << 20  # bytes more that are nothing to speak of


def noise_like(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """See `other_inputs`."""
    values = other_inputs(list(tensors), seed=1)
    return [each for each in values if isinstance(each, torch.Tensor)]


def varied(value: torch.Tensor) -> bool:
    """Whether elements of a tensor differ."""
    flat = value.reshape(-1)
    return len(flat) > 1 and bool((flat != flat[0]).any())


NOT_WORTH_IT = "fusing saves too little time"
CLOSE = 1.05  # ratio of times below which single runs do not decide
NO_GAIN = 0.98  # times the model's own time, above which fusing does not pay


@dataclass
class Compiler:
    """Compiles one model for inputs of given shapes.

    inputs: the compiler's own. expected: the model's results. noise: random tensors of
    the same shapes, and the model's results for them. peak: bytes that a run of the
    model takes. tolerance: relative, for its type. plain: seconds of the model's
    fastest run so far. least_error, least_bytes: of engines that were not taken, for
    being inexact and for their memory.
    """

    model: nn.Module
    inputs: Inputs
    options: FuseOptions
    arena_pool: ArenaPool
    expected: object = None
    plain: float = float("inf")
    least_error: float = float("inf")
    least_bytes: int = 0

    def __post_init__(self) -> None:
        leaves = self.inputs.leaves()
        self.tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        self.device = next((str(each.device) for each in self.tensors), "cpu")

    def run(self) -> object:
        """What the model returns; `plain` keeps the least time that this took."""
        result, took = timed(partial(self.inputs.run, self.model), self.device)
        self.plain = min(self.plain, took)
        return result

    def compile(self) -> Prepared | Fallback:
        """The compiled model, or why it runs unchanged."""
        leaves = leaves_of(self.expected)
        if not self.tensors or unknown(leaves):
            given = bool(self.tensors)
            reason = unknown(leaves) if given else "it takes no tensors"
            return Fallback(reason, parts=given)
        self.tolerance = accepted(leaves, self.options)
        self._run_on_noise()
        try:
            target = self._target()
        except InputError as problem:
            return Fallback(str(problem), parts=True)
        self.numbers = target.numbers
        program = with_planes(target.program, Inference())
        network = recognise(program, target.module)
        nodes = join(network, self._joining())
        if all(isinstance(node, EagerOp) for node in nodes):
            return Fallback("it has no supported layers", network)
        self.builder = EngineBuilder(
            target.weights,
            network,
            nodes,
            dict(zip(network.inputs, self.tensors, strict=True)),
            self.expected,
            self.options,
            self.arena_pool,
        )
        if self.builder.plan == MODEL_IS_FASTER:
            return Fallback(f"{NOT_WORTH_IT}, by an earlier measurement", network)
        return self._chosen(network)

    def _run_on_noise(self) -> None:
        """Measure what memory the model takes, as it runs on noise."""
        tensors = noise_like(self.tensors)
        inputs, found = self.inputs.with_tensors(tensors), []
        self.peak = activation_peak(
            lambda: found.append(inputs.run(self.model)), self.device
        )
        self.noise = tensors, leaves_of(found[0])

    def _target(self) -> Target:
        """The model, or what a stand-in runs in its place, as a Program."""
        if isinstance(self.model, StandIn):
            return self.model.target(self.inputs)
        return capture(self.model, self.inputs, quick=True)

    def _joining(self) -> Joining:
        """On a GPU torch runs convolutions, and nothing can be joined to them."""
        joining = self.options.joining
        if self.device == "cpu":
            return joining
        return replace(joining, epilogues=False, prologues=False, pools=False)

    def _chosen(self, network: Network) -> Prepared | Fallback:
        """The fastest engine, if its results are the model's and it is no slower."""
        engine = self._replayed()
        if engine is None:
            trial = self._fastest()
            if trial is None:
                off = self.least_error
                return Fallback(f"the fused results differ by {off:.1e}", network)
            longer = self._longer(trial) if self.options.measure else 0.0
            if longer > NO_GAIN:
                self.builder.write(MODEL_IS_FASTER)
                times = f"{longer:.2f} times as long"
                return Fallback(f"{NOT_WORTH_IT}: it takes {times}", network)
            engine = trial.engine
            self.builder.write(engine.plan)
        names = dict.fromkeys(tensors(engine.nodes))
        own = original(self.model)
        known = places(own)
        read = [name for name in network.constants.values() if name in known]
        watch = Watch(own, names, self.numbers, read)
        return Prepared(network, engine, watch, as_nested(self.expected))

    def _replayed(self) -> Engine | None:
        """The engine of an earlier decision, if there is one that passes. It was tried
        on noise when it was made."""
        plan = self.builder.plan
        if plan is None:
            return None
        trial = self._tried(self.builder.engine(plan), all(map(varied, self.tensors)))
        return trial.engine if trial.error <= self.tolerance else None

    def _fastest(self) -> Trial | None:
        """The fastest engine that is exact and takes no more memory than allowed;
        without oneDNN, which needs scratch memory, if no engine with it does.

        Raises InputError if all that are exact take more memory than allowed.
        """
        every = self.options.kernels
        lean = tuple(each for each in every if each != "onednn")
        best = self._fastest_of(every)
        if best is None and self.least_bytes and lean not in ((), every):
            best = self._fastest_of(lean)
        if best is None and self.least_bytes:
            share = self.least_bytes / max(self.peak, 1)
            raise InputError(f"the fused model needs {share:.2f} times the memory")
        return best

    def _fastest_of(self, kernels: tuple[str, ...]) -> Trial | None:
        """The fastest engine of several batch sizes. If two images at a time are slower
        than all, no further sizes are tried."""
        best: Trial | None = None
        for batch in self.builder.batches():
            trial = self._exact(kernels, batch)
            if trial.error > self.tolerance:
                self.least_error = min(self.least_error, trial.error)
            elif not self._is_lean(trial.engine):
                continue
            elif best is None or self._faster(trial, best):
                best = trial
            elif best.engine.batch >= best.engine.images:
                break
        return best

    def _exact(self, kernels: tuple[str, ...], batch: int) -> Trial:
        """An engine, the least exact kernels removed until its results are right."""
        for left in kernel_subsets(kernels):
            trial = self._tried(self.builder.engine(self.builder.fastest(left, batch)))
            if trial.error <= self.tolerance:
                break
        return trial

    def _tried(self, engine: Engine, known: bool = False) -> Trial:
        """An engine and its largest relative error, on the inputs and, unless that is
        `known`, on noise; infinite if it cannot run with its batch size."""
        trial, (noise, expected) = Trial(engine), self.noise
        try:
            error = relative_error(self.expected, engine.run(self.builder.inputs))
            if known or error > self.tolerance:
                trial.error = error
                return trial
            inputs = dict(zip(self.builder.inputs, noise, strict=True))
            found, trial.seconds = timed(partial(engine.run, inputs), self.device)
        except (RuntimeError, ValueError, IndexError, MemplanError):
            if engine.batch >= engine.images:
                raise
            return trial
        trial.error = max(error, relative_error(expected, found))
        return trial

    def _is_lean(self, engine: Engine) -> bool:
        """Whether an engine takes no more memory than a stand-in's budget, or than the
        options allow."""
        if not self.options.measure:
            return True
        run = partial(engine.run, self.builder.inputs)
        peak = activation_peak(run, self.device) + engine.arena.bytes
        own = self.model.budget() if isinstance(self.model, StandIn) else None
        room = int(self.peak * self.options.memory) + SLACK
        if peak <= (room if own is None else max(own, self.peak)):
            return True
        self.least_bytes = min(self.least_bytes or peak, peak)
        return False

    def _faster(self, trial: Trial, best: Trial) -> bool:
        """Whether an engine is faster than the best; they are timed in turns if their
        single runs do not decide."""
        low, high = sorted((trial.seconds, best.seconds))
        if not is_decisive(low, self.device) or high < CLOSE * low:
            pair = [
                partial(each.engine.run, self.builder.inputs) for each in (best, trial)
            ]
            best.seconds, trial.seconds = seconds(pair, self.device, ready=True)
        return trial.seconds < best.seconds

    def _longer(self, trial: Trial) -> float:
        """The engine's time over the model's. They take turns if the runs so far do not
        decide."""
        took = trial.seconds
        if is_decisive(took, self.device) and self.plain > CLEARLY_SLOWER * took:
            return took / self.plain
        run = partial(trial.engine.run, self.builder.inputs)
        fused, plain = seconds([run, self.run], self.device, ready=True)
        return fused / plain


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
            work.expected = without_effects(own, inputs, work.run)
        except SideEffectsError as problem:
            watch = Watch(own, ()) if hooked else None
            return Fallback(str(problem), None, not problem.lost, watch, every=1)
        try:
            made = work.compile()
        except MemplanError as problem:
            made = Fallback(str(problem))
        except Exception as problem:
            made = Fallback(f"it cannot be fused: {first_line(problem)}", parts=True)
        if isinstance(made, Fallback):
            every = 1 if hooked else made.every
            return replace(made, watch=Watch(own, ()), every=every)
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
