"""Measuring runs of torch: their activations' peak, and how far results differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

TINY = 1e-30  # what values are compared with where all of them are 0

Run = Callable[[], Any]

MEMORY = "[memory]"  # the profiler's name for events of its allocators


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
    for event in events_of(run):
        if event.name() == MEMORY:
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def events_of(run: Run) -> list[Any]:
    """The profiler's events of a run on the CPU, allocations among them, in order."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it tells every start and stop
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    del result
    events = profiler.profiler.kineto_results.events()
    return sorted(events, key=lambda event: int(event.start_ns()))


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
