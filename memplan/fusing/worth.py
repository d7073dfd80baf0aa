"""What fusing a model was worth: time, memory and errors, beside the model itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from memplan.fusing.bench.record import spread
from memplan.fusing.summary import peak_bytes
from memplan.graph.measure import relative_error

MOST_CALLS = 30  # in one turn
TURN_SECONDS = 0.15

Run = Callable[[], Any]


@dataclass(frozen=True)
class Worth:
    """Of the model ("eager") and of what stands in its place ("memplan").

    seconds: medians over rounds. ratios: what the model took over what memplan took in
    the same round: "min", "median" and "max", above 1 where memplan is faster; empty
    without it. error: see `relative_error`. peaks: bytes of activations, see
    `summary.peak_bytes`.
    """

    seconds: dict[str, float]
    ratios: dict[str, float]
    error: float | None
    peaks: dict[str, int]


def worth(
    model: Any, fused: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rounds: int
) -> Worth:
    """A model beside the same of `memplan.fuse`, in turns that alternate who is first.

    fused: None where the model runs as it was: then it is alone. Without gradients.
    """
    import torch

    runs: dict[str, Run] = {"eager": lambda: model(*args, **kwargs)}
    if fused is not None:
        runs["memplan"] = lambda: fused(*args, **kwargs)
    turns: dict[str, list[float]] = {name: [] for name in runs}
    error: float | None = None
    with torch.no_grad():
        if fused is not None:
            error = relative_error(runs["eager"](), runs["memplan"]())
        for number in range(rounds):
            for name in sorted(runs, reverse=number % 2 == 1):
                turns[name].append(turn(runs[name]))
        peaks = {
            name: peak_bytes(run, fused if name == "memplan" else None)
            for name, run in runs.items()
        }
    seconds = {name: median(each) for name, each in turns.items()}
    ratios = {} if fused is None else spread(turns["eager"], turns["memplan"])
    return Worth(seconds, ratios, error, peaks)


def turn(run: Run) -> float:
    """Seconds of one call: the median of some, after one that fills the caches."""
    run()
    found: list[float] = []
    while len(found) < MOST_CALLS and sum(found) < TURN_SECONDS:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return median(found)
