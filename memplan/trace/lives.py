"""The allocations of a trace: how long each lives, what it holds, what is live when.

One clock serves all rooms. It advances by one after every allocation and every free
(profile-guided memory optimization, section 4.1). `lives_of` matches frees with
allocations once and keeps the result for as long as the trace exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.levels import level
from memplan.trace.holders import Held
from memplan.trace.sites import Attribution, Site, attribution
from memplan.trace.stacks import StackTable
from memplan.trace.trace import Action, Columns, Mark, Trace

CPU_ALIGNMENT = 64  # bytes, of PyTorch's blocks
UNMATCHED = -1
NEVER = np.iinfo(np.int64).max  # the tick at which a block is freed that is not
# A trace has fewer events than this counts; half the memory of the usual index.
_Rows = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Lives:
    """The n allocations of any bytes in a trace, in the order made, and its steps.

    Steps are numbered from 0. Step 0 is all that comes before the first boundary; the
    recording's end may cut the last step off.

    events, stacks, on_cpu: of the trace. pairs: as the function of that name returns
        them.
    row: of each allocation's event. end: of its free's; `len(events)` if it was not
        freed. size: exact bytes. Shape (n,) each.
    tick_row: the event of each tick, shape (ticks,).
    lower, freed: half-open life in ticks, shape (n,); `freed` is NEVER without a free.
    upper: `freed`, or later where threads race: until then it may live in a repetition.
    mark: what cuts steps. bounds: the rows where steps 1, 2, ... begin, shape (s - 1,).
    begins: the first tick of each step and at last the clock's end, shape (s + 1,).
    first: the index of each step's first allocation and at last n, shape (s + 1,).
    holders: of what is alive at the end.
    """

    events: Columns
    stacks: StackTable
    on_cpu: bool
    pairs: tuple[_Rows, _Rows]
    row: Int64Array
    end: Int64Array
    size: Int64Array
    tick_row: Int64Array
    lower: Int64Array
    freed: Int64Array
    upper: Int64Array
    mark: Mark
    bounds: Int64Array
    begins: Int64Array
    first: Int64Array
    holders: tuple[Held, ...] = ()

    NEVER = NEVER

    def __len__(self) -> int:
        return len(self.row)

    @property
    def ticks(self) -> int:
        """The clock's reading at the end."""
        return len(self.tick_row)

    @property
    def steps(self) -> int:
        """How many steps were begun."""
        return len(self.first) - 1

    def step_of(self, ticks: Int64Array) -> Int64Array:
        """The step in which each tick falls; NEVER falls in no step: `steps`."""
        found = np.searchsorted(self.begins[1:-1], ticks, side="right")
        return np.where(ticks == NEVER, self.steps, found).astype(np.int64)

    @cached_property
    def step(self) -> Int64Array:
        """The step in which each block was made, shape (n,)."""
        return self.step_of(self.lower)

    @cached_property
    def freed_step(self) -> Int64Array:
        """The step in which each block is freed; `steps` if it never is; shape (n,)."""
        return self.step_of(self.freed)

    @cached_property
    def last_step(self) -> Int64Array:
        """The step in which each block's life ends (`upper`), shape (n,)."""
        return self.step_of(self.upper)

    @cached_property
    def transient(self) -> BoolArray:
        """Which blocks are freed in the step that made them, or in the next; (n,)."""
        young = self.last_step - self.step <= 1
        transient: BoolArray = young & (self.upper != NEVER)
        return transient

    def requests(self, step: int) -> slice:
        """The allocations made in `step`, as a slice of the arrays."""
        return slice(int(self.first[step]), int(self.first[step + 1]))

    def cut(self, firsts: Int64Array) -> Lives:
        """The same allocations with steps 1, 2, ... beginning at those in `firsts`."""
        return replace(
            self,
            mark=Mark.NONE,
            bounds=self.row[firsts],
            begins=_edges(self.lower[firsts], self.ticks),
            first=_edges(firsts, len(self)),
        )

    def of_events(self, events: Columns) -> Lives:
        """The same of some events of the trace, in another order."""
        return _lives(events, self.stacks, self.on_cpu)

    @cached_property
    def alive(self) -> Int64Array:
        """Bytes alive (until `upper`) in each tick, shape (ticks,)."""
        return level(self.lower, self.upper, self.size, self.ticks)

    @cached_property
    def live_bytes(self) -> Int64Array:
        """Live bytes after each event, shape (len(events),)."""
        return self.live_of(self.size)

    @cached_property
    def taken_bytes(self) -> Int64Array:
        """The same of what blocks take up: PyTorch aligns those of the CPU."""
        aligned = -(-self.size // CPU_ALIGNMENT) * CPU_ALIGNMENT
        return self.live_of(aligned) if self.on_cpu else self.live_bytes

    def live_of(self, size: Int64Array) -> Int64Array:
        """The same where each allocation counts as `size` bytes, shape (n,)."""
        return level(self.row, self.end, size, len(self.events))

    @cached_property
    def peak_row(self) -> int:
        """The first event after which the most bytes are live; -1 without events."""
        return int(np.argmax(self.live_bytes)) if len(self.events) else -1

    def live_rows(self, row: int) -> Int64Array:
        """The buffers live after event `row`, as indexes, in the order made."""
        found = np.flatnonzero((self.row <= row) & (self.end > row))
        return found.astype(np.int64)

    @cached_property
    def time_s(self) -> npt.NDArray[np.float64]:
        """Of every event, seconds since the first, not decreasing."""
        time_ns = self.events.time_ns
        time_ns = np.maximum.accumulate(time_ns) if len(time_ns) else time_ns
        seconds: npt.NDArray[np.float64] = (time_ns - time_ns[:1]) / 1e9
        return seconds

    @cached_property
    def _attribution(self) -> Attribution:
        return attribution(self.events, self.stacks, self.row, self.end)

    @cached_property
    def holder(self) -> Int64Array:
        """Of each buffer the index of its holder, shape (n,); -1 for those that are
        freed before the end, or whose holder is not known."""
        known = {
            address: index
            for index, holder in enumerate(self.holders)
            for address in holder.addresses
        }
        found = np.full(len(self), -1, dtype=np.int64)
        alive = np.flatnonzero(self.end == len(self.events))
        addresses = self.events.address[self.row[alive]].tolist()
        found[alive] = [known.get(address, -1) for address in addresses]
        return found

    @property
    def category(self) -> npt.NDArray[np.uint8]:
        """What each buffer holds: codes of Category, shape (n,)."""
        return self._attribution.category

    @property
    def site(self) -> Int64Array:
        """Who asked for each buffer: index into `sites`, shape (n,)."""
        return self._attribution.site

    @property
    def sites(self) -> tuple[Site, ...]:
        """All sites; one without a name where it is not known who asked."""
        return self._attribution.sites


_KNOWN: WeakKeyDictionary[Trace, Lives] = WeakKeyDictionary()


def lives_of(trace: Trace) -> Lives:
    """What is known of each allocation of `trace`; computed once per trace."""
    if trace not in _KNOWN:
        on_cpu = trace.info.device == "cpu"
        found = _lives(trace.events, trace.stacks, on_cpu)
        _KNOWN[trace] = replace(found, holders=trace.info.holders)
    return _KNOWN[trace]


def _lives(events: Columns, stacks: StackTable, on_cpu: bool) -> Lives:
    freed_rows, frees = found = pairs(events)
    made = (events.action == Action.ALLOC) & (events.requested_size > 0)
    row = np.flatnonzero(made).astype(np.int64)
    ends = np.full(len(events), len(events), dtype=np.int64)
    ends[freed_rows] = frees
    end = ends[row]
    counted = made | (events.action == Action.FREE_COMPLETED)
    before = np.append(0, np.cumsum(counted)).astype(np.int64)  # ticks before each row
    lower = before[row]
    freed = np.where(end < len(events), before[end], NEVER)
    mark = strongest_mark(events)
    cuts = np.flatnonzero((events.action == Action.STEP) & (events.mark == mark))
    bounds = cuts[: 0 if mark is Mark.NONE else None].astype(np.int64)
    begins = _edges(before[bounds], int(before[-1]))
    return Lives(
        events=events,
        stacks=stacks,
        on_cpu=on_cpu,
        pairs=found,
        row=row,
        end=end,
        size=events.requested_size[row],
        tick_row=np.flatnonzero(counted).astype(np.int64),
        lower=lower,
        freed=freed,
        upper=(
            # Of CUDA memory a stream's order counts; who asks beside the program's own
            # thread is autograd's, which never runs at the same time.
            _outlast_races(lower, freed, events.thread, counted, begins)
            if on_cpu
            else freed
        ),
        mark=mark,
        bounds=bounds,
        begins=begins,
        first=_edges(np.searchsorted(lower, begins[1:-1]), len(row)),
    )


def _edges(cuts: npt.NDArray[np.int64], end: int) -> Int64Array:
    """0, the cuts and the end."""
    return np.concatenate([[0], cuts, [end]]).astype(np.int64)


def _outlast_races(
    lower: Int64Array,
    freed: Int64Array,
    thread: npt.NDArray[np.int32],
    counted: BoolArray,
    begins: Int64Array,
) -> Int64Array:
    """`freed`, put off to the end of the parallel region that a block lives in.

    Within a parallel region (an operator's inner threads, each with its scratch) the
    order of requests and frees changes from run to run, so all blocks made and freed
    in one count as alive together. A region is where threads other than the busiest
    one show up, and as many events around as the threads of a step can have exchanged;
    it does not outlast the step. thread: of every event. counted: which of them are
    ticks. begins: of the steps, and the clock's end.
    """
    if (thread == thread[:1]).all():
        return freed
    thread = thread[counted]
    kinds, counts = np.unique(thread, return_counts=True)
    if len(kinds) < 2:
        return freed
    others = np.flatnonzero(thread != kinds[np.argmax(counts)])
    ends_of_steps = begins[1:]
    steps = zip(begins[:-1].tolist(), ends_of_steps.tolist(), strict=True)
    reach = 2 * max(len(np.unique(thread[begin:end])) for begin, end in steps)
    apart = np.flatnonzero(np.diff(others) > 2 * reach)
    first = others[np.append(0, apart + 1)] - reach
    stop = others[np.append(apart, len(others) - 1)] + reach
    region = np.maximum(np.searchsorted(first, lower, side="right") - 1, 0)
    inside = (lower >= first[region]) & (freed <= stop[region])
    step = np.searchsorted(ends_of_steps, freed, side="left")
    last = ends_of_steps[np.minimum(step, len(ends_of_steps) - 1)]
    until = np.minimum(stop[region], last)
    outlasted: Int64Array = np.where(inside, np.maximum(freed, until), freed)
    return outlasted


def strongest_mark(events: Columns) -> Mark:
    """The kind of boundary to go by: explicit, else optimizer, else forward."""
    kinds = events.mark[events.action == Action.STEP]
    return Mark(int(kinds.max())) if len(kinds) else Mark.NONE


def pairs(events: Columns) -> tuple[_Rows, _Rows]:
    """The rows of the allocations that are freed, and of the frees; shape (k,) each.

    Addresses are reused, so a free ends the latest allocation of its address on its
    device. An allocation at an address that still seems live (its free was missed)
    leaves the earlier one unmatched. A FREE_REQUESTED only announces a free, and ends
    nothing.
    """
    return _Places(events.action, events.address, events.device).pairs()


class OpenBlocks:
    """Blocks not freed yet, from one piece of a trace to the next.

    What is kept grows with the blocks that are live, not with the trace.
    """

    def __init__(self) -> None:
        none = Columns.of()
        self._address, self._device = none.address, none.device
        self._size = none.requested_size

    def freed(self, events: Columns) -> Int64Array:
        """For each event the bytes it frees, exact, wherever their block was made.

        int64, shape (m,); UNMATCHED (-1) for all but a free that ends an allocation.
        """
        begin = len(self._size)
        made = np.full(begin, Action.ALLOC, dtype=np.uint8)
        action = np.concatenate([made, events.action])
        address = np.concatenate([self._address, events.address])
        device = np.concatenate([self._device, events.device])
        size = np.concatenate([self._size, events.requested_size])
        places = _Places(action, address, device)
        alloc, free = places.pairs()
        freed = np.full(len(action), UNMATCHED, dtype=np.int64)
        freed[free] = size[alloc]
        live = places.open()
        self._address, self._device = address[live], device[live]
        self._size = size[live]
        return freed[begin:]


class Summary:
    """What a trace holds, counted piece by piece.

    events: how many. peak_live: the most bytes alive at any moment, exact sizes.
    failed: how many requests failed; failed_bytes: of the first of them.
    """

    def __init__(self) -> None:
        self.events = 0
        self.peak_live = 0
        self.failed = self.failed_bytes = 0
        self._live = 0
        self._marks = np.zeros(max(Mark) + 1, dtype=np.int64)

    @classmethod
    def of(cls, events: Columns) -> Summary:
        """Of a whole trace's events."""
        summary = cls()
        summary.add(events, OpenBlocks().freed(events))
        return summary

    def add(self, events: Columns, freed: Int64Array) -> None:
        """Count one more piece. freed: as `OpenBlocks.freed` has it."""
        made = events.action == Action.ALLOC
        change = np.where(made, events.requested_size, -np.maximum(freed, 0))
        live = self._live + np.cumsum(change)
        self.events += len(events)
        self.peak_live = max(self.peak_live, int(live.max(initial=0)))
        self._live = int(live[-1]) if len(live) else self._live
        failed = events.requested_size[events.action == Action.OOM]
        if not self.failed and len(failed):
            self.failed_bytes = int(failed[0])
        self.failed += len(failed)
        marks = events.mark[events.action == Action.STEP]
        self._marks += np.bincount(marks, minlength=len(self._marks))

    @property
    def mark(self) -> Mark:
        """The kind of boundary to go by, as `strongest_mark` has it."""
        return Mark(max(np.flatnonzero(self._marks).tolist(), default=Mark.NONE))

    @property
    def steps(self) -> int:
        """How often that boundary came."""
        return int(self._marks[self.mark]) if self.mark is not Mark.NONE else 0


class _Places:
    """The allocations and frees of each place, in order, one place after the other.

    Sorted by place and then by row, an allocation and its free are neighbours.
    """

    def __init__(
        self,
        action: npt.NDArray[np.uint8],
        address: npt.NDArray[np.uint64],
        device: npt.NDArray[np.int16],
    ) -> None:
        made = action == Action.ALLOC
        rows = np.flatnonzero(made | (action == Action.FREE_COMPLETED)).astype(np.int32)
        address = address[rows]
        one = (device == device[:1]).all()
        device = device[:0] if one else device[rows]
        order = (
            np.argsort(address, kind="stable") if one else np.lexsort((address, device))
        )
        self._rows = rows[order]
        address = address[order]
        self._same: BoolArray = address[1:] == address[:-1]
        if not one:
            device = device[order]
            self._same &= device[1:] == device[:-1]
        self._made = made[self._rows]

    def pairs(self) -> tuple[_Rows, _Rows]:
        """The rows of each allocation that is freed, and of its free."""
        pair = self._same & self._made[:-1] & ~self._made[1:]
        return self._rows[:-1][pair], self._rows[1:][pair]

    def open(self) -> _Rows:
        """The rows of the allocations that come last at their places."""
        last = np.ones(len(self._rows), dtype=np.bool_)
        last[:-1] = ~self._same
        found: _Rows = self._rows[last & self._made]
        return found
