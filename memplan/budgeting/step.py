"""The calls and saved tensors of a trace, in rows: counts of its events.

A *call* takes rows [begin, end) of a forward pass.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.errors import UsageError, as_options
from memplan.trace.calls import NO_CALL, Calls, Flag
from memplan.trace.lives import Lives, lives_of
from memplan.trace.trace import Category, Trace

NEVER = np.iinfo(np.int64).max
NONE = -1  # no allocation


@dataclass(frozen=True, eq=False)
class Passed:
    """Allocations that calls were given, or returned: one row each, in the order of the
    calls. call, buffer: int64, shape (p,)."""

    call: Int64Array
    buffer: Int64Array

    def of(self, call: int) -> Int64Array:
        """Those of one call."""
        first, last = np.searchsorted(self.call, [call, call + 1]).tolist()
        return self.buffer[first:last]


@dataclass(frozen=True, eq=False)
class Recorded:
    """A trace's n calls and k saved tensors, in rows.

    begin, end: of each call, shape (n,). inside_end: one past the last call within each
    call, shape (n,): the calls within call i are i + 1 up to that.
    saver: the call that saved each tensor; packed, unpacked: the rows at which it was
    saved, and first needed (NEVER if it was not); cached: the row until which
    autocast's cache held it, 0 if it did not; buffer: the allocation that holds it,
    index into `lives`, or NONE; shape (k,). dropped: of each allocation, the row from
    which on autograd alone holds it, NEVER where that is not known, shape
    (len(lives),). again: whether it has units that are made again.
    """

    trace: Trace
    calls: Calls
    lives: Lives
    begin: Int64Array
    end: Int64Array
    inside_end: Int64Array
    saver: Int64Array
    packed: Int64Array
    unpacked: Int64Array
    cached: Int64Array
    buffer: Int64Array
    inputs: Passed
    outputs: Passed
    dropped: Int64Array
    again: bool = False

    @classmethod
    def of(cls, trace: Trace) -> Recorded:
        """Raises UsageError for a trace without calls."""
        calls = trace.calls
        if calls is None:
            text = "the trace does not say which module saved what, as a budget needs"
            raise UsageError(
                f"{text}; record the program again with activations=True",
                shell=f"{text}; record the program again: memplan record --activations",
            )
        lives = lives_of(trace)
        time = np.maximum.accumulate(trace.events.time_ns)

        def rows(times: Int64Array) -> Int64Array:
            return np.searchsorted(time, times).astype(np.int64)

        begin, end = rows(calls.begin_ns), rows(calls.end_ns)
        packed, places = rows(calls.packed_ns), _Places(lives)
        late = calls.unpacked_ns > 0
        buffer = places.buffers(calls.saved_address, packed)
        dropped = np.full(len(lives), NEVER, dtype=np.int64)
        known = (calls.dropped_ns > 0) & (buffer != NONE)
        dropped[buffer[known]] = rows(calls.dropped_ns[known])
        return cls(
            trace,
            calls,
            lives,
            begin,
            end,
            _inside_ends(calls.parent),
            calls.saved_call,
            packed,
            np.where(late, rows(calls.unpacked_ns), NEVER),
            np.where(calls.cached_ns > 0, rows(calls.cached_ns), 0),
            buffer,
            places.passed(calls.inputs, begin),
            places.passed(calls.outputs, end),
            dropped,
        )

    @cached_property
    def drops(self) -> bool:
        """Whether the trace has when the program lets saved tensors go."""
        return bool((self.calls.dropped_ns > 0).any())

    @cached_property
    def edges(self) -> Int64Array:
        """The rows at which steps begin, and at last the trace's end."""
        return np.concatenate([[0], self.lives.bounds, [len(self.lives.events)]])

    @cached_property
    def step(self) -> int:
        """The step to plan: the last whole one in which a backward pass needs what its
        forward pass saved.

        Raises UsageError if there is none.
        """
        found = np.searchsorted(self.lives.bounds, self.packed, side="right")
        until = self.edges[np.minimum(found + 1, len(self.edges) - 1)]
        whole = (self.unpacked < until) & (found < self.lives.steps - 1)
        if not whole.any():
            text = (
                "no whole step of the trace has a forward and a backward pass of a "
                "module; record at least three steps of a program that trains, as with "
                "steps=4"
            )
            raise UsageError(text, shell=as_options(text))
        return int(found[whole].max())

    @property
    def rows(self) -> tuple[int, int]:
        """The rows of that step, half-open."""
        return int(self.edges[self.step]), int(self.edges[self.step + 1])

    @cached_property
    def times_saved(self) -> Int64Array:
        """How many tensors each allocation was saved as, shape (len(lives),)."""
        known = self.buffer[self.buffer != NONE]
        return np.bincount(known, minlength=len(self.lives)).astype(np.int64)

    def next_needed(self, row: int) -> int:
        """The first row after `row` at which a saved tensor is needed, in the same
        step: by then the operator that needed one at `row` is done. Without one, the
        first row at which all that dies in this step, of what was needed then, has."""
        at = int(np.searchsorted(self._needed, row, side="right"))
        following = int(self._needed[at]) if at < len(self._needed) else NEVER
        step = int(np.searchsorted(self.edges, row, side="right"))
        end = int(self.edges[min(step, len(self.edges) - 1)])
        if following < end:
            return following
        last = self.buffer[(self.unpacked == row) & (self.buffer != NONE)]
        ends = self.lives.end[last]
        return int(ends[ends < end].max(initial=row)) + 1

    @cached_property
    def _needed(self) -> Int64Array:
        return np.unique(self.unpacked[self.unpacked != NEVER])

    @cached_property
    def cached_until(self) -> Int64Array:
        """Of each allocation the row until which autocast's cache held it, or 0."""
        until = np.zeros(len(self.lives), dtype=np.int64)
        known = self.buffer != NONE
        np.maximum.at(until, self.buffer[known], self.cached[known])
        return until

    @cached_property
    def workspaces(self) -> Int64Array:
        """Of a GPU, blocks that calls of modules made for good: libraries' workspaces.

        Each thread has its own, and the backward pass of a GPU runs in another thread.
        Those of a size that the backward pass made as well are left out.
        """
        if self.trace.info.device == "cpu" or self.again:
            return np.empty(0, dtype=np.int64)
        lives = self.lives
        inside = np.searchsorted(np.sort(self.begin), lives.row, side="right")
        inside -= np.searchsorted(np.sort(self.end), lives.row, side="right")
        stay = lives.end == len(lives.events)
        passing = np.isin(lives.category, (Category.ACTIVATIONS, Category.TEMPORARIES))
        elsewhere = Counter(lives.size[(inside == 0) & stay & passing].tolist())
        found = []
        for buffer in np.flatnonzero((inside > 0) & stay & passing).tolist():
            size = int(lives.size[buffer])
            elsewhere[size] -= 1
            if elsewhere[size] < 0:
                found.append(buffer)
        return np.array(found, dtype=np.int64)

    def saved_in(self, first: int, last: int) -> BoolArray:
        """Which tensors were saved in calls [first, last), shape (k,)."""
        found: BoolArray = (self.saver >= first) & (self.saver < last)
        return found

    def has(self, call: int, flag: Flag) -> bool:
        """Whether `flag` is set for a call."""
        return bool(self.calls.flags[call] & flag)


class _Places:
    """Finds allocations by address and time."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        address = lives.events.address[lives.row]
        self._order = np.lexsort((lives.row, address))
        self._address = address[self._order]
        self._row = lives.row[self._order]

    def passed(self, addresses: tuple[tuple[int, ...], ...], row: Int64Array) -> Passed:
        """The allocations at the addresses of each call, before its row."""
        counts = [len(each) for each in addresses]
        call = np.repeat(np.arange(len(addresses)), counts)
        flat = np.array([a for each in addresses for a in each], dtype=np.int64)
        buffer = self.buffers(flat, row[call])
        return Passed(call[buffer != NONE], buffer[buffer != NONE])

    def buffers(self, address: Int64Array, row: Int64Array) -> Int64Array:
        """The allocation that lived at each address before each row, or NONE."""
        found = np.full(len(address), NONE, dtype=np.int64)
        if not len(self._order) or not len(address):
            return found
        wanted = address.astype(np.uint64)
        low = np.searchsorted(self._address, wanted, side="left")
        high = np.searchsorted(self._address, wanted, side="right")
        for i in np.flatnonzero(high > low).tolist():
            at = low[i] + np.searchsorted(self._row[low[i] : high[i]], row[i]) - 1
            if at >= low[i]:
                buffer = int(self._order[at])
                if self._lives.end[buffer] >= row[i]:
                    found[i] = buffer
        return found


def _inside_ends(parent: Int64Array) -> Int64Array:
    """One past the last call within each call; calls are in the order they begin."""
    ends = np.arange(1, len(parent) + 1, dtype=np.int64)
    for i in range(len(parent) - 1, -1, -1):
        if parent[i] != NO_CALL:
            ends[parent[i]] = max(ends[parent[i]], ends[i])
    return ends
