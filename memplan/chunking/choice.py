"""Which regions around an operator are worth building, and with which step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from memplan.chunking.forward import extended
from memplan.chunking.region import Region
from memplan.chunking.sweep import Candidate, Landscape, ends, sweep
from memplan.chunking.weigh import Weight, weigh
from memplan.graph.program import Program

PROMISING = 4  # regions that are widened and were not the best before


@dataclass(frozen=True)
class Effort:
    """How far the search looks.

    width: sequences kept in the beam. wanted: after how many within the budget it
    ends. reach: operators before and after the peak.
    built: candidates built of those weighed. seconds: after which it ends with the
    best so far. finest: the most chunks of a loop. nested: whether regions may hold
    regions; copies: whether operators may run both whole and in a loop; fresh: whether
    results always get memory of their own. cost: "time", the model of
    `memplan.chunking.timing`, or "paper", that of `memplan.chunking.papercost`.
    """

    width: int = 3
    wanted: int = 4
    reach: int = 60
    built: int = 10
    seconds: float = 60.0
    finest: int = 256
    nested: bool = True
    copies: bool = True
    fresh: bool = False
    cost: str = "time"


def around(program: Program, peak: int, budget: int, effort: Effort) -> list[Region]:
    """The most promising regions around an operator, each with a step."""
    land = Landscape(program)
    weighed: dict[object, tuple[Candidate, Weight]] = {}
    wanted, reach = program.ops[peak].name, effort.reach
    for last, dim in ends(land, peak, reach):
        for copies in (False, True) if effort.copies else (False,):
            for each in sweep(land, last, dim, max(0, peak - reach), copies):
                if wanted in each.slices and each.first <= peak:
                    key = (tuple(each.slices.items()), each.copied)
                    if key not in weighed:
                        weighed[key] = each, weigh(land, each, budget)
    chosen = _varied(list(weighed.values()), budget, effort.built)
    wider = (extended(land, each, weight, budget) for each, weight in chosen)
    chosen += [pair for pair in wider if pair is not None]
    promising = _promising(list(weighed.values()), chosen, budget)
    wider = (extended(land, each, weight, budget) for each, weight in promising)
    chosen += [pair for pair in wider if pair is not None]
    sized = (_sized(each, weight, budget, effort) for each, weight in chosen)
    return [region for region in sized if region is not None]


def _level(candidate: Candidate, weight: Weight, budget: int) -> int:
    """A loop's live bytes to 2 % of the budget, clipped below at the budget, where it
    runs in 32 chunks, or as many as there can be."""
    share = max(1 / 32, candidate.granule / candidate.extent)
    return round(max(weight.live(share), budget) / (0.02 * budget))


def _varied(
    weighed: list[tuple[Candidate, Weight]], budget: int, count: int
) -> list[tuple[Candidate, Weight]]:
    """The most promising `count`: in turns those that cover most of what lies above
    the budget, and those that run least in a loop; at most three that end alike."""
    level = {id(pair): _level(*pair, budget) for pair in weighed}
    wide = sorted(weighed, key=lambda pair: (level[id(pair)], -pair[1].covered))
    thin = sorted(weighed, key=lambda pair: (level[id(pair)], pair[1].dear))
    chosen: list[tuple[Candidate, Weight]] = []
    ending: dict[object, int] = {}
    for pair in (each for both in zip(thin, wide, strict=True) for each in both):
        last = list(pair[0].slices.items())[-1]
        if pair in chosen or ending.get(last, 0) == 3:
            continue
        ending[last] = ending.get(last, 0) + 1
        chosen.append(pair)
        if len(chosen) == count:
            break
    return chosen


def _promising(
    weighed: list[tuple[Candidate, Weight]],
    chosen: list[tuple[Candidate, Weight]],
    budget: int,
) -> list[tuple[Candidate, Weight]]:
    """The few that would need less than all chosen ones, if who takes their members'
    results ran in the loop as well."""
    least = min((_level(*pair, budget) for pair in chosen), default=0)
    found = []
    for pair in weighed:
        candidate, weight = pair
        if weight.leaving and pair not in chosen:
            closed = weight._replace(base=weight.base - weight.leaving)
            level = _level(candidate, closed, budget)
            if level < least:
                found.append((level, weight.dear, pair))
    return [pair for *_, pair in sorted(found, key=lambda each: each[:2])[:PROMISING]]


def _sized(
    candidate: Candidate, weight: Weight, budget: int, effort: Effort
) -> Region | None:
    """The region with the largest step that fits the budget, or a fine one."""
    region = Region(
        candidate.slices,
        candidate.extent,
        1,
        candidate.copied,
        granule=candidate.granule,
        fresh=effort.fresh,
    )
    room = (budget - weight.base) / max(1, weight.body)
    finest = 1 / min(effort.finest, candidate.extent)
    share = room if room >= finest else 1 / 16
    return with_step(region, int(min(share, 0.5) * candidate.extent))


def with_step(region: Region, step: int) -> Region | None:
    """The region with a step near `step`: a multiple of 64 or 16 where it is large
    enough, and of what its slices demand. None if there are then no two chunks."""
    for unit in (64, 16, 8):
        if step >= 2 * unit:
            step -= step % unit
            break
    granule = region.granule
    step = max(granule, step - step % granule)
    return replace(region, step=step) if step < region.extent else None


def finer(region: Region, share: float) -> Iterable[Region]:
    """The region with smaller steps: one that should do, and half of the present."""
    steps = {int(region.step * share), region.step // 2, region.step // 4}
    for step in sorted(steps, reverse=True):
        if 0 < step < region.step:
            made = with_step(region, step)
            if made is not None and made.step < region.step:
                yield made
