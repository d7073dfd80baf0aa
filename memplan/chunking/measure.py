"""Measuring a model for real: its activations' peak, its time, its results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

REPEATS = 5
ENOUGH_SECONDS = 10.0  # of timing one model; slow ones get fewer repeats, at least 3

TOLERANCE = 1e-5  # of single precision
TINY = 1e-30  # what values are compared with where all of them are 0

Run = Callable[[], Any]


def activation_peak(run: Run, device: str = "cpu") -> int:
    """Bytes that `run` allocates beyond what is there, at their peak.

    On the CPU by the allocator's own events, its results included; on CUDA by the
    allocator's statistics.
    """
    import torch

    with torch.no_grad():
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            result = run()
            torch.cuda.synchronize(device)
            del result
            return int(torch.cuda.max_memory_allocated(device)) - int(before)
        return _events_peak(run)


def _events_peak(run: Run) -> int:
    now = peak = 0
    for event in _events(run):
        if event.name() == MEMORY:
            now += event.nbytes()
            peak = max(peak, now)
    return peak


MEMORY = "[memory]"
MARK = "memplan: "


def _events(run: Run) -> list[Any]:
    """The profiler's events of a run on the CPU, allocations among them, in order."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it tells every start and stop
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    del result
    events = profiler.profiler.kineto_results.events()
    return sorted(events, key=lambda event: int(event.start_ns()))


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
            events = _events(lambda: inputs.run(model))
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
        start = time.perf_counter()
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return time.perf_counter() - start


def paired(first: Run, second: Run, device: str = "cpu") -> Paired:
    """Time two runs in turns, after each has run once."""
    began = time.perf_counter()
    for run in (first, second):
        run_seconds(run, device)
    times: list[tuple[float, float]] = []
    while len(times) < REPEATS:
        times.append((run_seconds(first, device), run_seconds(second, device)))
        if len(times) >= 3 and time.perf_counter() - began > ENOUGH_SECONDS:
            break
    one, other = (median(each) for each in zip(*times, strict=True))
    return Paired(one, other, other / one, len(times))


def relative_error(
    expected: Any, found: Any, least: Sequence[float] | None = None
) -> float:
    """The largest difference of two nests of tensors, over the largest value there.

    least: of each leaf, what it is compared with at least, in place of its largest
    value. 0.0 for the same bits; NaN and infinities must stand in the same places,
    otherwise, and where shapes, dtypes or plain values differ, it is infinite.
    """
    from torch.utils._pytree import tree_leaves

    left, right = tree_leaves(expected), tree_leaves(found)
    if len(left) != len(right):
        return float("inf")
    least = least or [TINY] * len(left)
    pairs = zip(left, right, least, strict=True)
    return max((_difference(a, b, scale) for a, b, scale in pairs), default=0.0)


def _difference(expected: Any, found: Any, least: float) -> float:
    import torch

    if not isinstance(expected, torch.Tensor):
        return 0.0 if expected == found else float("inf")
    if not isinstance(found, torch.Tensor) or (
        (expected.shape, expected.dtype, expected.device)
        != (found.shape, found.dtype, found.device)
    ):
        return float("inf")
    if torch.equal(expected, found) or not expected.numel():
        return 0.0
    if expected.is_complex():
        real = torch.view_as_real
        return _difference(real(expected), real(found), least)
    if not expected.is_floating_point():
        return float("inf")
    return _of_finite(expected.double(), found.double(), least)


def _of_finite(left: Any, right: Any, least: float) -> float:
    finite = left.isfinite()
    if not bool((finite == right.isfinite()).all()):
        return float("inf")
    # NaN becomes 0 here, and infinities the largest numbers of their sign.
    odd, other = left[~finite].nan_to_num(), right[~finite].nan_to_num()
    if not bool((odd == other).all()):
        return float("inf")
    left, right = left[finite], right[finite]
    if not left.numel():
        return 0.0
    return float((left - right).abs().max()) / max(float(left.abs().max()), least)


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


def other_inputs(inputs: list[Any], seed: int) -> list[Any]:
    """Inputs of the same shapes with other values: noise for floating-point tensors,
    the same values in another order for others, which may be indices."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    changed = []
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            changed.append(value)
        elif value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            changed.append(noise.to(value.dtype).to(value.device))
        else:
            order = torch.randperm(value.numel(), generator=generator)
            flat = value.reshape(-1)[order.to(value.device)]
            changed.append(flat.reshape(value.shape))
    return changed
