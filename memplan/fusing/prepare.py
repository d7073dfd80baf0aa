"""A model made ready, or left alone: what comes before and after the making."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from memplan.errors import MemplanError
from memplan.fusing.engine.clock import seconds
from memplan.fusing.engine.slabs import Slabs
from memplan.fusing.front.effects import SideEffectsError, own, without_effects
from memplan.fusing.front.nest import leaves_of
from memplan.fusing.front.weights import Watch
from memplan.fusing.making import NO_GAIN, Making, run_model
from memplan.fusing.options import FuseOptions
from memplan.fusing.prepared import LeftAlone, Prepared, building, inference
from memplan.graph.export import first_line
from memplan.graph.measure import other_inputs, relative_error


def prepare(
    model: Any,
    inputs: dict[str, Any],
    fixed: dict[str, Any],
    options: FuseOptions,
    slabs: Slabs | None = None,
) -> Prepared | LeftAlone:
    """Make `model` ready for inputs of these shapes, or say why it stays as it is.

    inputs: the tensors of a call, by argument; fixed: its other arguments. slabs: where
    its memory comes from. What the model raises is raised.
    """
    import torch

    with building(), inference(), torch.random.fork_rng(devices=[]):
        began = time.perf_counter()
        if any(map(torch.nn.parameter.is_lazy, model.parameters())):
            run_model(model, fixed, inputs)  # weights get their shapes
        reason = unsuited(model, inputs)
        if reason:
            return LeftAlone(reason, watch=Watch(model, ()), every=1)
        own_inputs = {name: own(value) for name, value in inputs.items()}
        work = Making(model, own_inputs, fixed, options, slabs or Slabs())
        try:
            expected = without_effects(model, own_inputs, work.run)
        except SideEffectsError as problem:
            return LeftAlone(str(problem))
        try:
            made = work.made(expected)
        except MemplanError as problem:
            made = LeftAlone(str(problem))
        except Exception as problem:
            made = LeftAlone(f"it cannot be fused: {first_line(problem)}", parts=True)
        if isinstance(made, LeftAlone):
            return replace(made, watch=Watch(model, ()))
        made.seconds = time.perf_counter() - began
        return made


def unsuited(model: Any, inputs: dict[str, Any]) -> str:
    """Why a model is left alone without a further look; "" where it is not."""
    tensors = [*inputs.values(), *model.parameters(), *model.buffers()]
    devices = sorted({str(each.device) for each in tensors})
    if len(devices) > 1:
        return f"it runs on several devices: {', '.join(devices)}"
    if not devices[0].startswith(("cpu", "cuda")):
        return f"it runs on {devices[0]}"
    if any(each.is_inference() for each in tensors[len(inputs) :]):
        return "its weights were made in inference mode, and no change of them is seen"
    training = next((name for name, each in model.named_modules() if _trains(each)), "")
    return f"its module {training} is in training mode" if training else ""


def _trains(module: Any) -> bool:
    """Whether a module is in training mode, and may do something else there."""
    from torch import nn

    if not module.training:
        return False
    if isinstance(module, nn.RReLU | nn.MultiheadAttention):
        return True
    room = type(module).__module__.removeprefix("torch.nn.modules.")
    return room not in ("activation", "container", "conv", "linear", "pooling")


def agrees(
    model: Any,
    run: Callable[[dict[str, Any]], Any],
    inputs: dict[str, Any],
    fixed: dict[str, Any],
    options: FuseOptions,
) -> bool:
    """Whether `run` gives what `model` gives on inputs of these shapes, and is no
    slower."""
    import torch

    with inference(), torch.random.fork_rng(devices=[]):
        try:
            for values in (
                list(inputs.values()),
                other_inputs(list(inputs.values()), seed=1),
            ):
                given = dict(zip(inputs, values, strict=True))
                expected = leaves_of(run_model(model, fixed, given))
                error = relative_error(expected, leaves_of(run(given)))
                if error > options.tolerance:
                    return False
        except Exception:
            return False
        if not options.measure:
            return True
        runs = [partial(run, inputs), partial(run_model, model, fixed, inputs)]
        took, plain = seconds(runs, str(next(iter(inputs.values())).device))
        return took <= NO_GAIN * plain
