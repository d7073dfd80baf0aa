"""Loops over all rules, in random programs, compute what the programs do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pytest

torch = pytest.importorskip("torch")

from memplan.chunking.rules.table import RULES  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from tests.chunking.loop_check import ALL, Checked, Tally  # noqa: E402
from tests.chunking.random_programs import (  # noqa: E402
    Writer,
    around,
    grown,
    samples,
)
from tests.chunking.rules.rule_check import Sample  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    # Of samples: torch copies what it takes there, and says so.
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel"),
    pytest.mark.filterwarnings("ignore:torch.searchsorted"),
]
TOGETHER = 4  # samples in a program


def check(writers: Iterator[Writer], inference: Inference, most: int) -> Tally:
    tally = Tally()
    with torch.no_grad():
        for seed, writer in enumerate(writers):
            Checked(writer, inference, tally).check(Random(seed), most)
            assert not tally.wrong, f"program {seed}: {tally.wrong[0]}"
    return tally


def programs_of(
    chosen: Sequence[Sample], inference: Inference, seed: int = 0
) -> Iterator[Writer]:
    for at in range(0, len(chosen), TOGETHER):
        yield around(seed + at, inference, list(chosen[at : at + TOGETHER]))


def check_counts(tally: Tally, loops: int) -> None:
    """Next to none must be undecided, or offered and not possible."""
    assert tally.loops >= loops
    assert tally.inside >= loops // 20
    assert tally.placed >= loops // 100
    assert tally.taken >= loops // 20
    assert tally.undecided <= tally.loops // 100
    assert sum(tally.not_loopable.values()) <= tally.loops // 20, tally.not_loopable


def test_loops_over_every_rule_compute_the_same() -> None:
    inference = Inference()
    firsts = {each.call.op.key: each for each in reversed(samples())}
    tally = check(programs_of(list(firsts.values()), inference), inference, 6)
    assert set(RULES) - tally.keys == set()
    check_counts(tally, 300)


def test_loops_in_random_programs_compute_the_same() -> None:
    inference = Inference()
    writers = (grown(seed, inference) for seed in range(30))
    check_counts(check(writers, inference, 8), 200)


def test_every_loop_of_small_programs_computes_the_same() -> None:
    inference = Inference()
    writers = (grown(seed, inference, 2) for seed in range(10))
    check_counts(check(writers, inference, ALL), 200)


@pytest.mark.soak
def test_many_loops_compute_the_same() -> None:
    inference = Inference()
    total = 0
    for seed in range(10_000, 40_000, 10_000):
        tally = check(programs_of(samples(), inference, seed), inference, 8)
        assert set(RULES) - tally.keys == set()
        total += tally.loops
    writers = (grown(seed, inference) for seed in range(1000, 2000))
    tally = check(writers, inference, 20)
    check_counts(tally, 10_000)
    assert total + tally.loops >= 20_000
