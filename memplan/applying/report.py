"""What applying a plan did: requests, memory, faults and time."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from memplan.applying.payoff import GivenUp
from memplan.applying.replan import Replan
from memplan.applying.residency import Memory
from memplan.core.plan import DeviceRun, Plan, RunStats
from memplan.recording.ranks import rank
from memplan.recording.usage import (
    Spread,
    StepClock,
    StepSpreads,
    run_stats,
    step_spreads,
)

SCHEMA = "memplan.apply-report"
VERSION = 1


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
    it was launched alone.
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
