"""Where a process's resident memory lives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.recording.usage import peak_resident_bytes, resident_bytes

if TYPE_CHECKING:
    from memplan.native._alloc import Replay


@dataclass(frozen=True)
class Memory:
    """Bytes of a run under a plan.

    peak_resident: of the process, at its highest since the loader started; of that,
    about: arena, its resident pages, at least what lived there; tensors_outside, alive
    outside it when most tensors were; before, resident when the loader started; other,
    the rest, such as operators' scratch and pages that the C library keeps; 0 where the
    parts above, which are not of one moment, are more than all.
    most_live: the largest sum of live tensors, and most_live_in_arena, the part of it
    in the arena; arena_top: the highest byte of the arena that was ever used;
    returned: of cold pages that went back to the system while the program ran.
    """

    peak_resident: int
    arena: int
    tensors_outside: int
    before: int
    other: int
    most_live: int
    most_live_in_arena: int
    arena_top: int
    returned: int

    @property
    def out_of_reach(self) -> float:
        """The share of the peak, from 0 to 1, that no plan can touch: what was resident
        before the program began, and what goes by torch's allocator."""
        parts = self.before + self.other
        return min(parts / self.peak_resident, 1.0) if self.peak_resident else 0.0


@dataclass(frozen=True)
class Before:
    """Of this process when the loader started, bytes: resident, then and at its
    highest; tensors alive, of those born under an earlier plan, in all and outside its
    arena."""

    resident: int = 0
    peak: int = 0
    live: int = 0
    outside: int = 0

    @classmethod
    def now(cls, tensors: dict[str, int]) -> Before:
        """As things are. tensors: of the native `tensor_bytes`."""
        return cls(
            resident_bytes(), peak_resident_bytes(), tensors["live"], tensors["outside"]
        )


def where_memory_lives(
    before: Before, replays: Sequence[Replay], tensors: dict[str, int]
) -> Memory:
    """The Memory of this process; its arena is that of all `replays` together.

    tensors: of the native `tensor_bytes`, whose maxima are those since the loader
    started.
    """
    peak = peak_resident_bytes()
    if peak <= before.peak:  # reached before: since then it was less
        peak = max(resident_bytes(), before.resident)
    arena = _resident_in(
        [(replay.base, replay.base + replay.reserved_bytes) for replay in replays]
    )
    # What was alive before is part of what was resident before.
    outside = max(tensors["outside_at_most"] - before.outside, 0)
    most_live = max(tensors["most_live"] - before.live, 0)
    in_arena = max(most_live - outside, 0)
    # What is left of it now may be less: pages go back.
    arena = max(arena, in_arena)
    return Memory(
        peak_resident=peak,
        arena=arena,
        tensors_outside=outside,
        before=before.resident,
        other=max(peak - arena - outside - before.resident, 0),
        most_live=most_live,
        most_live_in_arena=in_arena,
        arena_top=sum(replay.top for replay in replays),
        returned=sum(replay.returned_bytes for replay in replays),
    )


def _resident_in(ranges: Sequence[tuple[int, int]]) -> int:
    """Resident bytes of the mappings that lie in one of `ranges` [begin, end), by and
    large; 0 if unknown. Several may share one mapping."""
    return sum(
        resident
        for low, high, resident in _mappings()
        if any(low < end and begin < high for begin, end in ranges)
    )


def _mappings() -> Iterator[tuple[int, int, int]]:
    """First and one past the last address of each mapping, and its resident bytes."""
    low = high = 0
    with (
        contextlib.suppress(OSError, ValueError),
        open("/proc/self/smaps", encoding="utf-8", errors="replace") as stream,
    ):
        for line in stream:
            if line.startswith("Rss:"):
                yield low, high, int(line.split()[1]) * 1024
            elif line[0] in "0123456789abcdef":
                low, high = (int(part, 16) for part in line.split()[0].split("-"))
