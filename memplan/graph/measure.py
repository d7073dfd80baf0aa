"""Measure the activations of runs, and the temporaries of operators."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from memplan.garbage import no_collections
from memplan.graph.infer import meta_of
from memplan.graph.liveness import roots_of, storage_bytes
from memplan.graph.program import (
    Bound,
    Meta,
    Op,
    Program,
    Ranges,
    Ref,
    mapped,
    results,
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
    with torch.no_grad(), no_collections():
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
    with torch.no_grad(), no_collections():
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


class Observed:
    """Temporaries of operators on a CPU, measured once for each operator and sizes.

    Which buffers an operator makes depends on the kernel that torch or its libraries
    select for the machine, sizes, layouts and dtype; no rule predicts that for all.
    weights: the program's constants, by value, with which operators are run: torch
    takes other kernels for those that require gradients.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        self._weights = weights or {}
        self._seen: dict[str, int] = {}

    def temporaries(self, program: Program, op: Op) -> int:
        """Bytes that live only while `op` runs: of a loop, in the first iteration
        (where windows are padded), the last (where causal attention has most keys) or
        another. What cannot be measured is taken from `memplan.graph.workspace`."""
        result = program.metas[op.name]
        made = [result] if isinstance(result, Meta) else result
        metas = [*(program.metas[name] for name in op.operands()), *made]
        on_cpu = all(isinstance(meta, Meta) and meta.device == "cpu" for meta in metas)
        schema = getattr(op.target, "_schema", None)
        if not on_cpu or (schema is not None and schema.is_mutable):
            return temporaries(program, op)
        try:
            return max(self._run(program, op, each) for each in _iterations(program))
        except (RuntimeError, IndexError):  # of memory, dtypes, or values that are zero
            return temporaries(program, op)

    def _run(self, program: Program, op: Op, ranges: Ranges) -> int:
        names = list(dict.fromkeys(op.operands()))
        metas = [_at(program, name, ranges) for name in names]
        known = [self._weights.get(name) for name in names]
        required = [self._requires_grad(program, name) for name in names]
        args, kwargs = mapped(
            (op.args, op.kwargs),
            lambda at: (
                at.at(ranges)
                if isinstance(at, Bound)
                else Ref(f"{names.index(at.name)}")
            ),
        )
        key = repr((op.key, args, kwargs, metas, required))
        if key not in self._seen:
            given = [
                _zeros(meta).requires_grad_(needed) if weight is None else weight
                for meta, weight, needed in zip(metas, known, required, strict=True)
            ]
            args, kwargs = mapped(
                (args, kwargs),
                lambda at: given[int(at.name)] if isinstance(at, Ref) else at,
            )
            self._seen[key] = _seen(lambda: op.target(*args, **kwargs))
        return self._seen[key]

    def _requires_grad(self, program: Program, name: str) -> bool:
        """Whether a value is a weight that requires gradients, or a view of one."""
        if not program.metas[name].dtype.is_floating_point:
            return False
        found = (self._weights.get(root) for root in roots_of(program, name))
        return any(weight is not None and weight.requires_grad for weight in found)


def _zeros(meta: Meta) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype).zero_()


def _seen(run: Callable[[], torch.Tensor | Sequence[torch.Tensor]]) -> int:
    with torch.no_grad():
        result = run()
        made = [result] if isinstance(result, torch.Tensor) else result
        sizes = [(_address(each), storage_bytes(meta_of(each))) for each in made]
        own: dict[int, int] = {}  # of each storage, that of the largest result in it
        for place, size in sizes:
            own[place] = max(size, own.get(place, 0))
        del result, made
        peak = activation_peak(run)
    return max(0, peak - sum(own.values()))


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _iterations(program: Program) -> list[Ranges]:
    """The iteration of a loop's body that its metas describe, the first, the last."""
    first, last = {}, dict(program.ranges)
    for loop, (start, stop) in program.ranges.items():
        windows = {w for own in program.moving.values() for w in own.values()}
        exact = (w for w in windows if w.loop == loop and not w.before and not w.after)
        extent = next((int(w.size / w.ratio) for w in exact), stop)
        first[loop] = 0, stop - start
        last[loop] = extent - (stop - start), extent
    return [program.ranges, first, last]


def _at(program: Program, name: str, ranges: Ranges) -> Meta:
    """A value's Meta while each loop covers the range given."""
    meta: Meta = program.metas[name]
    moving = program.moving.get(name)
    if not moving:
        return meta
    shape, strides = list(meta.shape), list(meta.strides)
    made = {each for step in program.ops for each in results(step)}
    own = all(root.partition("[")[0] in made for root in roots_of(program, name))
    for dim, window in moving.items():
        low, high = window.at(ranges)
        # What the body makes is as large as its slice; of other memory it is a part.
        span = meta.strides[dim] * meta.shape[dim]
        for i, stride in enumerate(meta.strides):
            if own and i != dim and span and stride >= span and not stride % span:
                strides[i] = strides[i] * (high - low) // meta.shape[dim]
        shape[dim] = high - low
    return meta._replace(shape=tuple(shape), strides=tuple(strides))
