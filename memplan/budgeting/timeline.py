"""The trace as it would be if some units were computed again.

What a unit alone keeps is freed at the end of its call; where the backward pass first
needs it, the call's requests are made again, up to the last that autograd saves. What
comes out is a trace with calls as before, so that a unit around those can be computed
again as well: its second call then makes theirs again, too.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from memplan.arrays import Int64Array
from memplan.budgeting.step import NEVER, NONE, Passed, Recorded
from memplan.budgeting.units import Span
from memplan.trace.lives import lives_of
from memplan.trace.trace import Action, Columns

_UNIT = 64  # bytes that made-up addresses are multiples of


class _At(enum.IntEnum):
    """Where a new event stands before a row: in the call that ends there, where the
    operator before is done, where something is needed again, in the call that begins
    there."""

    END = -4
    DONE = -3
    NEEDED = -2
    BEGIN = -1


_KEYS = 5  # of a row


def remade(recorded: Recorded, spans: Sequence[Span]) -> Recorded:
    """`recorded` with the calls in `spans`, of which none lies in another, made
    again."""
    draft = _Draft(recorded)
    for span in spans:
        draft.remake(span)
    draft.drop()
    draft.postpone()
    draft.add_workspaces(min((span.needed for span in spans), default=0))
    events, key = draft.events()
    trace = replace(recorded.trace, events=events)
    lives = lives_of(trace)

    def rows(at: Int64Array, where: int) -> Int64Array:
        known = at != NEVER
        found = np.full(len(at), NEVER, dtype=np.int64)
        found[known] = np.searchsorted(key, at[known] * _KEYS + where)
        return found

    # Of each allocation, the one that it is now; and last of none.
    row = np.searchsorted(key, recorded.lives.row * _KEYS)
    now = np.append(np.searchsorted(lives.row, row), NONE).astype(np.int64)
    dropped = np.full(len(lives) + 1, NEVER, dtype=np.int64)
    dropped[now[:-1]] = rows(recorded.dropped, _At.END)
    gone = np.zeros(len(recorded.saver), dtype=np.bool_)
    more: list[tuple[int, int, int, int]] = []
    for span in spans:
        gone |= recorded.saved_in(*span.calls)
        begin = int(np.searchsorted(key, span.begin * _KEYS + _At.BEGIN))
        needed = int(np.searchsorted(key, span.needed * _KEYS + _At.NEEDED))
        held = now[recorded.inputs.of(span.calls[0])].tolist() or [NONE]
        # Its arguments live until it ends, those of a run's first child, too.
        end = int(np.searchsorted(key, span.end * _KEYS + _At.END))
        known = [each for each in held if each != NONE and dropped[each] != NEVER]
        dropped[known] = np.maximum(dropped[known], end)
        # The generator's state is read before the inputs are saved.
        saved = begin + bool(span.state)
        more += [(span.calls[0], saved, needed, buffer) for buffer in held]
    saver, packed, unpacked, buffer = np.array(more, np.int64).reshape(-1, 4).T
    kept = ~gone
    return replace(
        recorded,
        trace=trace,
        lives=lives,
        begin=rows(recorded.begin, _At.BEGIN),
        end=rows(recorded.end, _At.DONE),
        saver=np.append(recorded.saver[kept], saver),
        packed=np.append(rows(recorded.packed[kept], _At.END), packed),
        unpacked=np.append(rows(recorded.unpacked[kept], _At.NEEDED), unpacked),
        cached=np.append(
            rows(recorded.cached[kept], _At.NEEDED) * (recorded.cached[kept] > 0),
            np.zeros(len(more), dtype=np.int64),
        ),
        buffer=np.append(now[recorded.buffer[kept]], buffer),
        inputs=Passed(recorded.inputs.call, now[recorded.inputs.buffer]),
        outputs=Passed(recorded.outputs.call, now[recorded.outputs.buffer]),
        dropped=dropped[:-1],
        again=True,
    )


@dataclass
class _Draft:
    """Events to be: those of a trace, some changed, and more between them."""

    recorded: Recorded
    key: list[int] = field(default_factory=list)  # where each new one goes
    # Of the new ones: action, address, the row of one that is like it, bytes.
    row: list[tuple[int, int, int, int]] = field(default_factory=list)
    # By allocation: inputs, up to which row they are to live, and are used; and from
    # which row on nothing but the unit keeps what is to be made again.
    until: dict[int, int] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    dropped: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        before = self.recorded.trace.events
        self.address = before.address.copy()
        top = int((self.address + before.size.astype(np.uint64)).max(initial=0))
        self._next = -(-top // _UNIT) * _UNIT

    def place(self, size: int) -> int:
        """An address that no other block ever has."""
        found = self._next
        self._next += -(-max(size, 1) // _UNIT) * _UNIT
        return found

    def add(
        self, at: int, where: _At, action: Action, address: int, like: int, size: int
    ) -> None:
        """An event before row `at`, in all else like that in row `like`."""
        self.key.append(at * _KEYS + where)
        self.row.append((int(action), address, like, size))

    def events(self) -> tuple[Columns, Int64Array]:
        """All of them, in order, and their keys: _KEYS times the row of an old one."""
        before = replace(self.recorded.trace.events, address=self.address)
        count = len(before)
        own = np.arange(count, dtype=np.int64) * _KEYS
        if not self.row:
            return before, own
        table = np.array(self.row, dtype=np.int64)
        more, keys = before.take(table[:, 2]), np.array(self.key, dtype=np.int64)
        at = np.minimum(-(-keys // _KEYS), count - 1)
        more = replace(
            more,
            action=table[:, 0].astype(np.uint8),
            mark=np.zeros(len(keys), dtype=np.uint8),
            address=table[:, 1].astype(np.uint64),
            time_ns=before.time_ns[at],
            size=table[:, 3],
            requested_size=table[:, 3],
        )
        keys = np.append(keys, own)
        order = np.argsort(keys, kind="stable").astype(np.int64)
        return Columns.joined([more, before]).take(order), keys[order]

    def remake(self, span: Span) -> None:
        """Make one call again."""
        lives = self.recorded.lives
        begin, needed, done = span.begin, span.needed, span.released
        for buffer, row in zip(span.kept.tolist(), span.dropped.tolist(), strict=True):
            self.dropped[buffer] = row
        for buffer in self.recorded.inputs.of(span.calls[0]).tolist():
            self.used[buffer] = max(self.used.get(buffer, 0), done)
        # While the call is made again the generator's present state is kept, too, and
        # the backward pass of batch norm reads clones of its statistics.
        like = int(lives.row[0])
        state = self.place(span.state)
        if span.state:
            self.add(needed, _At.NEEDED, Action.ALLOC, state, like, span.state)
        for size in span.clones:
            self.pass_by(size, needed, _At.NEEDED, done)
        self._requests(span)
        if span.state:
            self.add(needed, _At.NEEDED, Action.FREE_COMPLETED, state, like, span.state)
        # Until nothing more is needed, it keeps its inputs and the generator's state.
        for buffer in span.held.tolist():
            self.until[buffer] = max(self.until.get(buffer, 0), done)
        for size in (*(span.state,) * bool(span.state), *span.copies):
            self.pass_by(size, begin, _At.BEGIN, done)

    def pass_by(self, size: int, at: int, where: _At, done: int) -> None:
        """A block from row `at` to where the operator before row `done` is over."""
        place, like = self.place(size), int(self.recorded.lives.row[0])
        self.add(at, where, Action.ALLOC, place, like, size)
        self.add(done, _At.DONE, Action.FREE_COMPLETED, place, like, size)

    def _requests(self, span: Span) -> None:
        """What the call asks for and frees when it is made again."""
        lives, needed = self.recorded.lives, span.needed
        first, last = np.searchsorted(lives.row, [span.begin, span.stop]).tolist()
        kept = set(span.kept.tolist())
        second = dict(zip(span.twice.tolist(), span.until.tolist(), strict=True))
        own = range(first, last)
        again = [(int(lives.row[buffer]), buffer, True) for buffer in own]
        again += [
            (min(int(lives.end[buffer]), span.stop), buffer, False)
            for buffer in own
            if buffer not in kept and buffer not in second
        ]
        places: dict[int, int] = {}
        for _, buffer, made in sorted(again):
            row, size = int(lives.row[buffer]), int(lives.size[buffer])
            if made:
                places[buffer] = self.place(size)
            action = Action.ALLOC if made else Action.FREE_COMPLETED
            self.add(needed, _At.NEEDED, action, places[buffer], row, size)
        for buffer, done in second.items():
            row, size = int(lives.row[buffer]), int(lives.size[buffer])
            place = places[buffer]
            self.add(done, _At.DONE, Action.FREE_COMPLETED, place, row, size)
        for buffer in kept & places.keys():
            free = int(lives.end[buffer])
            if free < len(self.address):
                self.address[free] = places[buffer]

    def add_workspaces(self, needed: int) -> None:
        """The workspaces of the thread that makes the first call again."""
        lives = self.recorded.lives
        for buffer in self.recorded.workspaces.tolist():
            row, size = int(lives.row[buffer]), int(lives.size[buffer])
            place = self.place(size)
            self.add(needed, _At.NEEDED, Action.ALLOC, place, row, size)

    def drop(self) -> None:
        """Free what was kept, once no call that is made again is given it."""
        lives = self.recorded.lives
        for buffer, dropped in self.dropped.items():
            row, size = int(lives.row[buffer]), int(lives.size[buffer])
            at, old = max(dropped, self.used.get(buffer, 0)), int(self.address[row])
            self.add(at, _At.END, Action.FREE_COMPLETED, old, row, size)

    def postpone(self) -> None:
        """Let inputs live on: their own frees become those of nothing."""
        lives = self.recorded.lives
        for buffer, until in self.until.items():
            row, free = int(lives.row[buffer]), int(lives.end[buffer])
            if not free < until < len(self.address):
                continue
            size = int(lives.size[buffer])
            # The address may be reused before: the block takes one that is its own.
            own = self.place(size)
            self.address[row] = own
            self.address[free] = self.place(1)
            self.add(until, _At.DONE, Action.FREE_COMPLETED, own, row, size)
