"""A model fused for a call's inputs, or why it runs unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from memplan.compiling.bench import CompileOptions
from memplan.compiling.compile import Compiling
from memplan.compiling.module import Compiled
from memplan.compiling.on_gpu import OnGPU, prepare_on_gpu
from memplan.compiling.report import RECHECKED, Fallback
from memplan.errors import MemplanError
from memplan.fusing.options import FuseOptions
from memplan.graph.call import Inputs
from memplan.graph.check import SideEffectsError, lying_as, without_effects
from memplan.graph.export import first_line
from memplan.graph.locks import Lock
from memplan.graph.standin import original
from memplan.graph.weights import Watch, has_hooks

_preparing = Lock()  # exports and random numbers are the process's, not a thread's


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Tensors created here have version counters and no gradients."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def prepare(
    model: nn.Module, inputs: Inputs, options: FuseOptions
) -> Compiled | OnGPU | Fallback:
    """Fuse `model` for inputs of this form, or return why it runs unchanged.

    Raises what the model raises.
    """
    with _preparing, inference(), torch.random.fork_rng(devices=[]):
        if any(map(nn.parameter.is_lazy, model.parameters())):
            inputs.run(model)  # weights get their shapes
        own = original(model)
        tensors = [each for each in inputs.leaves() if isinstance(each, Tensor)]
        hooked = any(map(has_hooks, own.modules()))
        every = 1 if hooked else RECHECKED
        if reason := unsupported_model(own, tensors):
            return Fallback(reason, None, Watch(own, ()), 1)
        inputs = inputs.with_tensors([lying_as(x, x.detach()) for x in tensors])
        effects = ""
        try:  # it stays as its first run leaves it
            without_effects(own, inputs, partial(inputs.run, model))
        except SideEffectsError as problem:
            effects = str(problem)
        if not tensors:
            return Fallback("it takes no tensors", None, Watch(own, ()), every)
        device, layers = str(tensors[0].device), None
        try:
            if device != "cpu" and effects:
                reason = effects
            elif device != "cpu":
                found = prepare_on_gpu(own, inputs, options)
                if not isinstance(found, Fallback):
                    return found
                reason, layers = found.reason, found.seen
            else:
                work = Compiling(model, inputs, CompileOptions(pack=True), options)
                made = work.fused(bool(effects))
                if made.runner is not None or made.memplan.parts:
                    made.settle()
                    return made
                reason, layers = made.memplan.reason, work.seen()
        except MemplanError as problem:
            reason = str(problem)
        except Exception as problem:
            reason = f"it cannot be fused: {first_line(problem)}"
        return Fallback(reason, layers, Watch(own, ()), every)


def unsupported_model(model: nn.Module, inputs: list[Tensor]) -> str:
    """Why a model cannot be compiled at all; "" if it may be."""
    tensors = [*inputs, *model.parameters(), *model.buffers()]
    devices = sorted({str(each.device) for each in tensors})
    if len(devices) > 1:
        return f"it runs on several devices: {', '.join(devices)}"
    if devices and not devices[0].startswith(("cpu", "cuda")):
        return f"it runs on {devices[0]}"
    training = next((name for name, each in model.named_modules() if _trains(each)), "")
    return f"its module {training} is in training mode" if training else ""


def _trains(module: nn.Module) -> bool:
    """Whether a module is in training mode and may behave differently there."""
    if not module.training:
        return False
    if isinstance(module, nn.RReLU | nn.MultiheadAttention):
        return True
    room = type(module).__module__.removeprefix("torch.nn.modules.")
    return room not in ("activation", "container", "conv", "linear", "pooling")
