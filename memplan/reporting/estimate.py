"""What a model needs on a device, without its memory: some steps under fake tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memplan.errors import UsageError, expected
from memplan.recording.boundary import named_parts, step
from memplan.recording.fake_device import GPUS, fake_device
from memplan.recording.held import tensors_in
from memplan.recording.options import RecordOptions
from memplan.recording.record import record_with
from memplan.recording.shim import require_torch
from memplan.reporting.stats import Stats, summarize
from memplan.scratch import scratch_folder
from memplan.text import facts_html
from memplan.units import format_bytes, parse_memory

STEPS = 3  # the optimizer's state is made in the first


@dataclass(frozen=True)
class Estimate:
    """What some steps of a model need.

    live_bytes: of tensors at the peak; reserved_bytes: the most that CUDA's caching
    allocator would take from the device, 0 on the CPU. capacity_bytes: of the device,
    None where it has no size. stats: all that is known, by line, module and category.
    """

    live_bytes: int
    reserved_bytes: int
    capacity_bytes: int | None
    stats: Stats

    def fits(self, beside: int | str = 0) -> bool:
        """Whether it fits into the device with `beside` left free.

        beside: bytes or as in "1GiB", for what is not counted: CUDA's context, the
        workspaces of kernels, other processes. Raises UsageError if the device has no
        size.
        """
        if self.capacity_bytes is None:
            raise UsageError(
                "the device has no size: name a GPU or a size, as in device='h100' or "
                "device='24GiB'"
            )
        room = parse_memory(beside) if isinstance(beside, str) else beside
        return self.reserved_bytes + room <= self.capacity_bytes

    def __repr__(self) -> str:
        return f"Estimate({', '.join(f'{k} {v}' for k, v in self._facts())})"

    def _repr_html_(self) -> str:
        return facts_html("estimate", self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        found = [("live", format_bytes(self.live_bytes))]
        if self.stats.trace.info.device != "cpu":
            found.append(("reserved", format_bytes(self.reserved_bytes)))
        if self.capacity_bytes is not None:
            found.append(("capacity", format_bytes(self.capacity_bytes)))
        return found


def estimate(
    model: Any,
    inputs: Any,
    *,
    optimizer: Callable[[Any], Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    device: str = "cpu",
) -> Estimate:
    """Estimate the memory of some steps of `model(inputs)`; none of it is taken.

    model: a module, of which a copy without contents is used, or a function that makes
    it, which runs under fake tensors: a model of any size can be estimated. inputs: a
    tensor, a tuple of arguments or a mapping of keyword arguments, or a function that
    makes one of these. optimizer: of a training step, a class or function that is
    given the parameters, `torch.optim.AdamW`; None for inference without gradients.
    loss: makes a scalar of the output; by default its `loss`, or the mean of its first
    tensor. device: "cpu"; "cuda", a GPU without limit; the name of one as `memplan fit`
    takes it, "h100"; or its size, "24GiB".

    What is not counted: see `Estimate.fits`. Raises TypeError for other arguments,
    UsageError for unknown devices, RecordError where fake tensors cannot follow the
    model, and what the model raises.
    """
    torch = require_torch("estimating")
    whole, capacity = _device(device)
    on_gpu = whole != "fake"
    place = "cuda" if on_gpu else "cpu"
    if not callable(model):
        raise expected("a module or a function that makes one", model)
    for given, what in ((optimizer, "an optimizer's class"), (loss, "a loss")):
        if given is not None and not callable(given):
            raise expected(f"{what} or a function for it", given)
    with scratch_folder("memplan-estimate-") as folder:
        path = folder / "trace.parquet"
        # What is alive in the end is this function's own.
        options = RecordOptions(device=whole, steps="all", holders=False)
        with record_with(path, options) as recording:
            network = _network(torch, model, place)
            given = inputs() if callable(inputs) else inputs
            _run(torch, network, _fake(torch, given, place), optimizer, loss)
        found = summarize(recording.trace)
    reserved = 0 if found.reserved is None else found.reserved.bytes
    return Estimate(found.peak.bytes, reserved, capacity, found)


def _device(name: str) -> tuple[str, int | None]:
    """The device to record, without a limit, and its bytes."""
    if not isinstance(name, str):
        raise expected("a device's name", name)
    if name in ("cpu", "cuda"):
        return {"cpu": "fake", "cuda": "fake:cuda"}[name], None
    if name.lower() not in GPUS and not name[:1].isdigit():
        known = ", ".join(GPUS)
        raise UsageError(
            f"device {name!r}: name cpu, cuda, a size such as 24GiB, or one of {known}"
        )
    found = fake_device(f"fake:cuda:{name}")
    assert found is not None
    return "fake:cuda", found.capacity


def _network(torch: Any, model: Any, place: str) -> Any:
    """A copy of the module on the device, or what the function makes, moved there."""
    if not isinstance(model, torch.nn.Module):
        made = model()
        if not isinstance(made, torch.nn.Module):
            raise expected("a function that makes a module", made)
        return made.to(place)
    memo: dict[int, Any] = {}
    for _, part in named_parts(model):
        for tensor in tensors_in(vars(part)):
            if id(tensor) not in memo:
                memo[id(tensor)] = _like(torch, tensor, place)
    return copy.deepcopy(model, memo)


def _like(torch: Any, tensor: Any, place: str) -> Any:
    """A tensor of the same shape, without contents."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=place)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _fake(torch: Any, value: Any, place: str) -> Any:
    """Inputs with tensors on the device; of containers the same kind."""
    if isinstance(value, torch.Tensor):
        return _like(torch, value, place)
    if isinstance(value, Mapping):
        return {name: _fake(torch, each, place) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)([_fake(torch, each, place) for each in value])
    return value


def _run(
    torch: Any,
    network: Any,
    given: Any,
    optimizer: Callable[[Any], Any] | None,
    loss: Callable[[Any], Any] | None,
) -> None:
    keywords = given if isinstance(given, Mapping) else {}
    arguments = given if isinstance(given, tuple) else (given,)
    if keywords:
        arguments = ()
    if optimizer is None:
        with torch.no_grad():
            for _ in range(STEPS):
                step()
                network(*arguments, **keywords)
        return
    chosen = optimizer(network.parameters())
    for _ in range(STEPS):
        output = network(*arguments, **keywords)
        (loss or _mean)(output).backward()
        del output
        chosen.step()
        chosen.zero_grad()


def _mean(output: Any) -> Any:
    """The loss of an output: what it calls so, or the mean of its first tensor."""
    own = getattr(output, "loss", None)
    if own is not None:
        return own
    tensor = next((each for each in tensors_in(output) if each.requires_grad), None)
    if tensor is None:
        raise UsageError(
            "no tensor of the output needs a gradient: give loss, a function that "
            "makes a scalar of the output"
        )
    return tensor.float().mean()
