"""What may be asked of a method, and what is refused."""

from __future__ import annotations

import math

import pytest

from memplan.errors import UsageError
from memplan.solving.options import MAX_SEED, Options, Progress
from memplan.solving.solve import solve


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time_limit": -1.0}, "time limit of -1.0 seconds"),
        ({"time_limit": math.nan}, "time limit of nan seconds"),
        ({"time_limit": math.inf}, "time limit of inf seconds"),
        ({"capacity": -1}, "capacity is -1, and must be at least 0"),
        ({"threads": 0}, "threads is 0, and must be at least 1"),
        ({"iterations": -5}, "iterations is -5"),
        ({"max_nodes": -5}, "max_nodes is -5"),
        ({"seed": -1}, "seed -1 is not from 0"),
        ({"seed": MAX_SEED + 1}, "is not from 0"),
        ({"mip_solver": "abacus"}, "no solver 'abacus'; use one of cbc, highs"),
        ({"priority": "age"}, "no priority 'age'; use one of lifetime, lifetime-"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Options(**arguments)  # type: ignore[arg-type]


def test_threads_are_at_least_one() -> None:
    assert Options().workers() >= 1
    assert Options(threads=3).workers() == 3


def test_progress_reaches_whoever_asked() -> None:
    seen: list[Progress] = []
    progress = Progress(8, 4, 2, 0.5)
    Options(progress=seen.append).report(progress)
    Options().report(progress)
    assert seen == [progress]


def test_options_come_at_once_or_one_by_one() -> None:
    arrays = ([0, 0], [1, 1], [8, 8])
    one, other = solve(arrays, seed=3), solve(arrays, options=Options(seed=3))
    assert one.provenance.seed == other.provenance.seed == 3
    with pytest.raises(UsageError, match="either options, or"):
        solve(arrays, options=Options(), seed=3)
