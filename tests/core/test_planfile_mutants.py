"""Plan files tampered with and signed again: verify names what is unsound."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
from plan_samples import (
    Fields,
    assert_same_problem,
    assert_same_requests,
    edited,
    recorded,
    sample,
    signed,
)

from memplan.core.plan import Plan
from memplan.core.planfile import dump_plan, load_plan
from memplan.core.problem import Problem
from memplan.core.verify import Failure, verify
from memplan.errors import FormatError
from tests.plans import changed


def shift(rng: random.Random, value: Fields, unit: int) -> None:
    row = rng.choice(value["buffers"])
    row["offset"] = max(0, row["offset"] + rng.choice([-unit, unit]))


def swap(rng: random.Random, value: Fields, unit: int) -> None:
    one, other = rng.sample(value["buffers"], 2)
    one["offset"], other["offset"] = other["offset"], one["offset"]


def drop(rng: random.Random, value: Fields, unit: int) -> None:
    value["buffers"].remove(rng.choice(value["buffers"]))


def drop_neatly(rng: random.Random, value: Fields, unit: int) -> None:
    drop(rng, value, unit)
    value["trace"]["buffers"] -= 1


def shrink(rng: random.Random, value: Fields, unit: int) -> None:
    value["peak"] -= rng.choice([1, unit])


def resize(rng: random.Random, value: Fields, unit: int) -> None:
    row = rng.choice(value["buffers"])
    row["size"] = max(1, row["size"] + rng.choice([-unit, -1, 1, unit]))


def exchange(rng: random.Random, value: Fields, unit: int) -> None:
    one, other = rng.sample(value["buffers"], 2)
    one["id"], other["id"] = other["id"], one["id"]


MUTATIONS = (shift, swap, drop, drop_neatly, shrink, resize, exchange)


def sound(original: Plan, offsets: np.ndarray, peak: int) -> bool:
    """By pairs: no overlap in time and bytes at once, no top above the peak."""
    problem, length = original.problem, original.problem.length
    assert length is not None
    alive = [
        {t % length for t in range(low, up if up > low else up + length)}
        for low, up in zip(problem.lower, problem.upper, strict=True)
    ]
    spans = list(zip(offsets, offsets + problem.size, strict=True))
    apart = all(
        not alive[i] & alive[j]
        or spans[i][1] <= spans[j][0]
        or spans[j][1] <= spans[i][0]
        for j in range(len(spans))
        for i in range(j)
    )
    aligned = bool((offsets % problem.alignment == 0).all())
    return apart and aligned and max(spans)[1] <= peak


@pytest.mark.parametrize("seed", range(10))
def test_no_unsound_mutant_passes(seed: int) -> None:
    rng = random.Random(seed)
    n, length = 12, 20
    lower = sorted(rng.randrange(length) for _ in range(n))
    upper = [(t + rng.randint(1, length - 1)) % length for t in lower]
    size = [rng.randint(1, 300) for _ in range(n)]
    rounding = 64 if seed % 2 else 1
    problem = Problem.of(
        lower, upper, size, alignment=64, length=length, rounding=rounding
    )
    offsets = problem.padded.cumsum() - problem.padded
    plan = Plan.of(problem, offsets, "stacked")
    if seed % 2:
        plan = changed(plan, requests=recorded(problem, [1, 2, 3]))
    assert verify(load_plan(dump_plan(plan))) == []
    for mutation in MUTATIONS * 3:
        value = json.loads(dump_plan(plan))
        mutation(rng, value, 64)
        try:
            mutant = load_plan(signed(value))
        except FormatError:
            continue
        if verify(mutant):
            continue
        # What passes must be sound for the buffers that were planned.
        assert mutation in (shift, swap)
        assert_same_problem(mutant.problem, plan.problem)
        assert_same_requests(mutant.hot.requests, plan.hot.requests)
        assert mutant.stated is not None
        assert sound(plan, mutant.offsets, mutant.stated.peak)


@pytest.mark.parametrize(
    ("change", "failure", "named"),
    [
        (lambda v: v["buffers"][1].update(offset=0), Failure.OVERLAP, ("0", "2")),
        (lambda v: v["buffers"][1].update(offset=130), Failure.MISALIGNED, ("2",)),
        (lambda v: v.update(peak=512), Failure.OUTSIDE, ("5",)),
        (lambda v: v.update(peak=1024), Failure.PEAK, ()),
        (lambda v: v["trace"].update(fingerprint="0"), Failure.FINGERPRINT, ()),
        (lambda v: v["buffers"][0].update(size=60), Failure.FINGERPRINT, ()),
        (lambda v: v["buffers"][0].update(upper=3), Failure.FINGERPRINT, ()),
        (lambda v: v["bounds"].update(lower_bound=640), Failure.BOUND, ()),
    ],
)
def test_a_readable_plan_that_is_wrong_is_left_to_verify(
    change: Callable[[Fields], object], failure: Failure, named: tuple[str, ...]
) -> None:
    found = verify(load_plan(edited(sample(), change)))
    assert (failure, named) in [(v.failure, v.buffers) for v in found]


def test_an_overlap_in_the_warm_up_is_left_to_verify() -> None:
    def change(value: Fields) -> None:
        value["warmup"]["buffers"][1]["offset"] = 256

    found = verify(load_plan(edited(sample(), change)))
    assert {v.failure for v in found} == {Failure.OVERLAP}
