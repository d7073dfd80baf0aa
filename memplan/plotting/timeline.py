"""Live bytes over the time of a run, with its steps and its peak.

A recorded run's are split by whether they outlive steps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from memplan.arrays import Float64Array
from memplan.core.plan import Plan
from memplan.errors import InputError
from memplan.files import PathLike
from memplan.plotting import style
from memplan.plotting.packing import packing
from memplan.text import printable
from memplan.trace.lives import lives_of
from memplan.trace.read import as_trace_or_plan
from memplan.trace.sites import first_of_user
from memplan.trace.steps import outlives
from memplan.trace.trace import NO_HISTORY, Action, Trace
from memplan.units import format_bytes, format_seconds

MAX_MARKS = 25  # step boundaries drawn; of more, every 2nd, 5th, 10th, ...
OUTLINED = 4000  # events: up to here the curve has a line along it
UNEVEN = 100  # events: of fewer, seconds are always the axis
CROWDED = 1 / 20  # of the seconds: where half of the events lie closer, these are

_BOX = (0.085, 0.19, 0.885, 0.64)
_UNITS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


def timeline(run: Run, title: str = "") -> Figure:
    """The picture of a run's live bytes.

    Where half of the events come at once, as the steps after a long start do, the axis
    counts events: of seconds there would be a sliver to see.
    """
    with style.settled():
        figure = Figure(figsize=(12, 5.4), facecolor="white")
        axes = style.bare_axes(figure, _BOX)
        axes.set_xlim(0, run.width)
        style.set_byte_axis(axes, run.peak * 1.1)
        _draw_areas(axes, run)
        _draw_steps(axes, run)
        _draw_peak(axes, run)
        if run.failure is not None:
            _draw_failure(axes, run, run.failure)
        style.name_axes(axes, run.axis, "live bytes")
        style.set_title(figure, _BOX[0], title or "live bytes", _facts(run))
        _draw_legend(figure, run)
    return figure


@dataclass(frozen=True)
class Failure:
    """A request that failed. seconds: as the times are; site: who asked, if known."""

    seconds: float
    requested_bytes: int
    site: str = ""


@dataclass(frozen=True)
class Run:
    """Live bytes over seconds. Raises InputError if there are none.

    times: of the events, ascending, shape (m,). live: bytes alive from each time to the
    next, shape (m,). marks: where steps 1, 2, ... begin, ascending; step 0 is what
    comes before. persistent: those of the live bytes that outlive steps, shape (m,);
    the rest is transient. failure: a request that failed.
    """

    times: Float64Array
    live: Float64Array
    marks: Float64Array
    persistent: Float64Array | None = None
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if not len(self.times):
            raise InputError("there are no events, so there is nothing to draw")

    @property
    def marks_within(self) -> Float64Array:
        """The marks from the first event to the last."""
        first, last = self.times[[0, -1]]
        found: Float64Array = self.marks[(self.marks >= first) & (self.marks <= last)]
        return found

    @property
    def span(self) -> float:
        """Seconds from the first event to the last; something to draw, if nought."""
        return float(self.times[-1] - self.times[0]) or 1e-6

    @property
    def axis(self) -> str:
        """What the axis says."""
        _, _, unit = self._unit
        if self.half is None:
            return f"time ({unit})"
        half = format_seconds(self.half)
        return f"allocations and frees, of which half came within {half}"

    @property
    def width(self) -> float:
        """Where the axis ends."""
        if self.half is not None:
            return float(len(self.times))
        return self.span * self._unit[1]

    def xs(self, seconds: Float64Array) -> Float64Array:
        """Where moments are on the axis, of the same shape."""
        since = seconds - float(self.times[0])
        if self.half is None:
            return since * self._unit[1]
        return np.searchsorted(self.times, seconds).astype(np.float64)

    def events(self) -> Float64Array:
        """Where the events are on the axis, shape (m,)."""
        if self.half is None:
            return self.xs(self.times)
        return np.arange(len(self.times), dtype=np.float64)

    @property
    def _unit(self) -> tuple[float, float, str]:
        return next(unit for unit in _UNITS if self.span >= unit[0])

    @functools.cached_property
    def half(self) -> float | None:
        """Seconds in which half of the events came, if that is hardly any of them."""
        count = len(self.times)
        if count < UNEVEN:
            return None
        half = count // 2
        least = float((self.times[half:] - self.times[: count - half]).min())
        return least if least < CROWDED * self.span else None

    @property
    def peak(self) -> float:
        """The most bytes alive at one moment."""
        return float(self.live.max())


def _draw_areas(axes: Axes, run: Run) -> None:
    areas = [(run.live, style.SHORT_TO_LONG[1])]
    if run.persistent is not None:
        areas.append((run.persistent, style.SHORT_TO_LONG[3]))
    for order, (values, color) in enumerate(areas, 1):
        x, y = _drawn(run, values)
        axes.fill_between(x, y, step="post", color=color, linewidth=0, zorder=order)
    few = len(run.times) <= OUTLINED
    (line,) = axes.plot(*_drawn(run, run.live), drawstyle="steps-post")
    line.set_color(style.INK if few else style.SHORT_TO_LONG[1])
    line.set(linewidth=0.8 if few else 0.3, zorder=3 if few else 1)


def _drawn(run: Run, values: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Where a curve's points are, up to the end of the run, and their values."""
    x, y = style.thinned(run.events(), values)
    return np.append(x, run.width), np.append(y, y[-1])


def _draw_steps(axes: Axes, run: Run) -> None:
    """A line where each step begins, and the step's number above it."""
    marks = run.marks_within
    count = len(marks)
    if not count:
        return
    every = _stride(count)
    steps = np.arange(every, count + 1, every)  # step k begins at mark k - 1
    begins = run.xs(marks[steps - 1])
    high = axes.get_xaxis_transform()
    lines = axes.vlines(begins, 0, 1, transform=high, colors=style.MUTED, zorder=4)
    lines.set(linewidth=0.7, linestyle=(0, (2, 2)), gid="steps")
    last = -np.inf
    for step, x in zip(steps.tolist(), begins.tolist(), strict=True):
        if x - last < 0.02 * run.width:
            continue  # no room beside the number before
        last = x
        text = axes.text(x, 1.015, str(step), transform=high, ha="center")
        text.set(fontsize=8, color=style.MUTED)
    word = axes.text(-0.01, 1.015, "step", transform=axes.transAxes, ha="right")
    word.set(fontsize=8, color=style.MUTED)


def _stride(count: int) -> int:
    """1, 2, 5, 10, 20, ...: the least that picks at most MAX_MARKS of `count`."""
    unit = 1
    while count > 5 * unit * MAX_MARKS:
        unit *= 10
    return next(k * unit for k in (1, 2, 5) if count <= k * unit * MAX_MARKS)


def _draw_peak(axes: Axes, run: Run) -> None:
    place = int(np.argmax(run.live))
    when = format_seconds(float(run.times[place] - run.times[0]))
    words = f"peak {format_bytes(int(run.peak))} at {when}"
    style.mark_peak(axes, (float(run.events()[place]), run.peak), words)


def _draw_failure(axes: Axes, run: Run, failure: Failure) -> None:
    """A cross where the curve was when the request failed, and its size and site."""
    when = min(max(failure.seconds, run.times[0]), run.times[-1])
    at = int(np.searchsorted(run.times, when, side="right")) - 1
    live, x = float(run.live[max(at, 0)]), float(run.xs(np.array([when]))[0])
    (cross,) = axes.plot([x], [live], marker="X", color=style.BOUND, zorder=9, ms=9)
    cross.set(clip_on=False, gid="failure")
    words = f"{format_bytes(failure.requested_bytes)} could not be had"
    if failure.site:
        words += f"\n{printable(failure.site)}"
    late = x > 0.5 * run.width
    shift, align = (-9 if late else 9, -14), "right" if late else "left"
    style.say(axes, words, (x, live), shift, ha=align, va="top", color=style.BOUND)


def _facts(run: Run) -> str:
    count = len(run.times)
    facts = ["1 allocation" if count == 1 else f"{count:,} allocations and frees"]
    if len(run.times) > 1:
        facts.append(format_seconds(float(run.times[-1] - run.times[0])))
    if steps := len(run.marks):
        facts.append(f"{steps:,} step{'s' * (steps != 1)}")
    facts.append(f"peak {format_bytes(int(run.peak))}")
    if run.persistent is not None:
        base = int(run.persistent[int(np.argmax(run.live))])
        facts.append(f"of it persistent {format_bytes(base)}")
    return "  ·  ".join(facts)


def _draw_legend(figure: Figure, run: Run) -> None:
    labels = ["live bytes"]
    if run.persistent is not None:
        labels = [
            "transient: freed in its step or the next",
            "persistent: outlives steps",
        ]
    colours = style.SHORT_TO_LONG[1::2]
    handles: list[Patch | Line2D] = [
        Patch(facecolor=colour, label=label)
        for colour, label in zip(colours, labels, strict=False)
    ]
    if count := len(run.marks_within):
        every = _stride(count)
        text = "a step begins" if every == 1 else f"every {every}th step begins"
        text = text.replace("2th", "2nd")
        line = Line2D([], [], color=style.MUTED, linewidth=0.9, label=text)
        line.set_linestyle((0, (2, 2)))
        handles.append(line)
    style.set_legend(figure, _BOX[0], handles)


def memory(trace: Trace, title: str = "") -> Figure:
    """The picture of a trace: live bytes over seconds, with its steps.

    Raises InputError if the trace holds no allocation, or no history.
    """
    if not trace.info.history:
        raise InputError(f"there is nothing to draw over time: {NO_HISTORY}")
    lives = lives_of(trace)
    # Threads may read the clock out of turn by some nanoseconds.
    time = np.maximum.accumulate(trace.events.time_ns) / 1e9
    persistent = None
    if lives.steps > 1:
        kept = lives.live_of(np.where(outlives(lives), lives.size, 0))
        persistent = kept[lives.tick_row].astype(float)
    live = lives.live_bytes[lives.tick_row].astype(float)
    times, marks = time[lives.tick_row], time[lives.bounds]
    run = Run(times, live, marks, persistent, _failure(trace, time))
    return timeline(run, title or trace.info.program.script)


def _failure(trace: Trace, time_s: Float64Array) -> Failure | None:
    """The first request that failed, and the line that asked."""
    events = trace.events
    rows = np.flatnonzero(events.action == Action.OOM)
    if not len(rows):
        return None
    row = int(rows[0])
    frame = first_of_user(trace.stacks[int(events.stack[row])])
    site = f"{PurePath(frame.filename).name}:{frame.line} {frame.name}".rstrip()
    requested = int(events.requested_size[row])
    return Failure(float(time_s[row]), requested, site if frame.filename else "")


def plot(source: Trace | Plan | PathLike, title: str = "") -> Figure:
    """A Trace's memory over time, or a Plan's packing, or that of the one in a file, as
    a matplotlib Figure.

    It has a `savefig`, and notebooks show it. title: the program's name unless given.
    Raises TypeError for anything else, InputError where there is nothing to draw, or
    for a file that cannot be read.
    """
    found = as_trace_or_plan(source)
    return memory(found, title) if isinstance(found, Trace) else packing(found, title)
