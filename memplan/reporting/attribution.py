"""The buffers of a trace: what each holds, and which line of the program made it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.trace.category import Category
from memplan.trace.match import labelled, lives
from memplan.trace.stacks import Phase, Stack, StackTable
from memplan.trace.steps import strongest_mark
from memplan.trace.trace import Action, Mark, Trace
from memplan.trace.user_frames import first_of_user, is_native

# What says more than what stands after it: a buffer may be labelled more than once.
_STRONGEST_FIRST = (
    Category.PARAMETERS,
    Category.OPTIMIZER_STATE,
    Category.GRADIENTS,
    Category.INPUTS,
)


# In the names of C++ frames: a node of autograd's, Python's name of what was called.
_NATIVE_OPERATORS = (
    re.compile(r"(\w+Backward\w*)::apply"),
    re.compile(r"THPVariable_(\w+)\("),
    re.compile(r"at::_ops::(\w+)::call"),
)
_MOST_NAME = 300  # characters of a name that are looked at


@dataclass(frozen=True)
class Site:
    """Who asked for a buffer; empty where that is not known.

    file, line, function: the first frame that is neither PyTorch's nor Python's own;
    of a backward pass, the line of the forward pass that made it necessary.
    module: the path of the module that ran. operator: what ran, as PyTorch names it.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    module: str = ""
    operator: str = ""

    @property
    def place(self) -> str:
        """ "file:line", or "unknown"."""
        return f"{self.file}:{self.line}" if self.file else "unknown"


@dataclass(frozen=True, eq=False)
class Buffers:
    """The allocations of a trace in the order they were made, shape (n,) each.

    row: of the events. end: the row of its free; `rows`, the number of events, if it
    was not freed. size: exact bytes. category: codes of Category. site: index into
    `sites`. step: in which it was made; step 0 is what comes before the first boundary.
    time_s: of every event, seconds since the first, not decreasing; shape (rows,).
    bounds: the rows where steps 1, 2, ... begin; mark: what cut them.
    """

    row: Int64Array
    end: Int64Array
    size: Int64Array
    category: npt.NDArray[np.uint8]
    site: Int64Array
    step: Int64Array
    sites: tuple[Site, ...]
    time_s: npt.NDArray[np.float64]
    bounds: Int64Array
    mark: Mark

    def __len__(self) -> int:
        return len(self.row)

    @property
    def rows(self) -> int:
        """How many events there are."""
        return len(self.time_s)

    @cached_property
    def live_bytes(self) -> Int64Array:
        """Live bytes after each event, shape (rows,)."""
        return self._curve(self.size)

    @cached_property
    def peak_row(self) -> int:
        """The first event after which the most bytes are live; -1 without events."""
        return int(np.argmax(self.live_bytes)) if self.rows else -1

    def live_rows(self, row: int) -> Int64Array:
        """The buffers live after event `row`, as indexes, in the order made."""
        found = np.flatnonzero((self.row <= row) & (self.end > row))
        return found.astype(np.int64)

    def category_curves(self) -> dict[Category, Int64Array]:
        """Live bytes after each event, by category; shape (rows,) each.

        Those that any buffer has; they sum to `live_bytes`.
        """
        return {
            category: self._curve(np.where(self.category == category, self.size, 0))
            for category in Category
            if (self.category == category).any()
        }

    def _curve(self, size: Int64Array) -> Int64Array:
        change = np.zeros(self.rows + 1, dtype=np.int64)
        np.add.at(change, self.row, size)
        np.add.at(change, self.end, -size)
        curve: Int64Array = np.cumsum(change[:-1])
        return curve


def buffers_of(trace: Trace) -> Buffers:
    """What is known of each allocation of `trace`; any trace will do."""
    events = trace.events
    count = len(events)
    row, end = lives(events)
    index = np.full(count, -1, dtype=np.int64)
    index[row] = np.arange(len(row))
    mark = strongest_mark(events)
    bounds = np.flatnonzero((events.action == Action.STEP) & (events.mark == mark))
    bounds = bounds[:0] if mark is Mark.NONE else bounds
    stack = events.stack[row].astype(np.int64)
    table = _SiteTable(trace.stacks)
    site, phase = table.of_stack[stack], table.phases[stack]
    told, block = labelled(events)
    ours = index[block] >= 0
    told, buffer = told[ours], index[block[ours]]
    named = events.stack[told] >= 0
    table.put_modules(site, buffer[named], events.stack[told][named])
    time_ns = np.maximum.accumulate(events.time_ns) if count else events.time_ns
    return Buffers(
        row=row,
        end=end,
        size=events.requested_size[row],
        category=_categories(phase, row, end, (events.requested_size[told], buffer)),
        site=site,
        step=np.searchsorted(bounds, row, side="right").astype(np.int64),
        sites=table.sites,
        time_s=(time_ns - time_ns[:1]) / 1e9,
        bounds=bounds.astype(np.int64),
        mark=mark,
    )


def site_of(stacks: StackTable, index: int) -> Site:
    """The site of one stack, by its index in the table (-1: unknown)."""
    stack, origin = stacks[index], stacks.origin(index)
    frame = first_of_user(stack)
    operator = origin.operator
    inner = stack[: stack.index(frame)] if frame in stack else stack
    if not operator and inner:
        operator = _operator(inner)
    return Site(
        frame.filename, frame.line, frame.name, module=origin.module, operator=operator
    )


def _operator(inner: Stack) -> str:
    """What the frames that a line called run: PyTorch's own function, innermost, or of
    C++ frames the node of autograd's, or the operator."""
    if not is_native(inner[0].filename):
        return inner[0].name
    # The outermost of each: what the program called, not what that is made of.
    for pattern in _NATIVE_OPERATORS:
        for frame in reversed(inner):
            if match := pattern.search(frame.name, 0, _MOST_NAME):
                return match[1]
    return ""


class _SiteTable:
    """The distinct sites. of_stack, phases: of each stack its site and phase, and last
    those of none, where -1 finds them."""

    def __init__(self, stacks: StackTable) -> None:
        self._stacks = stacks
        self._known: dict[Site, int] = {}
        self.of_stack = np.empty(len(stacks) + 1, dtype=np.int64)
        self.phases = np.zeros(len(stacks) + 1, dtype=np.uint8)
        for i in range(len(stacks)):
            self.of_stack[i] = self._number(site_of(stacks, i))
            self.phases[i] = stacks.origin(i).phase
        self.of_stack[-1] = self._number(Site())

    @property
    def sites(self) -> tuple[Site, ...]:
        """All of them."""
        return tuple(self._known)

    def put_modules(
        self, site: Int64Array, buffer: Int64Array, stack: npt.NDArray[np.int32]
    ) -> None:
        """Give sites without a module that of the stack their buffer was labelled with.

        site: of every buffer, changed in place. buffer, stack: of each label.
        """
        known = self.sites
        for i, index in dict(zip(buffer.tolist(), stack.tolist(), strict=True)).items():
            module = self._stacks.origin(index).module
            old = known[site[i]] if site[i] < len(known) else None
            if module and old is not None and not old.module:
                site[i] = self._number(replace(old, module=module))

    def _number(self, site: Site) -> int:
        return self._known.setdefault(site, len(self._known))


def _categories(
    phase: npt.NDArray[np.uint8],
    row: Int64Array,
    end: Int64Array,
    labels: tuple[Int64Array, Int64Array],
) -> npt.NDArray[np.uint8]:
    """What each buffer holds, by its labels, or else by what ran when it was made.

    labels: their codes, and the buffers that they tell of.
    """
    category = np.zeros(len(row), dtype=np.uint8)
    forward = row[phase == Phase.FORWARD]
    category[phase == Phase.FORWARD] = Category.ACTIVATIONS
    category[phase > Phase.FORWARD] = Category.TEMPORARIES
    # What the program makes itself is for the forward pass that it lives to see.
    next_forward = np.searchsorted(forward, row)
    after = np.append(forward, np.iinfo(np.int64).max)[next_forward]
    outside = phase == Phase.OUTSIDE
    category[outside & (after < end)] = Category.INPUTS
    category[outside & (after >= end)] = Category.TEMPORARIES
    code, buffer = labels
    for strong in reversed(_STRONGEST_FIRST):
        chosen = buffer[code == strong]
        if strong is Category.INPUTS:  # what a module made and another one is given
            chosen = chosen[phase[chosen] <= Phase.OUTSIDE]
        category[chosen] = strong
    return category
