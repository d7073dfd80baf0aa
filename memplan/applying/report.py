"""What applying a plan did: requests, memory, faults and time, and where it lived."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from memplan.applying.payoff import GivenUp
from memplan.applying.recompute import RecomputeReport
from memplan.applying.replan import Replan
from memplan.core.plan import DeviceRun, Plan, RunStats
from memplan.recording.ranks import rank
from memplan.recording.usage import (
    Spread,
    StepClock,
    StepSpreads,
    peak_resident_bytes,
    resident_bytes,
    run_stats,
    step_spreads,
)

if TYPE_CHECKING:
    from memplan.native._alloc import Replay

SCHEMA = "memplan.apply-report"
VERSION = 1


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
class DeviceMemory:
    """Bytes of a CUDA device, as this process has used it so far.

    reserved_peak, allocated_peak: of torch's allocator, arenas and all; driver_used: of
    the whole device, now, other processes' too. mallocs, frees: calls of cudaMalloc and
    cudaFree by torch's allocator.
    """

    reserved_peak: int
    allocated_peak: int
    driver_used: int
    mallocs: int
    frees: int


@dataclass(frozen=True)
class Report:
    """One run under a plan. Requests and bytes are those of the hot steps.

    requests: all of them; planned_requests: served at their planned offset;
    unplanned_requests: left to the default allocator, as planned; online_requests:
    departures placed in the arena's free space; fallback_requests: departures served
    by the default allocator; conflicts: planned ranges that were taken, each of which
    is a departure too. warmup: the same counts for the steps before the hot ones.
    run, recorded: memory, faults and time of this run, and of the recorded one, which
    ran under the recorder and perhaps for another time: no measure of what the plan
    saves. spread: over this run's steps. threads, recorded_threads: of torch.
    recorded_devices: what the recorded run of each device's plan took of its GPU.
    steps: boundaries seen. arena_bytes is reserved; only pages touched are resident.
    interrupted_requests: between `interrupt` and `resume`, not counted elsewhere.
    replans: each time the plan was made anew; given_up: each time it did not pay, and
    all requests went to the default allocator, until it was made anew. memory: where
    it lived, on the CPU.
    device: "cpu" or "cuda"; devices: `memplan.applying.cuda.stats` of each CUDA device;
    device_memory: what torch and the driver say of each; device_seconds: over the later
    half of the steps, by the device's own clock. fault: why nothing was planned though
    the program ran. rank: this process's among those that a launcher started; None if
    it was launched alone. recompute: of a plan that computes modules again.
    """

    requests: int
    planned_requests: int
    unplanned_requests: int
    online_requests: int
    online_bytes: int
    fallback_requests: int
    fallback_bytes: int
    conflicts: int
    arena_bytes: int
    lower_bound_bytes: int
    steps: int
    warmup: dict[str, int]
    run: RunStats
    recorded: RunStats
    spread: StepSpreads
    threads: int = 0
    recorded_threads: int = 0
    recorded_devices: dict[int, DeviceRun] = field(default_factory=dict)
    interrupted_requests: int = 0
    replans: tuple[Replan, ...] = ()
    given_up: tuple[GivenUp, ...] = ()
    memory: Memory | None = None
    device: str = "cpu"
    devices: dict[int, dict[str, int]] = field(default_factory=dict)
    device_memory: dict[int, DeviceMemory] = field(default_factory=dict)
    device_seconds: Spread = field(default_factory=Spread)
    fault: str = ""
    rank: int | None = field(default_factory=rank)
    recompute: RecomputeReport | None = None

    def to_json(self) -> dict[str, object]:
        """The report as plain data, with `schema` and `version`."""
        entries = {"schema": SCHEMA, "version": VERSION, **asdict(self)}
        if self.memory is not None:
            entries["memory"]["out_of_reach"] = self.memory.out_of_reach
        return {**entries["run"], **entries}


def make_report(
    plan: Plan,
    hot: dict[str, int],
    warmup: dict[str, int],
    arena_bytes: int,
    clock: StepClock,
    **more: Any,
) -> Report:
    """The report of a run: its counts, and its step boundaries.

    hot, warmup: by the native counters' names. more: other fields of the Report.
    """
    boundaries = clock.boundaries()
    return Report(
        requests=hot["requests"],
        planned_requests=hot["planned"],
        unplanned_requests=hot["unplanned"],
        online_requests=hot["online"],
        online_bytes=hot["online_bytes"],
        fallback_requests=hot["fallback"],
        fallback_bytes=hot["fallback_bytes"],
        conflicts=hot["conflicts"],
        arena_bytes=arena_bytes,
        lower_bound_bytes=plan.lower_bound,
        steps=clock.steps,
        warmup=warmup,
        run=run_stats(boundaries, clock.steps),
        recorded=plan.provenance.recorded,
        spread=step_spreads(boundaries),
        threads=_threads(),
        recorded_threads=plan.provenance.program.threads,
        device=plan.provenance.device,
        **more,
    )


def _threads() -> int:
    """Threads that torch's operators use now; 0 where torch is not loaded."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else 0


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
