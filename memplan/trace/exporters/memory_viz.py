"""PyTorch's memory snapshot, written: what torch.cuda._memory_viz and its page read.

Plain data only, in protocol 4: the page knows no later one. What a trace does not know
is not made up: its segments are the stretches of addresses that blocks ever covered.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from memplan.arrays import Int64Array
from memplan.errors import InputError
from memplan.files import PathLike, atomic_write
from memplan.trace.importers.snapshot_history import REQUESTED
from memplan.trace.lives import lives_of
from memplan.trace.stacks import NO_STACK, Frame, StackTable
from memplan.trace.trace import Action, Mark, Trace

PROTOCOL = 4
LARGE = 1 << 20  # bytes; the allocator keeps larger segments apart
_NAMES = {
    Action.ALLOC: "alloc",
    Action.FREE_REQUESTED: "free_requested",
    Action.FREE_COMPLETED: "free_completed",
    Action.OOM: "oom",
}
_Frames = Callable[[int], list[dict[str, object]]]
_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)


def write_memory_viz(trace: Trace, path: PathLike) -> None:
    """Write `trace` to `path` as a pickled snapshot, atomically.

    Steps become annotations. Raises InputError for a device that is negative.
    """
    with atomic_write(path) as stream:
        pickle.dump(to_snapshot(trace), stream, protocol=PROTOCOL)


def to_snapshot(trace: Trace) -> dict[str, Any]:
    """The snapshot: dicts, lists, texts and numbers, as torch's own has them."""
    events = trace.events
    if len(events) and int(events.device.min()) < 0:
        problem = "an event's device is negative; a snapshot has no place for it"
        raise InputError(problem)
    devices = int(events.device.max(initial=0)) + 1
    histories: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
    frames = _frames_of(trace.stacks)
    announced = (events.action == Action.FREE_REQUESTED).any()
    begun = np.maximum.accumulate(events.time_ns) // 1000
    columns = (
        *(events.action, events.device, events.address, events.size),
        *(events.requested_size, events.stream, events.stack, begun),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for action, device, address, size, requested, cuda_stream, stack, time in rows:
        name = _NAMES.get(action)
        if name is None or (address == 0 and action in _FREES):
            continue  # what has no bytes has no block that is freed
        if not trace.info.history:
            continue  # what is live is in the segments
        entry = {"action": name, "addr": address, "size": size, "stream": cuda_stream}
        entry |= {"time_us": time, "frames": frames(stack)}
        if action == Action.ALLOC:
            entry[REQUESTED] = requested  # torch leaves it out, and rounds it
        elif action == Action.OOM:
            del entry["addr"]
            entry["device_free"] = 0
        elif action == Action.FREE_COMPLETED and not announced:
            histories[device].append({**entry, "action": "free_requested"})
        histories[device].append(entry)
    return {
        "segments": _segments(trace, frames),
        "device_traces": histories,
        "allocator_settings": {},
        "external_annotations": _annotations(trace, begun),
    }


def _frames_of(stacks: StackTable) -> _Frames:
    """The frames of a stack by its index, innermost first, as a list of dicts.

    What is shared is made once, and so written once.
    """

    @functools.cache
    def entry(frame: Frame) -> dict[str, object]:
        return {"filename": frame.filename, "line": frame.line, "name": frame.name}

    @functools.cache
    def frames(stack: int) -> list[dict[str, object]]:
        return [entry(frame) for frame in stacks[stack]]

    return frames


def _annotations(trace: Trace, times: Int64Array) -> list[dict[str, object]]:
    """One for the begin of every step."""
    events = trace.events
    steps = np.flatnonzero((events.action == Action.STEP) & (events.mark != Mark.NONE))
    return [
        {"stage": "START", "name": f"step {k}", "device": 0, "time_us": int(times[row])}
        for k, row in enumerate(steps.tolist(), 1)
    ]


def _segments(trace: Trace, frames: _Frames) -> list[dict[str, Any]]:
    """Stretches of addresses that blocks ever covered, and what was live at the end."""
    events = trace.events
    made = np.flatnonzero((events.action == Action.ALLOC) & (events.size > 0))
    live = np.ones(len(events), dtype=np.bool_)
    live[lives_of(trace).pairs[0]] = False
    found = []
    for device in np.unique(events.device[made]).tolist():
        rows = made[events.device[made] == device]
        rows = rows[np.argsort(events.address[rows], kind="stable")]
        begin = events.address[rows]
        end = np.maximum.accumulate(begin + events.size[rows].astype(np.uint64))
        apart = np.append(0, np.flatnonzero(begin[1:] > end[:-1]) + 1)
        for first, last in zip(apart, np.append(apart[1:], len(rows)), strict=True):
            inside = rows[first:last]
            there, stop = inside[live[inside]], int(end[last - 1])
            found.append(_segment(trace, frames, inside, there, stop))
    return found


def _segment(
    trace: Trace, frames: _Frames, rows: Int64Array, live: Int64Array, end: int
) -> dict[str, Any]:
    """A segment that covers `rows`; of `live`, later blocks hide those beneath them."""
    events = trace.events
    base = at = int(events.address[rows[0]])
    stack = frames(NO_STACK)
    blocks: list[dict[str, object]] = []

    def add(until: int, state: str, requested: int, called: list[Any]) -> None:
        nonlocal at
        if until > at:
            block = {"address": at, "size": until - at, "requested_size": requested}
            blocks.append({**block, "state": state, "frames": called})
            at = until

    allocated = 0
    for row in live.tolist():
        address, size = int(events.address[row]), int(events.size[row])
        if address < at:
            continue  # its free was missed, and something else lies there
        add(address, "inactive", 0, stack)
        requested = int(events.requested_size[row])
        add(address + size, "active_allocated", requested, frames(events.stack[row]))
        allocated += size
    add(end, "inactive", 0, stack)
    size = end - base
    return {
        "device": int(events.device[rows[0]]),
        "address": base,
        "total_size": size,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(int(str(b["requested_size"])) for b in blocks),
        "stream": int(events.stream[rows[0]]),
        "segment_type": "large" if size > LARGE else "small",
        "segment_pool_id": [0, 0],
        "is_expandable": False,
        "frames": stack,
        "blocks": blocks,
    }
