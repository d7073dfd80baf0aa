"""The library that stands in torch's CUDA allocator, as Python calls it: plain data."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from memplan.applying.tables import ReplayArrays
from memplan.errors import EnvironmentUnfitError
from memplan.recording.cuda_library import (
    MESSAGE,
    U64,
    Signatures,
    SlotLibrary,
    text_of,
)

_I64S = ctypes.POINTER(ctypes.c_int64)
COUNTERS = (
    *("requests", "planned", "unplanned", "conflicts", "online", "fallback"),
    *("online_bytes", "fallback_bytes"),
)
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
    )


def plan_arrays(plan: ReplayArrays, arena: int) -> ctypes.Structure:
    """The plan as the native code takes it: pointers to its arrays, which must live on
    until it was taken."""
    sizes, offsets, starts = (
        array.ctypes.data_as(_I64S) for array in (plan.sizes, plan.offsets, plan.starts)
    )
    return _PlanArrays(
        *(sizes, offsets, len(plan.sizes), starts),
        *((ctypes.c_bool * len(plan.elastic))(*plan.elastic), len(plan.starts)),
        *(plan.loop_begin, plan.loop_end, arena, plan.unmarked),
        None if plan.brief is None else (ctypes.c_bool * len(plan.brief))(*plan.brief),
    )


# Device, stream's rank, bytes, whether the warm-up is over -> whether it may be.
_Permission = ctypes.CFUNCTYPE(
    ctypes.c_bool, ctypes.c_int, ctypes.c_uint, U64, ctypes.c_bool
)
Permission = Callable[[int, int, int, bool], bool]
_PLACE = (ctypes.c_int, ctypes.c_uint)
_SIGNATURES: Signatures = {
    "load_plan": (MESSAGE, (*_PLACE, ctypes.c_bool, ctypes.POINTER(_PlanArrays))),
    "ask": (None, (ctypes.c_void_p,)),
    "serve": (None, (ctypes.c_bool,)),
    "retire": (None, ()),
    "next_step": (None, (ctypes.c_uint8,)),
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
    "blocks": (U64, ()),
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
        names: bytes = self.function("stat_names")()
        self._names = names.decode("ascii").split(",")
        self._logged: Place | None = None  # whose events are kept
        self._asked: list[object] = []  # functions that native code may call

    # ---- plans

    def load_plan(
        self, place: Place, plan: ReplayArrays, arena: int, *, later: bool = False
    ) -> None:
        """Serve one stream from a plan, in an arena of so many bytes; an offset of -1
        leaves a request to torch.

        later: from the next step on, instead of the plan that is there.
        Raises EnvironmentUnfitError for a device that cannot be.
        """
        arrays = plan_arrays(plan, arena)
        load = self.function("load_plan")
        fault = load(place.device, place.rank, later, ctypes.byref(arrays))
        if fault is not None:
            raise EnvironmentUnfitError(f"the plan cannot be applied: {text_of(fault)}")

    def ask(self, permission: Permission | None) -> None:
        """Make an arena only where `permission` says so; None: always.

        It gets the device, the stream's rank, the arena's bytes, and whether the
        warm-up is over. Any thread may call it, and it must not raise."""
        asked = None if permission is None else _Permission(permission)
        self.function("ask")(ctypes.cast(asked, ctypes.c_void_p) if asked else None)
        if asked is not None:
            self._asked.append(asked)  # another thread may be calling the last one

    def serve(self, on: bool) -> None:
        """Serve requests from the arenas from now on, or leave all of them to torch."""
        self.function("serve")(on)

    def retire(self) -> None:
        """Forget all plans; arenas go back to torch as they get empty."""
        self.function("retire")()

    def next_step(self, mark: int = 0) -> None:
        """The program begins its next step, on all devices."""
        self.function("next_step")(mark)

    def interrupt(self) -> None:
        """Leave all to torch until as many calls of `resume`."""
        self.function("interrupt")()

    def resume(self) -> bool:
        """False if there was nothing to resume from."""
        return bool(self.function("resume")())

    def stand_aside(self, place: Place, aside: bool) -> None:
        """Follow no plan on a stream until its plan is exchanged, or no longer.

        Requests are torch's then; but while older blocks keep the arena, they go to its
        free space first."""
        self.function("stand_aside")(place.device, place.rank, aside)

    def aside(self, place: Place) -> bool:
        """Whether it is left to torch."""
        return bool(self.function("aside")(place.device, place.rank))

    def planned_bytes(self, place: Place) -> int:
        """Of the arena of the plan that is there."""
        return int(self.function("planned_bytes")(place.device, place.rank))

    def reserved_bytes(self, place: Place) -> int:
        """Of the arena that is there, or so many that no plan is too large."""
        return int(self.function("reserved_bytes")(place.device, place.rank))

    def take_steps(self, place: Place) -> list[tuple[int, dict[str, int]]]:
        """The repeated steps that ended since the last call: number and counts."""
        width = len(COUNTERS) + 3
        values = (U64 * (width * _MOST_STEPS))()
        take = self.function("take_steps")
        count = take(place.device, place.rank, values, _MOST_STEPS)
        rows = [values[i * width : (i + 1) * width] for i in range(count)]
        names = (*COUNTERS, "outgrown", "followed")
        return [(row[0], dict(zip(names, row[1:], strict=True))) for row in rows]

    def largest(self, place: Place) -> list[int]:
        """Per request of the plan that is there, the most bytes asked for."""
        largest = self.function("largest")
        count = largest(place.device, place.rank, None, 0)
        values = (U64 * count)()
        largest(place.device, place.rank, values, count)
        return list(values)

    # ---- events

    def open_log(self, place: Place) -> None:
        """Keep the events to come of a stream; of one at a time, until `take_log`."""
        if self._logged is None:
            self._logged = place
            self.function("open_log")(place.device, place.rank)

    def take_log(self, place: Place) -> bytes:
        """A stream's events since, as in a journal; no more are kept. b"" if another
        stream's were."""
        if self._logged != place:
            return b""
        self._logged = None
        events = ctypes.c_void_p()
        count = self.function("take_log")(ctypes.byref(events))
        return ctypes.string_at(events, count * _EVENT_BYTES) if count else b""

    # ---- what came of it

    def stats(self, device: int) -> dict[str, int]:
        """Bytes and counts of one device; {} if no plan was for it."""
        values = (U64 * len(self._names))()
        if not self.function("stats")(device, values):
            return {}
        return dict(zip(self._names, values, strict=True))

    def blocks(self) -> int:
        """Blocks alive in arenas, or waited for."""
        return int(self.function("blocks")())

    def holds(self, address: int) -> bool:
        """Whether it lies in an arena."""
        return bool(self.function("holds")(address))
