"""Measure the activations of runs, and the temporaries of operators."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import torch

from memplan.garbage import no_collections
from memplan.graph.arguments import arguments_of
from memplan.graph.infer import meta_of
from memplan.graph.liveness import roots_of, storage_bytes
from memplan.graph.program import (
    Bound,
    Loop,
    Meta,
    Metas,
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
        """Bytes that live only while `op` runs, in a loop's body of its present
        iteration. What cannot be measured is taken from `memplan.graph.workspace`."""
        result = program.metas[op.name]
        made = [result] if isinstance(result, Meta) else result
        metas = [*(program.metas[name] for name in op.operands()), *made]
        on_cpu = all(isinstance(meta, Meta) and meta.device == "cpu" for meta in metas)
        schema = getattr(op.target, "_schema", None)
        if not on_cpu or (schema is not None and schema.is_mutable):
            return temporaries(program, op)
        try:
            return self._run(program, op)
        except (RuntimeError, IndexError):  # of memory, dtypes, or values that are zero
            return temporaries(program, op)

    def _run(self, program: Program, op: Op) -> int:
        names = list(dict.fromkeys(op.operands()))
        metas = [program.metas[name] for name in names]
        known = [self._weights.get(name) for name in names]
        required = [self._requires_grad(program, name) for name in names]
        args, kwargs = mapped(
            (op.args, op.kwargs),
            lambda at: (
                at.at(program.ranges)
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
            given = _one_group(replace(op, args=args, kwargs=kwargs), given)
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


def _one_group(op: Op, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """The operands of a product of each row with its group's matrix, with all rows in
    the first group: of none at all it makes nothing. Those of others as they are.

    op: its Refs are numbers of operands.
    """
    arguments = arguments_of(op)
    plain = [each.dim() for each in given] == [2, 3, 1]
    if not plain or arguments.get("offs") != Ref("2"):
        return given
    size = arguments.get("stop", len(given[0]))
    return [*given[:2], torch.full_like(given[2], size)]


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


EDGE = 16  # iterations at either end that are told apart


def iterations(loop: Loop) -> Iterator[Program]:
    """A loop's body as its different iterations have it: the one that it describes,
    those at either end whose windows are cut off there, so that they are padded, EDGE
    of them at most, and the last two, of which one may be shorter."""
    windows = {
        window
        for moving in loop.body.moving.values()
        for window in moving.values()
        if window.loop == loop.name
    }
    ends = [1]  # in chunks
    ends += [ceil(each.before / each.ratio / loop.step) for each in windows]
    ends += [ceil(each.after / each.ratio / loop.step) + 1 for each in windows]
    starts = range(0, loop.extent, loop.step)
    near = min(EDGE, max(ends))
    spans = [loop.body.ranges[loop.name]]
    spans += [
        (start, min(start + loop.step, loop.extent))
        for start in (*starts[:near], *starts[-max(2, near) :])
    ]
    for span in dict.fromkeys(spans):  # one after the other: they are large
        yield _within(loop.body, {**loop.body.ranges, loop.name: span})


def _within(body: Program, ranges: Ranges) -> Program:
    """A loop's body while it and the loops around it cover the ranges given."""
    if ranges == body.ranges:
        return body
    ops = [
        replace(step, body=_within(step.body, {**step.body.ranges, **ranges}))
        if isinstance(step, Loop)
        else step
        for step in body.ops
    ]
    made = {name for step in body.ops for name in results(step)}
    metas = {name: _at(body, name, ranges, made) for name in body.metas}
    return replace(body, ops=ops, metas=metas, ranges=dict(ranges))


def _at(program: Program, name: str, ranges: Ranges, made: Container[str]) -> Metas:
    """A value's Meta while each loop covers the range given. made: by the program."""
    meta, moving = program.metas[name], program.moving.get(name)
    if not moving or not isinstance(meta, Meta):
        return meta
    shape, strides = list(meta.shape), list(meta.strides)
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
