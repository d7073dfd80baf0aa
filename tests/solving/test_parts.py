"""Problems taken apart have the least peak of the whole."""

from __future__ import annotations

import numpy as np
from exact_oracle import brute_force
from hypothesis import given, settings
from strategies import problems

from memplan.core.problem import Problem
from memplan.core.verify import verify_offsets
from memplan.solving.bestfit import best_of_six
from memplan.solving.parts import take_apart


def test_what_always_lives_goes_to_the_bottom_and_silence_cuts() -> None:
    problem = Problem.of([0, 0, 3, 5, 5], [9, 3, 5, 9, 7], [4, 1, 2, 3, 8])
    offsets, parts = take_apart(problem)
    # Alone in its stretch of time, a buffer lies at the bottom of it.
    assert offsets.tolist() == [0, 4, 4, 4, 7]
    assert parts == []


def test_one_part_that_cannot_be_cut() -> None:
    problem = Problem.of([0, 2, 4], [3, 5, 6], [1, 1, 1])
    offsets, parts = take_apart(problem)
    assert offsets.tolist() == [-1, -1, -1]
    assert [part.members.tolist() for part in parts] == [[0, 1, 2]]
    assert parts[0].floor == 0


def test_a_circle_is_cut_above_what_always_lives() -> None:
    problem = Problem.of([0, 6, 1, 3], [8, 1, 4, 6], [2, 5, 5, 5], length=8)
    offsets, parts = take_apart(problem)
    assert offsets[0] == 0
    assert [part.floor for part in parts] == [2]
    assert parts[0].members.tolist() == [2, 3]
    assert offsets[1] == 2


def test_fixed_offsets_and_mixed_alignments_stay_whole() -> None:
    for options in ({"fixed": [4, -1]}, {"alignment": [1, 4]}):
        problem = Problem.of([0, 1], [1, 2], [4, 4], **options)
        offsets, parts = take_apart(problem)
        assert offsets.tolist() == [-1, -1]
        assert [part.problem for part in parts] == [problem]


@settings(max_examples=100, deadline=None)
@given(problems(max_size=6))
def test_the_parts_least_peaks_make_that_of_the_whole(problem: Problem) -> None:
    offsets, parts = take_apart(problem)
    placed = np.flatnonzero(offsets >= 0)
    members = np.concatenate([placed, *(part.members for part in parts)])
    assert sorted(members.tolist()) == list(range(len(problem)))
    tops = [int((offsets + problem.padded)[placed].max(initial=0))]
    tops += [part.floor + brute_force(part.problem) for part in parts]
    assert max(tops) == brute_force(problem)
    for part in parts:
        offsets[part.members] = part.floor + best_of_six(part.problem)[0]
    peak = int((offsets + problem.padded).max(initial=0))
    assert verify_offsets(problem, offsets, peak) == []
