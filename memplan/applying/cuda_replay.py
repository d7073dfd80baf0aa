"""One stream's plan as `memplan.applying.replan` goes by it: the CPU's, on CUDA."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.applying.cuda_library import Library, Place
from memplan.applying.tables import ReplayArrays


@dataclass(frozen=True, eq=False)
class CudaTable:
    """A plan's arrays, and the bytes of the arena that it needs."""

    arrays: ReplayArrays
    arena_bytes: int

    @classmethod
    def of(cls, arrays: ReplayArrays, arena_bytes: int, _online: int) -> CudaTable:
        """As `ReplayArrays.table`; departures may lie in all of the arena."""
        return cls(arrays, arena_bytes)


class CudaReplay:
    """What the native `Replay` is for the CPU.

    There are no pages here: memory is the device's, whether it is touched or not.
    """

    refaulted_bytes = 0
    most_live = 0

    def __init__(self, library: Library, place: Place) -> None:
        """The plan must be loaded."""
        self._library = library
        self._place = place

    @property
    def reserved_bytes(self) -> int:
        """What another plan may need.

        A second, larger arena would come beside the first, which torch then keeps:
        more than the program needs without a plan. Where none was made, any may be.
        """
        return self._library.reserved_bytes(self._place)

    @property
    def aside(self) -> bool:
        """Whether no plan is followed."""
        return self._library.aside(self._place)

    @property
    def arena_bytes(self) -> int:
        """Of the plan in force."""
        return self._library.planned_bytes(self._place)

    def adopt(self, table: CudaTable) -> None:
        """Go by another plan from the next step on."""
        arena = table.arena_bytes
        self._library.load_plan(self._place, table.arrays, arena, later=True)

    def stand_aside(self, aside: bool) -> None:
        """Follow no plan, and give the arena back once it is empty, or no longer."""
        self._library.stand_aside(self._place, aside)

    def place_departures(self, placed: bool) -> None:
        """They always go to the arena's free space: it is the device's either way."""

    def take_steps(self) -> list[tuple[int, dict[str, int]]]:
        """The hot steps that ended since the last call."""
        return self._library.take_steps(self._place)

    def largest(self) -> list[int]:
        """Per request, the most bytes asked for in its place."""
        return self._library.largest(self._place)

    def touched(self) -> list[float]:
        """Per request, what part of it was touched: nobody can tell."""
        return [-1.0] * len(self.largest())

    def unsettle(self, unsettled: bool) -> None:
        """Nothing to look at."""

    def allow(self, slack: int) -> None:
        """Nothing goes back and forth."""

    def open_log(self) -> None:
        """Keep the stream's events from here on."""
        self._library.open_log(self._place)

    def take_log(self) -> bytes:
        """What was kept, as in a journal."""
        return self._library.take_log(self._place)
