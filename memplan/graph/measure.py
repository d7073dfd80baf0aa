"""Measure the activations of runs, and the temporaries of operators."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

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

Run = Callable[[], object]

MEMORY = "[memory]"  # the profiler's name for events of its allocators


def activation_peak(run: Run, device: str = "cpu") -> int:
    """Bytes that `run` allocates beyond what is there, at their peak.

    On the CPU see `footprint`; on CUDA by the allocator's statistics.
    """
    if not device.startswith("cuda"):
        return footprint(run).peak
    with torch.no_grad():
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = run()
        torch.cuda.synchronize(device)
        del result
        return int(torch.cuda.max_memory_allocated(device)) - int(before)


class Footprint(NamedTuple):
    """What a run asks the CPU's allocator for: bytes that it allocates beyond what is
    there, at their peak, and how often it asks."""

    peak: int
    requests: int


def footprint(run: Run) -> Footprint:
    """Of a run on the CPU, by the allocator's own events, its results included."""
    now = peak = requests = 0
    with torch.no_grad():
        events = events_of(run)
    for event in events:
        if event.name() == MEMORY:
            now += event.nbytes()
            peak = max(peak, now)
            requests += event.nbytes() > 0
    return Footprint(peak, requests)


def events_of(run: Run) -> list[Any]:
    """The profiler's events of a run on the CPU, allocations among them, in order."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it tells every start and stop
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    del result
    events = profiler.profiler.kineto_results.events()
    return sorted(events, key=lambda event: int(event.start_ns()))


OBSERVED = {"aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution"}
OBSERVED |= {f"aten.conv_transpose{n}d" for n in (1, 2, 3)}
OBSERVED |= {"windowed_conv", "windowed_transposed_conv", "windowed_linear"}


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
