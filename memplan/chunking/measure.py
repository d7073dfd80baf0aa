"""Measuring a model for real: its time, levels of its activations, its tolerance."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from memplan.graph.clock import timed
from memplan.graph.measure import MEMORY, Run, events_of

LEAST, REPEATS, MOST = 3, 5, 25  # pairs: of slow models, of others, of short ones
ENOUGH_SECONDS = 10.0  # of timing one model, after which there are only LEAST
SHORT_SECONDS = 0.2  # within which there are more than REPEATS

TOLERANCE = 1e-5  # of single precision
MARK = "memplan: "


def levels_at(model: Any, inputs: Any, paths: list[str]) -> dict[str, int]:
    """Bytes of activations live where each of some submodules is called, at most.

    inputs: an Inputs, of `memplan.chunking.trial`. 0 for devices other than the CPU,
    and for those that are not called.
    """
    import torch

    def mark(path: str) -> Any:
        def hook(*_: Any) -> None:
            with torch.profiler.record_function(MARK + path):
                pass

        return hook

    handles = [
        model.get_submodule(path).register_forward_pre_hook(mark(path))
        for path in paths
    ]
    levels = dict.fromkeys(paths, 0)
    now = 0
    try:
        with torch.no_grad():
            kept = inputs.kept(model)
            events = events_of(lambda: inputs.run(model))
            kept.restore()
    finally:
        for handle in handles:
            handle.remove()
    for event in events:
        name = event.name()
        if name == MEMORY:
            now += event.nbytes()
        elif name.startswith(MARK):
            path = name.removeprefix(MARK)
            levels[path] = max(levels[path], now)
    return levels


@dataclass(frozen=True)
class Paired:
    """Seconds of two runs that alternated, and the ratio, second over first.

    ratio: of the medians over all pairs. samples: how many pairs.
    """

    first: float
    second: float
    ratio: float
    samples: int


def run_seconds(run: Run, device: str = "cpu") -> float:
    """Seconds of one run, until the device is done with it."""
    import torch

    with torch.no_grad():
        return timed(run, device)[1]


def paired(first: Run, second: Run, device: str = "cpu") -> Paired:
    """Time two runs in turns, after each has run once: REPEATS times, less often if
    they are slow, and more often if they are short."""
    began = time.perf_counter()
    for run in (first, second):
        run_seconds(run, device)
    times: list[tuple[float, float]] = []
    while len(times) < MOST:
        times.append((run_seconds(first, device), run_seconds(second, device)))
        took = time.perf_counter() - began
        enough = ENOUGH_SECONDS if len(times) < REPEATS else SHORT_SECONDS
        if len(times) >= LEAST and took > enough:
            break
    one, other = (median(each) for each in zip(*times, strict=True))
    return Paired(one, other, other / one, len(times))


def tolerance(dtypes: set[Any]) -> float:
    """The largest relative error that counts as the same result, by the coarsest of
    the results' types: ten times what one rounding may make, and 1e-5 for float32."""
    import torch

    coarsest = max(
        (torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point),
        default=0.0,
    )
    return (
        max(1e-5, 10 * coarsest)
        if coarsest > 1e-6
        else 1e-5
        if coarsest > 1e-12
        else 1e-12
    )
