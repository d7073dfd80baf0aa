"""What a page knows of a trace, as JSON and columns of numbers.

A page of a million events shows the buffers that matter most by themselves, and all of
them in the curves; moments are thinned so that no peak and no trough is left out.

A column is cut into planes, the first byte of every number, then the second, and so on:
high bytes are alike, and compress to almost nothing. All planes of all columns stand in
one gzip stream, in base64.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.core.plan import Plan
from memplan.levels import extremes
from memplan.reporting.html.placements import NOWHERE, Placed, closed_up, placements_of
from memplan.trace.lives import Lives, lives_of
from memplan.trace.stacks import Frame
from memplan.trace.trace import Action, Category, Trace
from memplan.units import format_bytes

# From what stays to what passes, as layers lie on one another. Told apart with any
# colour vision by hue or lightness.
_COLOURS = {
    Category.PARAMETERS: "#2f4b8f",
    Category.OPTIMIZER_STATE: "#7c5cb8",
    Category.GRADIENTS: "#e07b26",
    Category.INPUTS: "#e3bd3d",
    Category.ACTIVATIONS: "#2f9e8f",
    Category.TEMPORARIES: "#d1537a",
    Category.UNKNOWN: "#98a1ab",
}
NOBODYS = "#98a1ab"  # of a plan's buffer that stands for none of the trace's
_LIVES = (
    ("outlives steps", "#253494"),
    ("freed in the next step", "#e6750d"),
    ("freed in its step", "#41b6c4"),
)
_PARTS = (
    ("alive > 50 % of the run", "#253494"),
    ("alive 10–50 %", "#2c7fb8"),
    ("alive 1–10 %", "#41b6c4"),
    ("alive < 1 %", "#86cfa0"),
)
_LIMITS = (0.01, 0.1, 0.5)
_LIVE = (("live", "#2c7fb8"),)  # of which no more is known


@dataclass(frozen=True, eq=False)
class Colouring:
    """Names and colours, the lowest layer first; which one each buffer has, (n,)."""

    entries: tuple[tuple[str, str], ...]
    of_buffer: Int64Array
    by_category: bool


def colouring(lives: Lives, history: bool = True) -> Colouring:
    """By category; by life in steps where no category is known; or else by duration.

    history: whether lives are known at all.
    """
    if (lives.category != Category.UNKNOWN).any():
        order = list(_COLOURS)
        used = [c for c in order if (lives.category == c).any()]
        code = np.zeros(max(Category) + 1, dtype=np.int64)
        code[used] = np.arange(len(used))
        entries = tuple((c.label, _COLOURS[c]) for c in used)
        return Colouring(entries, code[lives.category], True)
    if not history:
        return _used(_LIVE, np.zeros(len(lives), dtype=np.int64), False)
    if len(lives.bounds):
        freed = np.searchsorted(lives.bounds, lives.end, side="right")
        crossed = freed - lives.step
        crossed[lives.end >= len(lives.events)] = 2  # never freed
        return _used(_LIVES, 2 - np.minimum(crossed, 2), False)
    part = (lives.end - lives.row) / max(len(lives.events), 1)
    return _used(_PARTS, 3 - np.searchsorted(_LIMITS, part, side="right"), False)


def _used(
    entries: tuple[tuple[str, str], ...], code: Int64Array, by_category: bool
) -> Colouring:
    """Only those entries that a buffer has."""
    used, of_buffer = np.unique(code, return_inverse=True)
    chosen = tuple(entries[k] for k in used.tolist())
    return Colouring(chosen, of_buffer.astype(np.int64), by_category)


_KINDS = {"u1": "<u1", "u4": "<u4", "f8": "<f8"}  # what the page can read
_LEVEL = 6


@dataclass
class PackedColumns:
    """Columns in the order they were added. listed: what they are, for JSON."""

    listed: list[dict[str, object]] = field(default_factory=list)
    _planes: list[bytes] = field(default_factory=list)

    def add(
        self, name: str, values: npt.ArrayLike, kind: str, *, delta: bool = False
    ) -> None:
        """A column, shape (n,), of "u1", "u4" or "f8".

        delta: stored as differences from the number before, which suits what ascends.
        Integers to 2^53 are exact as "f8", and so are their differences.
        """
        array: npt.NDArray[Any] = np.asarray(values).astype(_KINDS[kind])
        if delta and len(array):
            array = np.concatenate([array[:1], array[1:] - array[:-1]])
        width = array.dtype.itemsize
        bytes_of = np.ascontiguousarray(array).view(np.uint8).reshape(-1, width)
        self._planes.append(np.ascontiguousarray(bytes_of.T).tobytes())
        entry = {"name": name, "kind": kind, "count": len(array), "delta": delta}
        self.listed.append(entry)

    def encoded(self) -> str:
        """All planes, as base64; the same columns give the same text."""
        packed = gzip.compress(b"".join(self._planes), _LEVEL, mtime=0)
        return base64.b64encode(packed).decode("ascii")


ROOT = 0


class StackTree:
    """Nodes by number: `parent` of each, and its `label`; node 0 is the root.

    A parent comes before its children.
    """

    def __init__(self) -> None:
        self.parent: list[int] = [ROOT]
        self.label: list[int] = [0]
        self.labels: list[tuple[str, int, str]] = [("", 0, "all")]
        self._known: dict[tuple[int, int], int] = {}
        self._numbers: dict[tuple[str, int, str], int] = {}

    def node(self, frames: Iterable[Frame]) -> int:
        """The node of a stack, outermost call first."""
        at = ROOT
        for frame in frames:
            entry = (frame.filename, frame.line, frame.name)
            number = self._numbers.setdefault(entry, len(self.labels))
            if number == len(self.labels):
                self.labels.append(entry)
            parent, at = at, self._known.setdefault((at, number), len(self.parent))
            if at == len(self.parent):
                self.parent.append(parent)
                self.label.append(number)
        return at


_MOST_BOXES = 60_000  # of a placement
_MOST_STEPS = 20_000
MOST_BUFFERS = 120_000  # that a page shows one by one
MOST_MOMENTS = 120_000


@dataclass(eq=False)
class SceneMaker:
    """A trace, and what was found in it: `columns` of numbers, beside the entries for
    JSON that `made` returns. paths: whether files keep their folders."""

    trace: Trace
    paths: bool = True
    columns: PackedColumns = field(default_factory=PackedColumns)

    def __post_init__(self) -> None:
        self.lives: Lives = lives_of(self.trace)
        self.colouring: Colouring = colouring(self.lives, self.trace.info.history)

    @property
    def peak(self) -> int:
        """The most bytes alive at one moment."""
        return int(self.lives.live_bytes.max(initial=0))

    def made(self, plan: Plan | None) -> dict[str, object]:
        """The page's data; with `plan`, its placements, too.

        Raises InputError where the plan was not made from the trace.
        """
        failed = self._failed_requests()
        shown = most_telling(self.lives)
        self._add_curves(np.array([tick for tick, _ in failed], dtype=np.int64))
        top = self._add_boxes(shown)
        return {
            "ticks": self.lives.ticks,
            "history": self.trace.info.history,
            "peak": self.peak,
            "peak_tick": tick_of(self.lives, self.lives.peak_row),
            "categories": [
                {"name": name, "colour": colour}
                for name, colour in self.colouring.entries
            ],
            "nobodys": NOBODYS,
            "sites": [
                [self._path(site.file), *astuple(site)[1:]] for site in self.lives.sites
            ],
            "ooms": [{"tick": tick, "size": size} for tick, size in failed],
            "address_top": top,
            "traced": self._words(len(shown)),
            "labels": self._add_stacks(shown),
            "plan": None
            if plan is None
            else {
                "room": "lane" if plan.lanes else "arena",
                "placements": [
                    self._add_placement(k, placed, plan)
                    for k, placed in enumerate(placements_of(plan, self.trace))
                ],
            },
            "columns": self.columns.listed,
        }

    def _add_curves(self, always: Int64Array) -> None:
        lives = self.lives
        steps = lives.begins[1:-1][:_MOST_STEPS]
        moments = shown_moments(lives, np.concatenate([always, steps, steps - 1]))
        if not self.trace.info.history:
            moments = moments[-1:]
        self.columns.add("moment", moments, "u4", delta=True)
        self.columns.add("seconds", lives.time_s[lives.tick_row[moments]], "f8")
        self.columns.add("steps", steps, "u4", delta=True)
        for code in range(len(self.colouring.entries)):
            chosen = self.colouring.of_buffer == code
            live = lives.live_of(np.where(chosen, lives.size, 0))
            shown = live[lives.tick_row[moments]]
            self.columns.add(f"live{code}", shown, "f8", delta=True)

    def _add_boxes(self, shown: Int64Array) -> int:
        """The buffers shown one by one; how high their addresses reach."""
        events, row = self.trace.events, self.lives.row
        size = self.lives.size
        address = closed_up(events.device[row], events.address[row], size)
        history = self.trace.info.history
        lower = self.lives.lower if history else np.zeros(len(size), dtype=np.int64)
        self.columns.add("lower", lower[shown], "u4", delta=True)
        upper = np.minimum(self.lives.freed, self.lives.ticks)
        self.columns.add("upper", upper[shown], "u4")
        self.columns.add("address", address[shown], "f8")
        self.columns.add("size", size[shown], "f8")
        self.columns.add("site", self.lives.site[shown], "u4")
        self.columns.add("category", self.colouring.of_buffer[shown], "u1")
        return int((address + size).max(initial=1))

    def _add_stacks(self, shown: Int64Array) -> list[list[object]]:
        """The tree of stacks; its labels. Without stacks, modules and sites make it."""
        tree = StackTree()
        table = self.trace.stacks
        stack = self.trace.events.stack[self.lives.row[shown]]
        nodes = np.full(len(table) + 1, ROOT, dtype=np.int64)  # -1 finds the last
        for index in np.unique(stack[stack >= 0]).tolist():
            nodes[index] = tree.node(self._calls(index))
        self.columns.add("node", nodes[stack], "u4")
        self.columns.add("node_parent", tree.parent, "u4")
        self.columns.add("node_label", tree.label, "u4")
        return [[self._path(file), line, name] for file, line, name in tree.labels]

    def _calls(self, index: int) -> list[Frame]:
        """The calls of a stack, outermost first, and last what PyTorch ran there."""
        calls = list(reversed(self.trace.stacks[index]))
        origin = self.trace.stacks.origin(index)
        words = " · ".join(filter(None, (origin.module, origin.operator)))
        return [*calls, Frame("", 0, words)] if words else calls

    def _add_placement(self, k: int, placed: Placed, plan: Plan) -> dict[str, object]:
        area = placed.size.astype(np.float64) * (placed.right - placed.left)
        rows = np.sort(np.argsort(area, kind="stable")[::-1][:_MOST_BOXES])
        owner = placed.rows[rows]
        known = owner != NOWHERE
        site = np.where(known, self.lives.site[owner], len(self.lives.sites))
        nobodys = len(self.colouring.entries)
        category = np.where(known, self.colouring.of_buffer[owner], nobodys)
        before, top = self._before(placed, rows)
        for name, values, kind in (
            ("left", placed.left[rows], "f8"),
            ("right", placed.right[rows], "f8"),
            ("bottom", placed.bottom[rows], "f8"),
            ("size", placed.size[rows], "f8"),
            ("site", site, "u4"),
            ("category", category, "u1"),
            ("before", before, "f8"),
        ):
            self.columns.add(f"plan{k}_{name}", values, kind)
        return {
            "name": placed.name,
            "length": placed.length,
            "peak": placed.peak,
            "bound": plan.lower_bound if k == 0 else 0,
            "before_top": top,
            "note": _placement_words(placed, top, len(rows), plan),
        }

    def _before(self, placed: Placed, rows: Int64Array) -> tuple[Int64Array, int]:
        """Where the boxes' buffers lay in the run, and how high; 0 if not known."""
        owner = placed.rows
        if not len(owner) or not placed.compared:
            return np.zeros(len(rows), dtype=np.int64), 0
        events, row = self.trace.events, self.lives.row[owner]
        lay = closed_up(events.device[row], events.address[row], placed.size)
        return lay[rows], int((lay + placed.size).max())

    def _failed_requests(self) -> list[tuple[int, int]]:
        """Tick and bytes of every request that found no memory."""
        events = self.trace.events
        rows = np.flatnonzero(events.action == Action.OOM)
        ticks = np.maximum(np.searchsorted(self.lives.tick_row, rows) - 1, 0)
        sizes = events.requested_size[rows]
        return list(zip(ticks.tolist(), sizes.tolist(), strict=True))

    def _path(self, file: str) -> str:
        return file if self.paths else PurePosixPath(file.replace("\\", "/")).name

    def _words(self, shown: int) -> str:
        count = len(self.lives)
        if shown == count:
            return ""
        rest = self.lives.size.sum()
        return (
            f"{shown:,} of {count:,} buffers are drawn one by one: those alive at the "
            "peak, and those with most bytes for longest. The curve above counts all "
            f"{format_bytes(int(rest))} that were asked for."
        )


def _placement_words(placed: Placed, before: int, shown: int, plan: Plan) -> str:
    words = f"{placed.name} in {format_bytes(placed.peak)}"
    if plan.lanes:
        words += f" of a lane; {plan.lanes:,} threads at a time have one each"
    if before:
        saved = 1 - placed.peak / before
        words += (
            f", where the default allocator spread the same buffers over "
            f"{format_bytes(before)} of addresses ({saved:.1%} less)"
        )
    if plan.lifespan_bytes:
        arena = format_bytes(plan.arena_bytes)
        words += f"; applied, blocks lie by how long they live, in {arena}"
    if shown < len(placed.size):
        words += f"; {shown:,} of {len(placed.size):,} boxes are drawn, the largest"
    return f"{words[0].upper()}{words[1:]}."


def tick_of(lives: Lives, row: int) -> int:
    """The tick of an event that counts as one, or of the next that does."""
    return int(np.searchsorted(lives.tick_row, row))


def shown_moments(
    lives: Lives, always: Int64Array, most: int = MOST_MOMENTS
) -> Int64Array:
    """Ticks at which the page knows what is alive, ascending.

    Of more than `most`, each stretch of the run keeps its first, lowest, highest
    and last; `always` are kept, too.
    """
    live, count = lives.live_bytes[lives.tick_row], lives.ticks
    if count <= most:
        return np.arange(count, dtype=np.int64)
    edges = np.linspace(0, count, max(most // 4, 1) + 1).astype(np.int64)
    always = always[(always >= 0) & (always < count)]
    return np.union1d(extremes(live, edges), always).astype(np.int64)


def most_telling(lives: Lives, most: int = MOST_BUFFERS) -> Int64Array:
    """The buffers to show one by one, ascending: what is alive at the peak, largest
    first, and then those with most bytes for longest."""
    size = lives.size
    if len(size) <= most:
        return np.arange(len(size), dtype=np.int64)
    area = size.astype(np.float64) * (
        np.minimum(lives.freed, lives.ticks) - lives.lower
    )
    live = lives.live_rows(lives.peak_row)
    there = np.zeros(len(size), dtype=np.int64)
    there[live] = size[live]
    order = np.lexsort((area, there))
    chosen = np.sort(order[len(order) - most // 2 :])
    left = np.setdiff1d(np.arange(len(area)), chosen, assume_unique=True)
    by_area = left[np.argsort(area[left], kind="stable")]
    more = by_area[len(by_area) - (most - len(chosen)) :]
    return np.union1d(chosen, more).astype(np.int64)
