"""The library that stands in torch's CUDA allocator, as Python calls it: plain data."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from memplan.applying.tables import ReplayArrays
from memplan.errors import EnvironmentUnfitError

_PREFIX = "memplan_cuda_"
_U64 = ctypes.c_uint64
_I64S = ctypes.POINTER(ctypes.c_int64)
COUNTERS = (
    *("requests", "planned", "unplanned", "conflicts", "online", "fallback"),
    *("online_bytes", "fallback_bytes"),
)
_MOST_STEPS = 4096  # as the native code keeps
_EVENT_BYTES = 40


class Role(IntEnum):
    """What a slot of the allocator is for, beside the first."""

    RECORD_STREAM = 0
    BEGIN_POOL = 1
    END_POOL = 2


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
        ("arena_bytes", _U64),
        ("unmarked", ctypes.c_bool),
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
    )


# Device, stream's rank, bytes, whether the warm-up is over -> whether it may be.
_Permission = ctypes.CFUNCTYPE(
    ctypes.c_bool, ctypes.c_int, ctypes.c_uint, _U64, ctypes.c_bool
)
Permission = Callable[[int, int, int, bool], bool]
_MESSAGE, _PLACE = ctypes.c_char_p, (ctypes.c_int, ctypes.c_uint)
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "check": (_MESSAGE, (ctypes.c_char_p,)),
    "prepare": (_MESSAGE, (ctypes.c_char_p,)),
    "slots": (_U64, ()),
    "watch": (None, (_U64,)),
    "stop_watching": (_U64, ()),
    "take_slot": (ctypes.c_bool, (ctypes.c_int, _U64)),
    "install": (_MESSAGE, ()),
    "installed": (ctypes.c_bool, ()),
    "load_plan": (_MESSAGE, (*_PLACE, ctypes.c_bool, ctypes.POINTER(_PlanArrays))),
    "ask": (None, (ctypes.c_void_p,)),
    "serve": (None, (ctypes.c_bool,)),
    "retire": (None, ()),
    "next_step": (None, (ctypes.c_uint8,)),
    "interrupt": (None, ()),
    "resume": (ctypes.c_bool, ()),
    "heed": (None, (ctypes.c_void_p,)),
    "stand_aside": (None, (*_PLACE, ctypes.c_bool)),
    "aside": (ctypes.c_bool, _PLACE),
    "planned_bytes": (_U64, _PLACE),
    "reserved_bytes": (_U64, _PLACE),
    "take_steps": (_U64, (*_PLACE, ctypes.POINTER(_U64), _U64)),
    "largest": (_U64, (*_PLACE, ctypes.POINTER(_U64), _U64)),
    "open_log": (None, _PLACE),
    "take_log": (_U64, (ctypes.POINTER(ctypes.c_void_p),)),
    "stat_names": (ctypes.c_char_p, ()),
    "stats": (ctypes.c_bool, (ctypes.c_int, ctypes.POINTER(_U64))),
    "blocks": (_U64, ()),
    "holds": (ctypes.c_bool, (ctypes.c_void_p,)),
}


@dataclass(frozen=True)
class Place:
    """A device, by its index, and a stream of it: 0 for the default one, n for the n-th
    other one that asks for memory there."""

    device: int = 0
    rank: int = 0


class Library:
    """`libmemplan_cuda.so`, loaded; it holds the state of all devices.

    Loaded twice from one path it is one and the same.
    """

    def __init__(self, path: Path) -> None:
        """Load it. Raises EnvironmentUnfitError where it is missing or damaged."""
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self._library, _PREFIX + name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise EnvironmentUnfitError(
                f"memplan's library for CUDA cannot be loaded ({error}); install "
                "memplan again"
            ) from None
        names: bytes = self._function("stat_names")()
        self._names = names.decode("ascii").split(",")
        self._logged: Place | None = None  # whose events are kept
        self._asked: list[object] = []  # functions that native code may call

    # ---- torch's allocator

    def check(self, torchs: Path) -> str:
        """Whether the allocator in torch's libc10_cuda.so is one that is known; changes
        nothing. "" or why not."""
        return _text(self._function("check")(str(torchs).encode()))

    def prepare(self, torchs: Path) -> str:
        """Put a copy of its virtual table in place, which calls what the table called.
        "" or why not."""
        return _text(self._function("prepare")(str(torchs).encode()))

    @property
    def slots(self) -> int:
        """Functions in the table."""
        return int(self._function("slots")())

    def watch(self, slot: int) -> None:
        """Count the calls that pass through a slot, until `stop_watching`."""
        self._function("watch")(slot)

    def stop_watching(self) -> int:
        """How many there were."""
        return int(self._function("stop_watching")())

    def take_slot(self, role: Role, slot: int) -> bool:
        """Have our function called there; False if there are too many of the role."""
        return bool(self._function("take_slot")(int(role), slot))

    def install(self) -> str:
        """Have requests come to us. "" or why that cannot be."""
        return _text(self._function("install")())

    @property
    def installed(self) -> bool:
        """Whether they do."""
        return bool(self._function("installed")())

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
        load = self._function("load_plan")
        fault = load(place.device, place.rank, later, ctypes.byref(arrays))
        if fault is not None:
            raise EnvironmentUnfitError(f"the plan cannot be applied: {_text(fault)}")

    def ask(self, permission: Permission | None) -> None:
        """Make an arena only where `permission` says so; None: always.

        It gets the device, the stream's rank, the arena's bytes, and whether the
        warm-up is over. Any thread may call it, and it must not raise."""
        asked = None if permission is None else _Permission(permission)
        self._function("ask")(ctypes.cast(asked, ctypes.c_void_p) if asked else None)
        if asked is not None:
            self._asked.append(asked)  # another thread may be calling the last one

    def serve(self, on: bool) -> None:
        """Serve requests from the arenas from now on, or leave all of them to torch."""
        self._function("serve")(on)

    def retire(self) -> None:
        """Forget all plans; arenas go back to torch as they get empty."""
        self._function("retire")()

    def next_step(self, mark: int = 0) -> None:
        """The program begins its next step, on all devices."""
        self._function("next_step")(mark)

    def interrupt(self) -> None:
        """Leave all to torch until as many calls of `resume`."""
        self._function("interrupt")()

    def resume(self) -> bool:
        """False if there was nothing to resume from."""
        return bool(self._function("resume")())

    def heed(self, interruptions: int) -> None:
        """Heed those of the CPU's allocator, too, by the address of their count."""
        self._function("heed")(interruptions)

    def stand_aside(self, place: Place, aside: bool) -> None:
        """Follow no plan on a stream until its plan is exchanged, or no longer.

        Requests are torch's then; but while older blocks keep the arena, they go to its
        free space first."""
        self._function("stand_aside")(place.device, place.rank, aside)

    def aside(self, place: Place) -> bool:
        """Whether it is left to torch."""
        return bool(self._function("aside")(place.device, place.rank))

    def planned_bytes(self, place: Place) -> int:
        """Of the arena of the plan that is there."""
        return int(self._function("planned_bytes")(place.device, place.rank))

    def reserved_bytes(self, place: Place) -> int:
        """Of the arena that is there, or so many that no plan is too large."""
        return int(self._function("reserved_bytes")(place.device, place.rank))

    def take_steps(self, place: Place) -> list[tuple[int, dict[str, int]]]:
        """The repeated steps that ended since the last call: number and counts."""
        width = len(COUNTERS) + 3
        values = (_U64 * (width * _MOST_STEPS))()
        take = self._function("take_steps")
        count = take(place.device, place.rank, values, _MOST_STEPS)
        rows = [values[i * width : (i + 1) * width] for i in range(count)]
        names = (*COUNTERS, "outgrown", "followed")
        return [(row[0], dict(zip(names, row[1:], strict=True))) for row in rows]

    def largest(self, place: Place) -> list[int]:
        """Per request of the plan that is there, the most bytes asked for."""
        largest = self._function("largest")
        count = largest(place.device, place.rank, None, 0)
        values = (_U64 * count)()
        largest(place.device, place.rank, values, count)
        return list(values)

    # ---- events

    def open_log(self, place: Place) -> None:
        """Keep the events to come of a stream; of one at a time, until `take_log`."""
        if self._logged is None:
            self._logged = place
            self._function("open_log")(place.device, place.rank)

    def take_log(self, place: Place) -> bytes:
        """A stream's events since, as in a journal; no more are kept. b"" if another
        stream's were."""
        if self._logged != place:
            return b""
        self._logged = None
        events = ctypes.c_void_p()
        count = self._function("take_log")(ctypes.byref(events))
        return ctypes.string_at(events, count * _EVENT_BYTES) if count else b""

    # ---- what came of it

    def stats(self, device: int) -> dict[str, int]:
        """Bytes and counts of one device; {} if no plan was for it."""
        values = (_U64 * len(self._names))()
        if not self._function("stats")(device, values):
            return {}
        return dict(zip(self._names, values, strict=True))

    def blocks(self) -> int:
        """Blocks alive in arenas, or waited for."""
        return int(self._function("blocks")())

    def holds(self, address: int) -> bool:
        """Whether it lies in an arena."""
        return bool(self._function("holds")(address))

    def _function(self, name: str) -> ctypes._NamedFuncPointer:
        function: ctypes._NamedFuncPointer = getattr(self._library, _PREFIX + name)
        return function


def _text(message: bytes | None) -> str:
    return "" if message is None else message.decode("utf-8", "replace")
