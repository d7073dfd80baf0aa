"""The library that stands in torch's CUDA allocator, as Python calls it: plain data."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memplan.core.tables import ReplayArrays
from memplan.errors import EnvironmentUnfitError
from memplan.recording.cuda_library import (
    MESSAGE,
    U64,
    Signatures,
    SlotLibrary,
)

_I64S = ctypes.POINTER(ctypes.c_int64)
COUNTERS = (
    *("requests", "planned", "unplanned", "conflicts", "online", "fallback"),
    *("online_bytes", "fallback_bytes"),
)
UNLIMITED = 2**64 - 1
_MOST_STEPS = 4096  # as the native code keeps
_EVENT_BYTES = 40


class _PlanArrays(ctypes.Structure):
    _fields_ = (
        ("sizes", _I64S),
        ("offsets", _I64S),
        ("count", ctypes.c_size_t),
        ("starts", _I64S),
        ("elastic", ctypes.POINTER(ctypes.c_bool)),
        ("steps", ctypes.c_size_t),
        ("loop_begin", ctypes.c_size_t),
        ("loop_end", ctypes.c_size_t),
        ("arena_bytes", U64),
        ("unmarked", ctypes.c_bool),
        ("brief", ctypes.POINTER(ctypes.c_bool)),
        ("reserved", U64),
    )


def plan_arrays(
    plan: ReplayArrays, arena: int, reserved: int = UNLIMITED
) -> ctypes.Structure:
    """The plan as the native code takes it: pointers to its arrays, which must live on
    until it was taken. reserved: see Library.load_plan."""
    sizes, offsets, starts = (
        array.ctypes.data_as(_I64S) for array in (plan.sizes, plan.offsets, plan.starts)
    )
    return _PlanArrays(
        *(sizes, offsets, len(plan.sizes), starts),
        *((ctypes.c_bool * len(plan.elastic))(*plan.elastic), len(plan.starts)),
        *(plan.loop_begin, plan.loop_end, arena, plan.unmarked),
        None if plan.brief is None else (ctypes.c_bool * len(plan.brief))(*plan.brief),
        reserved,
    )


_PLACE = (ctypes.c_int, ctypes.c_uint)
_SIGNATURES: Signatures = {
    "load_plan": (MESSAGE, (*_PLACE, ctypes.c_bool, ctypes.POINTER(_PlanArrays))),
    # Serve requests from the arenas from now on, or leave all of them to torch.
    "serve": (None, (ctypes.c_bool,)),
    # Forget all plans; arenas go back to torch as they get empty.
    "retire": (None, ()),
    "next_step": (None, (ctypes.c_uint8,)),
    # Leave all to torch until as many calls of `resume`, which is False if there was
    # nothing to resume from.
    "interrupt": (None, ()),
    "resume": (ctypes.c_bool, ()),
    "stand_aside": (None, (*_PLACE, ctypes.c_bool)),
    "aside": (ctypes.c_bool, _PLACE),
    "planned_bytes": (U64, _PLACE),
    "reserved_bytes": (U64, _PLACE),
    "take_steps": (U64, (*_PLACE, ctypes.POINTER(U64), U64)),
    "largest": (U64, (*_PLACE, ctypes.POINTER(U64), U64)),
    "open_log": (None, _PLACE),
    "take_log": (U64, (ctypes.POINTER(ctypes.c_void_p),)),
    "stat_names": (ctypes.c_char_p, ()),
    "stats": (ctypes.c_bool, (ctypes.c_int, ctypes.POINTER(U64))),
    # Blocks alive in arenas, or waited for.
    "blocks": (U64, ()),
    # Whether an address lies in an arena.
    "holds": (ctypes.c_bool, (ctypes.c_void_p,)),
}


@dataclass(frozen=True)
class Place:
    """A device, by its index, and a stream of it: 0 for the default one, n for the n-th
    other one that asks for memory there."""

    device: int = 0
    rank: int = 0


class Library(SlotLibrary):
    """With the plans."""

    SIGNATURES = {**SlotLibrary.SIGNATURES, **_SIGNATURES}  # noqa: RUF012 - a constant

    def __init__(self, path: Path) -> None:
        """Load it. Raises EnvironmentUnfitError where it is missing or damaged."""
        super().__init__(path)
        self._names = self.stat_names().split(",")
        self.logged: Place | None = None  # whose events are kept

    def load_plan(
        self,
        place: Place,
        plan: ReplayArrays,
        arena: int,
        *,
        reserved: int = UNLIMITED,
        later: bool = False,
    ) -> None:
        """Serve one stream from a plan, in an arena of so many bytes; an offset of -1
        leaves a request to torch.

        reserved: bytes that torch may reserve of the device at any time; beyond them,
        as many as it would by then have reserved without plans. UNLIMITED where that
        is not known. later: from the next step on, instead of the plan that is there.
        Raises EnvironmentUnfitError for a device that cannot be.
        """
        arrays = plan_arrays(plan, arena, reserved)
        fault = self.function("load_plan")(
            place.device, place.rank, later, ctypes.byref(arrays)
        )
        if fault:
            raise EnvironmentUnfitError(f"the plan cannot be applied: {fault}")

    def next_step(self, mark: int = 0) -> None:
        """The program begins its next step, on all devices."""
        self.function("next_step")(mark)

    def stats(self, device: int) -> dict[str, int]:
        """Bytes and counts of one device; {} if no plan was for it."""
        values = (U64 * len(self._names))()
        if not self.function("stats")(device, values):
            return {}
        return dict(zip(self._names, values, strict=True))


class CudaReplay:
    """One stream's plan, as `memplan.applying.replan` goes by it: what the native
    `Replay` is for the CPU.

    There are no pages here: memory is the device's, whether it is touched or not.
    """

    refaulted_bytes = 0
    most_live = 0

    def __init__(self, library: Library, place: Place) -> None:
        """The plan must be loaded."""
        self._library = library
        self._place = place

    def _call(self, name: str, *arguments: object) -> Any:
        """One of the C functions, for this stream."""
        place = self._place
        return self._library.function(name)(place.device, place.rank, *arguments)

    @property
    def reserved_bytes(self) -> int:
        """What another plan may need: as much as the arena that is there, or any.

        A second, larger arena would come beside the first, which torch then keeps:
        more than the program needs without a plan.
        """
        return int(self._call("reserved_bytes"))

    @property
    def aside(self) -> bool:
        """Whether no plan is followed."""
        return bool(self._call("aside"))

    @property
    def arena_bytes(self) -> int:
        """Of the plan in force."""
        return int(self._call("planned_bytes"))

    def adopt(self, arrays: ReplayArrays, arena: int, _online: int) -> None:
        """Go by another plan from the next step on; departures may lie in all of the
        arena."""
        self._library.load_plan(self._place, arrays, arena, later=True)

    def stand_aside(self, aside: bool) -> None:
        """Follow no plan until it is exchanged, or follow it again.

        Requests are torch's then; but while older blocks keep the arena, they go to its
        free space first. It is given back once it is empty."""
        self._call("stand_aside", aside)

    def place_departures(self, placed: bool) -> None:
        """Where they go depends on what torch may reserve."""

    def take_steps(self) -> list[tuple[int, dict[str, int]]]:
        """The repeated steps that ended since the last call: number and counts."""
        width = len(COUNTERS) + 3
        values = (U64 * (width * _MOST_STEPS))()
        count = self._call("take_steps", values, _MOST_STEPS)
        rows = [values[i * width : (i + 1) * width] for i in range(count)]
        names = (*COUNTERS, "outgrown", "followed")
        return [(row[0], dict(zip(names, row[1:], strict=True))) for row in rows]

    def largest(self) -> list[int]:
        """Per request, the most bytes asked for in its place."""
        count = self._call("largest", None, 0)
        values = (U64 * count)()
        self._call("largest", values, count)
        return list(values)

    def touched(self) -> list[float]:
        """Per request, what part of it was touched: nobody can tell."""
        return [-1.0] * len(self.largest())

    def unsettle(self, unsettled: bool) -> None:
        """Nothing to look at."""

    def allow(self, slack: int) -> None:
        """Nothing goes back and forth."""

    def open_log(self) -> None:
        """Keep this stream's events to come; of one at a time, until `take_log`."""
        if self._library.logged is None:
            self._library.logged = self._place
            self._call("open_log")

    def take_log(self) -> bytes:
        """The events since, as in a journal; no more are kept. b"" if another stream's
        were."""
        if self._library.logged != self._place:
            return b""
        self._library.logged = None
        events = ctypes.c_void_p()
        count = self._library.function("take_log")(ctypes.byref(events))
        return ctypes.string_at(events, count * _EVENT_BYTES) if count else b""
