"""Recording CUDA memory from within torch's own allocator, which tells of its events.

The allocator calls memplan's library for each of them, beside its own history, which
stays the program's to use. Nothing overflows: they go to the recording's journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from memplan.recording.cuda_library import (
    SlotLibrary,
    library_path,
    observe_events,
    require_known,
)
from memplan.trace.trace import Action

_ALIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")


class CudaObserver:
    """Tells the recording that runs of CUDA's events, from the first use of CUDA on.

    began: whether it does, or did. fault: why not, though CUDA was used; "" otherwise.
    listener: is called once it has begun.
    """

    def __init__(self) -> None:
        self.began = False
        self.fault = ""
        self.listener: Callable[[], None] | None = None
        self._torch: Any = None
        self._instead: Callable[[Any], None] | None = None
        self._library: SlotLibrary | None = None

    def arm(self, torch: Any, instead: Callable[[Any], None] | None) -> None:
        """Begin when CUDA is first used, or now if it is in use; uses no CUDA.

        instead: called with `torch` then where that cannot be; see `fault`.
        """
        self._torch, self._instead = torch, instead
        torch.cuda._lazy_call(self._begin)

    def stop(self) -> int:
        """Stop; returns how many events were lost because memory ran out.

        Does nothing if it did not begin.
        """
        self._torch = None
        if self._library is None:
            return 0
        self._library.observe(None)
        return int(self._library.missed())

    def _begin(self) -> None:
        from memplan.native import _alloc

        torch = self._torch
        if torch is None:  # CUDA was first used after the recording's end
            return
        try:
            library = SlotLibrary(library_path())
            require_known(library, torch, events=True)
            library.heed(_alloc.interruptions_address())
            observe_events(library, torch)
            library.observe(_alloc.observation_address())
        except Exception as error:  # never raise into the program: reported later
            self.fault = str(error)
            if self._instead is not None:
                self._instead(torch)
            return
        self._library = library
        self.began = True
        if self.listener is not None:
            self.listener()
        with contextlib.suppress(Exception):  # of a device that has failed
            for event in _alive(torch.cuda.memory_snapshot()):
                library.tell(*event)


_Event = tuple[Action, int, int, int, int]


def _alive(segments: list[dict[str, Any]]) -> Iterator[_Event]:
    """The segments and blocks that exist already, as events: action, device, stream,
    address, bytes."""
    for segment in segments:
        device, stream, address, size = (
            segment[name] for name in ("device", "stream", "address", "total_size")
        )
        yield Action.SEGMENT_ALLOC, device, 0, address, size
        for block in segment["blocks"]:
            if block["state"] in _ALIVE:
                size = block.get("requested_size") or block["size"]
                yield Action.ALLOC, device, stream, block["address"], size
