"""A model, fused and measured beside itself: what became of it, and what that saves."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch

from memplan.compiling.fuse import fuse
from memplan.compiling.summary import Summary, copy_bandwidth, peak_bytes, summary
from memplan.errors import InputError
from memplan.factory import blaming
from memplan.fusing.options import FuseOptions
from memplan.graph.call import Inputs
from memplan.graph.check import relative_error
from memplan.graph.clock import in_turns

ROUNDS = 5  # in which the model and the fused one are timed
TURN_SECONDS = 0.15  # of a turn, in which a model is called several times

_UNCHANGED = "the model runs unchanged: "  # a warning's text, before the reason


@dataclass(frozen=True)
class Examined:
    """The result of `memplan fuse`: a model, "eager", beside what replaces it,
    "memplan".

    name: of the model's class. seconds: of a call, medians over rounds. ratios: the
    model's time over memplan's in the same round: "min", "median" and "max", above 1
    where memplan is faster; empty where the model runs unchanged. error: the largest
    relative difference, see `relative_error`. peaks: bytes of activations, see
    `summary.peak_bytes`. first_call: seconds of the fused model's first call.
    bandwidth: bytes that a copy reads and writes in a second.
    """

    name: str
    summary: Summary
    seconds: dict[str, float]
    ratios: dict[str, float]
    error: float | None
    peaks: dict[str, int]
    first_call: float
    bandwidth: float
    threads: int
    torch: str
    warnings: list[str]


def examine(
    model: torch.nn.Module, inputs: object, options: FuseOptions | None = None
) -> Examined:
    """Fuse `model` for `inputs`, and measure it beside itself, in turns that alternate
    which is first, without gradients.

    inputs: a tuple or list of arguments, a mapping of keyword arguments, or one tensor.
    Raises InputError if the model fails on them, or if they are not on the CPU.
    """
    given = Inputs.of(inputs)
    _refuse_other_devices(given)
    with torch.no_grad():
        with blaming("the model fails on these inputs"):
            given.run(model)
        fused = fuse(model, options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.perf_counter()
            given.run(fused)
            first_call = time.perf_counter() - start
        lines = _own_lines(caught)
        found = summary(fused)
        if not found.parts and not found.reason:
            reasons = [line.partition(_UNCHANGED)[2] for line in lines]
            reason = next(filter(None, reversed(reasons)), "")
            why = reason or fused.unsupported(given.args, given.kwargs)
            found = replace(found, reason=why)
        runs: dict[str, Callable[[], object]] = {"eager": lambda: given.run(model)}
        error = None
        if found.status != "unchanged":
            runs["memplan"] = lambda: given.run(fused)
            error = relative_error(runs["eager"](), runs["memplan"]())
        turns = _turns(runs)
        peaks = {
            name: peak_bytes(run, fused if name == "memplan" else None)
            for name, run in runs.items()
        }
    others = [line.partition(": ")[2] for line in lines if _UNCHANGED not in line]
    return Examined(
        name=type(model).__name__,
        summary=found,
        seconds={name: median(each) for name, each in turns.items()},
        ratios=_ratios(turns),
        error=error,
        peaks=peaks,
        first_call=first_call,
        bandwidth=copy_bandwidth(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        warnings=[
            line
            for line in dict.fromkeys(others)
            if not found.reason or found.reason not in line
        ],
    )


def _refuse_other_devices(given: Inputs) -> None:
    devices = {str(each.device) for each in given.leaves() if hasattr(each, "device")}
    other = sorted(devices - {"cpu"})
    if other:
        raise InputError(
            f"the inputs are on {other[0]}; this command measures on the CPU. "
            "memplan.fuse itself takes them, where that is experimental"
        )


def _own_lines(caught: list[warnings.WarningMessage]) -> list[str]:
    """What memplan.fuse warned of, each on one line."""
    lines = [" ".join(str(each.message).split()) for each in caught]
    return [line for line in lines if line.startswith("memplan.fuse: ")]


def _turns(runs: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    turns: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS):
        for name in sorted(runs, reverse=number % 2 == 1):
            (took,) = in_turns([runs[name]], enough=TURN_SECONDS, least=(1, 1))
            turns[name].append(median(took))
    return turns


def _ratios(turns: dict[str, list[float]]) -> dict[str, float]:
    if "memplan" not in turns:
        return {}
    paired = [a / b for a, b in zip(turns["eager"], turns["memplan"], strict=True)]
    return {"min": min(paired), "median": median(paired), "max": max(paired)}
