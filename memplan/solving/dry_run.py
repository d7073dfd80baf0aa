"""A dry run of a recorded program under its plan: what torch would reserve of a GPU.

The loader's own server says which requests the arena serves; a model of torch's
allocator serves the others.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from memplan.core.plan import Plan
from memplan.core.tables import replay_arrays
from memplan.trace.caching_allocator import CachingAllocator
from memplan.trace.importers.snapshot_history import rounded
from memplan.trace.reserved import most_reserved
from memplan.trace.steps import step_marks
from memplan.trace.streams import one_stream
from memplan.trace.trace import Action, Columns, Mark, Trace

if TYPE_CHECKING:
    from memplan.native._alloc import Server

MOST_EVENTS = 1_000_000
NEARLY = 100  # the rules hold if they predict the recording to one part in so many


def predicted_bytes(trace: Trace, plan: Plan) -> int:
    """The most bytes that torch would have reserved in the recorded run under `plan`.

    The arena comes with the first request that it serves, when segments without a
    block have been given back, as the loader does. 0 where that is not known: the
    recording is not whole, or has more than MOST_EVENTS events, or the allocator did
    not reserve what its rules say.
    """
    events, recorded = trace.events, most_reserved(trace.events)
    whole = trace.info.complete and len(events) <= MOST_EVENTS
    if not whole or not recorded:
        return 0
    if abs(_Run(events).most_reserved() - recorded) > recorded // NEARLY:
        return 0
    own = one_stream(trace).events
    requests = own.stream[own.action == Action.ALLOC]
    return _Run(events, plan, int(requests[0]), recorded).most_reserved()


class _Run:
    """The events of all streams, from the program's start."""

    def __init__(
        self,
        events: Columns,
        plan: Plan | None = None,
        stream: int = 0,
        recorded: int = 0,
    ) -> None:
        """plan: of `stream`; None: torch serves all. recorded: bytes up to which what
        departs from the plan lies outside the arena."""
        self._events, self._stream, self._recorded = events, stream, recorded
        self._allocators: defaultdict[int, CachingAllocator]
        self._allocators = defaultdict(CachingAllocator)
        self._server: Server | None = None
        self._arena, self._marks = 0, tuple[Mark, ...]()
        self._made = False
        if plan is not None:
            from memplan.native import _alloc

            self._arena = rounded(plan.arena_bytes)
            table = replay_arrays(plan).table(self._arena, self._arena, cuda=True)
            self._server = _alloc.Server(table)
            self._marks = step_marks(plan.provenance.program)

    def most_reserved(self) -> int:
        """Bytes of segments."""
        events, server = self._events, self._server
        # Where a block lies: offset in the arena, or its allocator and address.
        blocks: dict[int, int | tuple[CachingAllocator, int]] = {}
        most = 0
        for action, mark, address, size, stream in zip(
            events.action.tolist(),
            events.mark.tolist(),
            events.address.tolist(),
            events.size.tolist(),
            events.stream.tolist(),
            strict=True,
        ):
            if action == Action.FREE_COMPLETED:
                block = blocks.pop(address, None)
                if isinstance(block, tuple):
                    block[0].free(block[1])
                elif block is not None and server is not None:
                    server.give_back(block)
            elif action == Action.ALLOC:
                blocks[address] = self._served(size, stream)
                most = max(most, self._reserved())
            elif action == Action.STEP and server is not None and mark in self._marks:
                server.next_step()
                if self._made:
                    server.allow_fallback(max(self._recorded - self._reserved(), 0))
        return most

    def _served(self, size: int, stream: int) -> int | tuple[CachingAllocator, int]:
        offset = -1
        if self._server is not None and stream == self._stream:
            offset = self._server.serve(size)
        allocator = self._allocators[stream]
        if offset < 0:
            return allocator, allocator.allocate(size)[0]
        if not self._made:
            self._made = True
            for each in self._allocators.values():
                each.empty_cache()
            allocator.allocate(self._arena)
        return offset

    def _reserved(self) -> int:
        return sum(each.reserved for each in self._allocators.values())
