"""Gaps in plan files: written with each buffer, read strictly."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from plan_samples import (
    Fields,
    assert_same,
    edited,
    put,
    recorded,
    signed,
    stacked,
    without,
)

from memplan.core.plan import Plan
from memplan.core.planfile import dump_plan, load_plan
from memplan.core.problem import Gaps, Problem
from memplan.core.verify import Failure, verify
from memplan.errors import FormatError
from tests.gap_samples import gapped
from tests.plans import changed

GAPS = Gaps.of([0, 0, 2], [2, 5, 3], [4, 7, 4], [0, 1, 0], [0, 6, 0])
PROBLEM = Problem.of([0, 2, 3], [9, 4, 8], [8, 8, 5], labels=["a", "b", "c"], gaps=GAPS)
PLAN = Plan.of(PROBLEM, np.array([0, 0, 8]), "bestfit")


@settings(max_examples=60, deadline=None)
@given(gapped(fixed=True))
def test_a_plan_is_read_back_as_it_was(problem: Problem) -> None:
    plan = Plan.of(problem, stacked(problem), "bestfit")
    data = dump_plan(plan)
    again = load_plan(data)
    assert_same(plan, again)
    assert dump_plan(again) == data
    assert (b'"gaps"' in data) == (problem.gaps is not None)
    assert verify(again) == verify(plan)


def test_a_row_is_this() -> None:
    rows = dump_plan(PLAN).decode().splitlines()
    assert [row for row in rows if '"lower"' in row] == [
        '{"gaps": [[2, 4], [5, 7, 1, 6]], "id": "a", "lower": 0, "offset": 0, '
        '"size": 8, "upper": 9},',
        '{"gaps": [], "id": "b", "lower": 2, "offset": 0, "size": 8, "upper": 4},',
        '{"gaps": [[3, 4]], "id": "c", "lower": 3, "offset": 8, "size": 5, "upper": 8}',
    ]
    assert verify(load_plan(dump_plan(PLAN))) == []


def test_the_order_of_gaps_in_a_row_does_not_matter() -> None:
    swapped = put("buffers.0.gaps", [[5, 7, 1, 6], [2, 4]])
    assert dump_plan(load_plan(edited(PLAN, swapped))) == dump_plan(PLAN)


def test_a_file_whose_rows_all_have_no_gaps_has_none() -> None:
    value = json.loads(dump_plan(PLAN))
    for row in value["buffers"]:
        row["gaps"] = []
    again = load_plan(signed(value))
    assert again.problem.gaps is None
    assert {v.failure for v in verify(again)} >= {Failure.FINGERPRINT, Failure.OVERLAP}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("buffers.1.gaps"), r"buffers\[1\] lacks 'gaps'"),
        (without("buffers.0.gaps"), r"buffers\[1\] has a field .* 'gaps'"),
        (put("buffers.1.gaps", None), r"buffers\[1\].gaps \(id 'b'\) is null, .* list"),
        (put("buffers.0.gaps", {"2": 4}), r"buffers\[0\].gaps .* is an object"),
        (put("buffers.0.gaps.1", 7), r"holds what is not \[lower, upper\] or \[low"),
        (put("buffers.0.gaps.1", [5]), r"buffers\[0\].gaps \(id 'a'\) holds what"),
        (put("buffers.0.gaps.1", [5, 7, 1]), r"is not \[lower, upper\]"),
        (put("buffers.0.gaps.1", [5, 7, 1, 6, 9]), r"is not \[lower, upper\]"),
        (put("buffers.0.gaps.1", [5, 7, 3, 3]), "has a window of no bytes: leave it"),
        (put("buffers.2.gaps.0.0", "3"), r"buffers\[2\].gaps \(id 'c'\) is '3', and"),
        (put("buffers.2.gaps.0.0", 3.0), r"buffers\[2\].gaps \(id 'c'\) is 3.0, and"),
        (put("buffers.2.gaps.0.0", True), r"buffers\[2\].gaps \(id 'c'\) is true"),
        (put("buffers.2.gaps.0.0", -3), r"buffers\[2\].gaps \(id 'c'\) is -3, and"),
        (put("buffers.2.gaps.0.1", 1 << 63), r"is 9223372036854775808, .* to 2\^63"),
        (put("buffers.0.gaps.1", [3, 7]), r"buffer a: the gap \[3, 7\) begins before"),
        (put("buffers.0.gaps.1", [5, 10]), r"buffer a: the gap .* leaves its lifespan"),
        (put("buffers.0.gaps.1.3", 9), "buffer a: the gap .* window beyond its bytes"),
        (put("length", 20), "buffers do not make a problem: gaps need a linear clock"),
    ],
)
def test_unsound_gaps_are_refused_by_name(
    change: Callable[[Fields], object], message: str
) -> None:
    with pytest.raises(FormatError, match=rf"^bad\.json: .*{message}"):
        load_plan(edited(PLAN, change), "bad.json")


def test_a_gap_changed_in_a_file_is_found() -> None:
    """The file is sound, but no longer says what its fingerprint says."""
    shorter = load_plan(edited(PLAN, put("buffers.0.gaps.0", [2, 3])))
    assert {v.failure for v in verify(shorter)} == {
        Failure.FINGERPRINT,
        Failure.OVERLAP,
    }


def test_a_recorded_programs_buffers_have_no_gaps() -> None:
    plan = changed(PLAN, requests=recorded(PROBLEM, []))
    with pytest.raises(FormatError, match="buffer a has gaps, which a recorded pro"):
        dump_plan(plan)
