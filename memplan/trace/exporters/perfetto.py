"""Chrome's trace events as JSON, which Perfetto and chrome://tracing show.

A counter of live bytes for each device, its steps as slices, and every buffer as an
asynchronous slice from its allocation to its free.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

import numpy as np

from memplan.arrays import Float64Array, Int64Array
from memplan.files import PathLike, atomic_write
from memplan.trace.lives import lives_of
from memplan.trace.trace import Action, Columns, Trace
from memplan.units import format_bytes

_STEPS, _BUFFERS = 1, 2  # threads, as the format calls its tracks


def write_perfetto(trace: Trace, path: PathLike) -> None:
    """Write `trace` to `path` as Chrome's JSON, atomically. Times are microseconds."""
    with atomic_write(path) as stream:
        stream.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, event in enumerate(_events(trace)):
            text = json.dumps(event, separators=(",", ":"))
            stream.write(b",\n" * bool(number) + text.encode("ascii"))
        stream.write(b"\n]}\n")


def _events(trace: Trace) -> Iterator[dict[str, object]]:
    events = trace.events
    times = np.maximum.accumulate(events.time_ns) / 1000
    name = trace.info.program.script or "memplan"
    for device in np.unique(events.device).tolist() or [0]:
        yield _named("process_name", device, 0, f"{name}, device {device}")
        yield _named("thread_name", device, _STEPS, "steps")
        yield _named("thread_name", device, _BUFFERS, "buffers")
    yield from _steps(events, lives_of(trace).bounds, times)
    yield from _buffers(trace, times)


def _named(what: str, process: int, thread: int, name: str) -> dict[str, object]:
    where = {"ph": "M", "pid": process, "tid": thread}
    return {"name": what, **where, "args": {"name": name}}


def _steps(
    events: Columns, rows: Int64Array, times: Float64Array
) -> Iterator[dict[str, object]]:
    if not len(rows):
        return
    ends = np.append(times[rows[1:]], times[-1])
    for number, (row, end) in enumerate(zip(rows.tolist(), ends, strict=True), 1):
        begin, device = float(times[row]), int(events.device[row])
        named = {"name": f"step {number}", "cat": "step", "ph": "X", "pid": device}
        yield {**named, "tid": _STEPS, "ts": begin, "dur": float(end) - begin}


def _buffers(trace: Trace, times: Float64Array) -> Iterator[dict[str, object]]:
    """Allocations, frees and failed requests; after each of the first what is live."""
    events = trace.events
    made, freed = lives_of(trace).pairs
    owner = np.full(len(events), -1, dtype=np.int64)
    owner[freed] = made
    live: dict[int, int] = {}

    @functools.cache
    def called(stack: int) -> dict[str, str]:
        """The stack in words, innermost call first; nothing where it is not known."""
        calls = [f"{f.name} ({f.filename}:{f.line})" for f in trace.stacks[stack]]
        return {"stack": "\n".join(calls)} if calls else {}

    columns = (events.action, events.device, events.requested_size, events.stack)
    rows = zip(*(c.tolist() for c in (*columns, owner)), times.tolist(), strict=True)
    sizes = events.requested_size.tolist()
    for row, (action, device, size, stack, block, time) in enumerate(rows):
        where = {"pid": device, "tid": _BUFFERS, "ts": time}
        if action == Action.OOM:
            words = f"out of memory: {format_bytes(size)}"
            yield {"name": words, "cat": "oom", "ph": "i", "s": "g", **where}
            continue
        if action == Action.ALLOC and size:
            change, begins, number = size, "b", row
        elif action == Action.FREE_COMPLETED and block >= 0 and sizes[block]:
            change, begins, number = -sizes[block], "e", block
        else:
            continue
        live[device] = live.get(device, 0) + change
        slice_ = {"cat": "buffer", "ph": begins, "id": number, **where}
        if change > 0:
            told = {"bytes": size} | called(stack)
            yield {"name": format_bytes(size), **slice_, "args": told}
        else:
            yield {"name": format_bytes(-change), **slice_}
        counter = {"ph": "C", "pid": device, "ts": time}
        yield {"name": "live bytes", **counter, "args": {"bytes": live[device]}}
