"""A model fused and looked at: what became of it, and what that was worth."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memplan.errors import InputError
from memplan.factory import blaming
from memplan.fusing.fuse import fuse
from memplan.fusing.guards import unfit
from memplan.fusing.options import FuseOptions
from memplan.fusing.summary import Summary, summary
from memplan.fusing.traffic import copy_bandwidth
from memplan.fusing.worth import Worth, worth

_RUNS_AS_IT_WAS = "the model runs as it was: "  # the summary says that, too


@dataclass(frozen=True)
class Examined:
    """A model, by the name of its class, on inputs of one shape.

    first_call: seconds of the fused model's first call. bandwidth: bytes read and
    written a second by a copy. said: warnings on the way, a line each.
    """

    name: str
    summary: Summary
    worth: Worth
    first_call: float
    bandwidth: float
    threads: int
    torch: str
    said: list[str]


def examine(
    model: Any, inputs: Any, options: FuseOptions | None = None, rounds: int = 5
) -> Examined:
    """Fuse `model` for `inputs`, and measure it beside itself in so many rounds.

    inputs: a tuple or list of arguments, a mapping of keyword arguments, or one tensor.
    Raises InputError if the model fails on them, or if they are not on the CPU.
    """
    import torch

    args, kwargs = _arguments(inputs)
    _refuse_other_devices([*args, *kwargs.values()])
    with torch.no_grad():
        with blaming("the model fails on these inputs"):
            model(*args, **kwargs)
        fused = fuse(model, options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.perf_counter()
            fused(*args, **kwargs)
            first_call = time.perf_counter() - start
        found = summary(fused)
        if not found.parts and not found.reason:
            found = replace(found, reason=_reason(caught, model, args, kwargs))
        changed = None if found.status == "unchanged" else fused
        measured = worth(model, changed, args, kwargs, rounds)
    return Examined(
        type(model).__name__,
        found,
        measured,
        first_call,
        copy_bandwidth(),
        torch.get_num_threads(),
        torch.__version__,
        [
            line
            for line in _said(caught)
            if found.reason not in line or not found.reason
        ],
    )


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _refuse_other_devices(values: list[Any]) -> None:
    devices = {str(value.device) for value in values if hasattr(value, "device")}
    other = sorted(devices - {"cpu"})
    if other:
        raise InputError(
            f"the inputs are on {other[0]}, and measured is on the CPU; "
            "memplan.fuse itself takes them, where that is experimental"
        )


def _reason(
    caught: list[warnings.WarningMessage],
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> str:
    """Why no program was made for a call."""
    told = [line for line in _lines(caught) if _RUNS_AS_IT_WAS in line]
    if told:
        return told[-1].partition(_RUNS_AS_IT_WAS)[2]
    return unfit(model, args, kwargs)


def _said(caught: list[warnings.WarningMessage]) -> list[str]:
    lines = [line for line in _lines(caught) if _RUNS_AS_IT_WAS not in line]
    return list(dict.fromkeys(line.partition(": ")[2] for line in lines))


def _lines(caught: list[warnings.WarningMessage]) -> list[str]:
    lines = [" ".join(str(each.message).split()) for each in caught]
    return [line for line in lines if line.startswith("memplan.fuse: ")]
