"""The most promising regions around an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from memplan.chunking.candidates import Candidate, Landscape, Weight, ends, sweep, weigh
from memplan.chunking.extensions import extended
from memplan.chunking.far import far
from memplan.chunking.options import Effort
from memplan.chunking.region import Region

PROMISING = 4  # further regions that are extended


def around(
    land: Landscape, peak: int, budget: int, effort: Effort, fair: bool = False
) -> list[Region]:
    """The most promising regions around an operator, each with a step. fair: see
    `_varied`. Where slices of results fit the budget, one with a total at most."""
    weighed = _weighed(land, peak, budget, effort.reach)
    totals = _weighed(land, peak, budget, effort.reach, totals=True)
    if fair or all(_level(*pair, budget) > LOWEST for pair in weighed):
        weighed, totals = weighed + totals, []
    chosen = _varied(weighed, budget, effort.built, fair)
    fitting = [pair for pair in totals if _level(*pair, budget) <= LOWEST]
    chosen += sorted(fitting, key=lambda pair: pair[1].dear)[:1]
    wider = (extended(land, each, weight, budget) for each, weight in chosen)
    chosen += [pair for pair in wider if pair is not None]
    promising = _promising(weighed, chosen, budget)
    wider = (extended(land, each, weight, budget) for each, weight in promising)
    chosen += [pair for pair in wider if pair is not None]
    sized = (_sized(each, weight, budget, effort) for each, weight in chosen)
    return [region for region in sized if region is not None]


def _weighed(
    land: Landscape, peak: int, budget: int, reach: int, totals: bool = False
) -> list[tuple[Candidate, Weight]]:
    """Regions that the operator at `peak` is in. totals: those that end in one; they
    pass over it in each iteration, and add in another order. None in another loop, as
    their iterations would multiply."""
    if totals and land.program.ranges:
        return []
    key = peak, reach, totals
    if key not in land.weighed:
        wanted, first = land.program.ops[peak].name, max(0, peak - reach)
        land.weighed[key] = [
            (each, weigh(land, each))
            for last, end in ends(land, peak, reach, totals)
            for copies in (False, True)
            for each in sweep(land, last, end, first, copies)
            if wanted in each.slices and each.first <= peak
        ]
        if not totals:
            land.weighed[key] += far(land, peak, reach)
    return [
        (each, weight._replace(covered=land.covered(each.first, each.last, budget)))
        for each, weight in land.weighed[key]
    ]


LOWEST = 50  # level of a loop within the budget


def _level(candidate: Candidate, weight: Weight, budget: int) -> int:
    """A loop's live bytes in units of 2 % of the budget, at least the budget, if it
    runs in 32 chunks or as many as possible."""
    share = max(1 / 32, candidate.granule / candidate.extent)
    return round(max(weight.live(share), budget) / (0.02 * budget))


def _varied(
    weighed: list[tuple[Candidate, Weight]], budget: int, count: int, fair: bool
) -> list[tuple[Candidate, Weight]]:
    """The most promising `count`: in turns the cheapest, those that cover most of the
    excess over the budget and, if it is `fair`, those between; an eighth of them, or
    three, with the same end."""
    level = {id(pair): _level(*pair, budget) for pair in weighed}

    def ranked(key: Callable[[Weight], object]) -> list[tuple[Candidate, Weight]]:
        return sorted(weighed, key=lambda pair: (level[id(pair)], key(pair[1])))

    thin = ranked(lambda weight: weight.dear)
    wide = ranked(lambda weight: (-weight.covered, weight.dear if fair else 0))
    rows = [thin, wide]
    if fair and wide:
        most, dear = max(1, wide[0][1].covered), max(1, wide[0][1].dear)
        rows += [ranked(lambda weight: weight.dear / dear - weight.covered / most)]
    chosen: list[tuple[Candidate, Weight]] = []
    ending: dict[object, int] = {}
    for pair in (each for row in zip(*rows, strict=True) for each in row):
        last = list(pair[0].slices.items())[-1]
        if pair in chosen or ending.get(last, 0) == max(3, count // 8):
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
    """Candidates that would need less than all chosen ones if the users of their
    members' results joined the loop."""
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
    )
    room = (budget - weight.base) / max(1, weight.body)
    finest = 1 / min(effort.finest, candidate.extent)
    share = room if room >= finest else 1 / 16
    return with_step(region, int(min(share, 0.5) * candidate.extent))


def with_step(region: Region, step: int) -> Region | None:
    """The region with a step near `step`: a multiple of 64, 16 or 8 if it is large
    enough, and of the granule. None if that leaves a single chunk."""
    for unit in (64, 16, 8):
        if step >= 2 * unit:
            step -= step % unit
            break
    granule = region.granule
    step = max(granule, step - step % granule)
    return replace(region, step=step) if step < region.extent else None


def finer(region: Region, share: float) -> Iterable[Region]:
    """The region with smaller steps: `share` of the present one, a half, a quarter."""
    steps = {int(region.step * share), region.step // 2, region.step // 4}
    for step in sorted(steps, reverse=True):
        if 0 < step < region.step:
            made = with_step(region, step)
            if made is not None and made.step < region.step:
                yield made


def coarser(region: Region, inside: int | None = None) -> Region | None:
    """The region with a step twice as large, or with an inner one that has; None where
    that would leave a single chunk."""
    if inside is not None:
        wider = coarser(region.inner[inside])
        before, after = region.inner[:inside], region.inner[inside + 1 :]
        return wider and replace(region, inner=(*before, wider, *after))
    if region.chunks <= 2:
        return None
    step = min(region.step * 2, -(-region.extent // 2))
    return replace(region, step=step + -step % region.granule)
