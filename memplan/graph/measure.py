"""Measure runs of torch: time, peak of activations, and how far results differ."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from memplan.graph.liveness import storage_bytes
from memplan.graph.program import (
    Argument,
    Bound,
    Meta,
    Op,
    Program,
    Ranges,
    Ref,
    mapped,
)
from memplan.graph.workspace import temporaries

if TYPE_CHECKING:
    from torch import Tensor

TINY = 1e-30  # what values are compared with where all of them are 0

Run = Callable[[], object]
Result = TypeVar("Result")

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
    expected: object, found: object, least: Sequence[float] | None = None
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


def _difference(expected: object, found: object, least: float) -> float:
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


def _of_finite(left: Tensor, right: Tensor, least: float) -> float:
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


def other_inputs(inputs: list[object], seed: int) -> list[object]:
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


def clock() -> Callable[[], float]:
    """Processor time if torch uses one thread, else wall-clock time."""
    import torch

    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def timed(run: Callable[[], Result], device: str = "cpu") -> tuple[Result, float]:
    """What a run returns, and its seconds; on a GPU, until it is done."""
    import torch

    now = clock() if device == "cpu" else time.perf_counter
    start = now()
    result = run()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return result, now() - start


OBSERVED = {"aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution"}
OBSERVED |= {"windowed_conv"}


class Observed:
    """Temporaries of operators, measured once for each operator and sizes.

    Which buffers a convolution makes depends on the kernel that its library selects for
    the machine, sizes and layouts; no rule predicts that for all of them.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def temporaries(self, program: Program, op: Op) -> int:
        """Bytes that live only while `op` runs.

        A convolution on a CPU is measured, in the first iteration of a loop (which
        pads) and in another; `memplan.graph.workspace` knows the other operators.
        """
        metas = [program.metas[name] for name in op.operands()]
        if op.key not in OBSERVED or metas[0].device != "cpu":
            return temporaries(program, op)
        first = {loop: (0, stop - at) for loop, (at, stop) in program.ranges.items()}
        try:
            return max(
                self._run(program, op, ranges) for ranges in (program.ranges, first)
            )
        except RuntimeError:  # torch lacks the memory, or a kernel for the dtype
            return temporaries(program, op)

    def _run(self, program: Program, op: Op, ranges: Ranges) -> int:
        metas = {name: _at(program, name, ranges) for name in op.operands()}
        numbers = mapped(
            (op.args, op.kwargs),
            lambda at: at.at(ranges) if isinstance(at, Bound) else at,
        )
        key = repr((op.key, numbers, list(metas.values())))
        if key not in self._seen:
            self._seen[key] = _seen(op, numbers, metas)
        return self._seen[key]


def _seen(op: Op, numbers: Argument, metas: dict[str, Meta]) -> int:
    import torch

    given = {
        name: torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype).zero_()
        for name, meta in metas.items()
    }
    args, kwargs = mapped(
        numbers, lambda at: given[at.name] if isinstance(at, Ref) else at
    )
    with torch.no_grad():
        result = op.target(*args, **kwargs)
        own = Meta(tuple(result.shape), result.stride(), result.dtype, "cpu")
        del result
        peak = activation_peak(lambda: op.target(*args, **kwargs))
    return max(0, peak - storage_bytes(own))


def _at(program: Program, name: str, ranges: Ranges) -> Meta:
    """A value's Meta while each loop covers the range given."""
    meta: Meta = program.metas[name]
    shape = list(meta.shape)
    for dim, window in program.moving.get(name, {}).items():
        low, high = window.at(ranges)
        shape[dim] = high - low
    return meta._replace(shape=tuple(shape))
