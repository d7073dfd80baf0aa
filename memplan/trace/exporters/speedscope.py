"""Speedscope's JSON: who asked for what is live at the peak, and for all of it."""

from __future__ import annotations

import json

import numpy as np

from memplan.arrays import Int64Array
from memplan.files import PathLike, atomic_write
from memplan.trace.lives import lives_of
from memplan.trace.stacks import Frame
from memplan.trace.trace import Trace
from memplan.version import __version__

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNKNOWN = Frame("", 0, "unknown")


def write_speedscope(trace: Trace, path: PathLike) -> None:
    """Write `trace` to `path` as speedscope's JSON, atomically.

    Two profiles of bytes by stack: what is live at the first peak, and all that was
    ever asked for. What has no stack is "unknown".
    """
    events = trace.events
    lives = lives_of(trace)
    stack = events.stack[lives.row].astype(np.int64)
    there = lives.live_rows(lives.peak_row)
    frames: dict[Frame, int] = {}
    profiles = [
        _profile("live at the peak", stack[there], lives.size[there], trace, frames),
        _profile("all that was asked for", stack, lives.size, trace, frames),
    ]
    document = {
        "$schema": _SCHEMA,
        "name": trace.info.program.script or "memory",
        "exporter": f"memplan {__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": [_entry(frame) for frame in frames]},
        "profiles": profiles,
    }
    with atomic_write(path) as stream:
        stream.write(json.dumps(document, separators=(",", ":")).encode("ascii"))


def _profile(
    name: str,
    stack: Int64Array,
    size: Int64Array,
    trace: Trace,
    frames: dict[Frame, int],
) -> dict[str, object]:
    """Bytes by stack, the largest first."""
    numbers, where = np.unique(stack, return_inverse=True)
    sums = np.zeros(len(numbers), dtype=np.int64)
    np.add.at(sums, where, size)
    order = np.argsort(-sums, kind="stable").tolist()
    # Numbers of frames, outermost call first.
    samples = [
        [frames.setdefault(f, len(frames)) for f in reversed(calls or (_UNKNOWN,))]
        for calls in (trace.stacks[int(numbers[k])] for k in order)
    ]
    return {
        "type": "sampled",
        "name": name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": int(sums.sum()),
        "samples": samples,
        "weights": [int(sums[k]) for k in order],
    }


def _entry(frame: Frame) -> dict[str, object]:
    entry: dict[str, object] = {"name": frame.name or "?"}
    if frame.filename:
        entry["file"] = frame.filename
    if frame.line:
        entry["line"] = frame.line
    return entry
