"""Where a process's resident memory lives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.recording.resident import peak_resident_bytes

if TYPE_CHECKING:
    from memplan.native._alloc import Replay


@dataclass(frozen=True)
class Memory:
    """Bytes of a run under a plan.

    peak_resident: of the process, at its highest; of that, about: arena, its resident
    pages; tensors_outside, alive outside it when most tensors were; before, resident
    when the loader started; other, the rest, such as operators' scratch and pages that
    the C library keeps.
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


def where_memory_lives(
    before: int, replays: Sequence[Replay], tensors: dict[str, int]
) -> Memory:
    """The Memory of this process; its arena is that of all `replays` together.

    tensors: of the native `tensor_bytes`.
    """
    peak = peak_resident_bytes()
    arena = _resident_in(
        [(replay.base, replay.base + replay.reserved_bytes) for replay in replays]
    )
    outside = tensors["outside_at_most"]
    return Memory(
        peak_resident=peak,
        arena=arena,
        tensors_outside=outside,
        before=before,
        other=peak - arena - outside - before,
        most_live=tensors["most_live"],
        most_live_in_arena=tensors["most_live"] - outside,
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
