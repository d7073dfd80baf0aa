"""Benchmark records: what each contender took on one network at one batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from memplan.errors import UsageError
from memplan.fusing import networks
from memplan.fusing.bench.contenders import COMPILED, check
from memplan.fusing.bench.rounds import (
    ChildError,
    Contender,
    Rounds,
    started,
)
from memplan.fusing.bench.worker import Job
from memplan.scratch import scratch_folder

Record = dict[str, Any]
Key = tuple[str, int, int]  # network, batch, threads

DEFAULT = ("eager", "channels_last", "compile", "onnxruntime", "openvino", "memplan")
MOST_BATCH = 1024
MOST_THREADS = 256


@dataclass(frozen=True)
class BenchOptions:
    """How to measure.

    contenders: names of `contenders.NAMES`; "compile" is the fastest of `variants`.
    repeats: rounds that count, at least 1. clock: "wall", or "cpu" for processor time,
    which is steadier on a machine with others on it, and means nothing beyond one
    thread. turn_seconds: how long a contender is called in one round. timeout: seconds
    that it has for its first call, or for one turn.
    """

    contenders: tuple[str, ...] = DEFAULT
    variants: tuple[str, ...] = COMPILED
    repeats: int = 5
    clock: str = "wall"
    turn_seconds: float = 0.2
    timeout: float = 1800.0
    shares: bool = False

    def __post_init__(self) -> None:
        for name in (*self.contenders, *self.variants):
            check(name)
        if not self.contenders or len(set(self.contenders)) < len(self.contenders):
            raise UsageError("name every contender once, and at least one")
        if "compile" in self.contenders and not self.variants:
            raise UsageError("name at least one way to compile")
        if not set(self.variants) <= set(COMPILED):
            raise UsageError(f"ways to compile are {', '.join(COMPILED)}")
        if self.repeats < 1:
            raise UsageError(f"{self.repeats} repeats; at least 1")
        if self.clock not in ("wall", "cpu"):
            raise UsageError(f"{self.clock!r} is no clock; there are wall and cpu")
        if not (self.turn_seconds > 0 and self.timeout > 0):
            raise UsageError("a turn and the timeout take more than 0 seconds")


def cases(
    names: Sequence[str], batches: Sequence[int], threads: Sequence[int] = (1,)
) -> list[Key]:
    """All combinations, networks first. Raises UsageError for a network that there is
    not, for a batch or threads out of range, and for none at all."""
    for name in names:
        networks.check(name)
    for batch in batches:
        if not 1 <= batch <= MOST_BATCH:
            raise UsageError(f"a batch of {batch}; it is from 1 to {MOST_BATCH}")
    for count in threads:
        if not 1 <= count <= MOST_THREADS:
            raise UsageError(f"{count} threads; there are from 1 to {MOST_THREADS}")
    found = [(name, batch, n) for n in threads for batch in batches for name in names]
    if not found:
        raise UsageError("name a network, a batch and a number of threads")
    return list(dict.fromkeys(found))


def bench(keys: Sequence[Key], options: BenchOptions | None = None) -> Iterator[Record]:
    """A record for each of `cases`, as soon as it is there; see `record_of` for what
    it holds. A contender that fails is a reason in it.

    Raises UsageError for processor time with more than one thread.
    """
    chosen = options or BenchOptions()
    if chosen.clock == "cpu" and any(threads > 1 for _, _, threads in keys):
        raise UsageError("processor time tells nothing of several threads; use wall")
    for key in keys:
        yield _measured(key, chosen)


def _measured(key: Key, options: BenchOptions) -> Record:
    name, batch, threads = key
    with scratch_folder("memplan-bench-") as folder:
        jobs = []
        for number, contender in enumerate(_expanded(options)):
            own = folder / str(number)
            own.mkdir()
            jobs.append(
                Job(contender, name, batch, threads, str(own), options.turn_seconds)
            )
        with Rounds(jobs, options.clock, options.timeout) as rounds:
            rounds.start()
            rounds.run(options.repeats)
            for job in jobs:
                rounds.check(job.contender)
                if job.contender.partition(":")[0] in ("eager", "memplan"):
                    rounds.weigh(job.contender)
            shares = rounds.shares("eager") if options.shares else {}
        found = list(rounds.found.values())
    return {**record_of(key, found), "clock": options.clock, **shares}


def _expanded(options: BenchOptions) -> list[str]:
    """Contenders, "compile" being all of its variants."""
    names: list[str] = []
    for name in options.contenders:
        names += options.variants if name == "compile" else [name]
    return list(dict.fromkeys(names))


def record_of(key: Key, found: Sequence[Contender]) -> Record:
    """What was measured, laid out.

    `network`, `batch`, `threads`. By contender: `seconds`, medians of rounds; `turns`,
    what they are of; `errors` against eager; `first_call_seconds`; bytes, as
    `peak_activation_bytes`, of eager and memplan; `failures`, the reasons.
    `ratio_to_eager`, `ratio_to_compile`: the median of what these took over what
    memplan took in the same round, None without one of them; `ratios`: of all, with
    the least and the most. `max_relative_error`: memplan's, or without it, the most.
    `compile` is the fastest of its ways, `compiled` the name of that; `ways`: all.
    `remarks`: what memplan warned of, as that it left the network as it was.
    """
    whole = [one for one in found if one.failure is None and one.turns]
    ways = {one.name: one for one in whole if one.name in COMPILED}
    best = min(ways.values(), key=lambda one: median(one.turns), default=None)
    named = {one.name: one for one in whole if one.name not in ways}
    if best is not None:
        named["compile"] = best
    ours = named.get("memplan")
    ratios = {
        name: spread(one.turns, ours.turns)
        for name, one in named.items()
        if ours is not None and one is not ours
    }
    errors = {name: one.error for name, one in named.items() if one.error is not None}
    return {
        "network": key[0],
        "batch": key[1],
        "threads": key[2],
        "seconds": {name: median(one.turns) for name, one in named.items()},
        "ratio_to_eager": ratios.get("eager", _NONE)["median"],
        "ratio_to_compile": ratios.get("compile", _NONE)["median"],
        "ratios": ratios,
        "max_relative_error": errors.get("memplan", max(errors.values(), default=None)),
        "errors": errors,
        "first_call_seconds": {name: one.first_call for name, one in named.items()},
        "peak_activation_bytes": {
            name: one.peak_bytes
            for name, one in named.items()
            if one.peak_bytes is not None
        },
        "compiled": best.name if best is not None else None,
        "ways": {
            name: {"seconds": median(one.turns), "first_call_seconds": one.first_call}
            for name, one in ways.items()
        },
        "remarks": {
            one.name: one.remarks
            for one in found
            if one.remarks and one.name.startswith("memplan")
        },
        "turns": {name: one.turns for name, one in named.items()},
        "failures": {one.name: one.failure for one in found if one.failure is not None},
    }


_NONE: Mapping[str, float | None] = {"median": None}


def spread(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """Least, median and most of what they took over what we took, round by round."""
    paired = [their / our for their, our in zip(theirs, ours, strict=True)]
    return {"min": min(paired), "median": median(paired), "max": max(paired)}


def first_calls(
    key: Key, names: Sequence[str], timeout: float = 1800.0
) -> dict[str, dict[str, float | str]]:
    """By contender, seconds of the first call with cold caches, and of that of another
    process after it with warm ones; or the reason why not.

    A contender's name stands for itself alone: "compile" is torch.compile's default.
    """
    found: dict[str, dict[str, float | str]] = {}
    with scratch_folder("memplan-bench-") as folder:
        for number, name in enumerate(names):
            check(name)
            own = Path(folder / str(number))
            own.mkdir()
            job = Job(name, *key, folder=str(own), turn_seconds=1.0)
            found[name] = {}
            for state in ("cold", "warm"):
                try:
                    with started(job, timeout) as process:
                        found[name][state] = process.first()["first_call"]
                except ChildError as error:
                    found[name]["failure"] = str(error)
                    break
    return found
