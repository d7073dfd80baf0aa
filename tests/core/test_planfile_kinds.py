"""Plan files with steps of other kinds, and with elastic ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_samples import (
    Fields,
    assert_same,
    assert_same_problem,
    assert_same_requests,
    edited,
    plans,
    problems,
    put,
    recorded,
    sample,
    signed,
    stacked,
    without,
)

from memplan.core.plan import Plan, StepKind
from memplan.core.planfile import dump_plan, load_plan
from memplan.core.problem import Problem
from memplan.core.verify import Failure, verify
from memplan.errors import FormatError, InputError
from tests.plans import changed


def with_kinds() -> Plan:
    one = Problem.of([0, 1, 4], [6, 3, 5], [64, 100, 30], alignment=64, rounding=64)
    two = Problem.of([0], [2], [5000], alignment=64, rounding=64)
    return changed(
        sample(),
        elastic=True,
        kinds=(
            StepKind(one, np.array([0, 64, 64]), recorded(one, [7, 9]), seen=3),
            StepKind(two, np.array([128]), recorded(two, [])),
        ),
    )


PLAN = with_kinds()


def assert_same_with_kinds(one: Plan, other: Plan) -> None:
    assert_same(replace(one, kinds=()), replace(other, kinds=()))
    assert len(one.kinds) == len(other.kinds)
    for mine, theirs in zip(one.kinds, other.kinds, strict=True):
        assert_same_problem(mine.problem, theirs.problem)
        assert mine.offsets.tolist() == theirs.offsets.tolist()
        assert_same_requests(mine.requests, theirs.requests)
        assert mine.seen == theirs.seen


@st.composite
def kinds(draw: st.DrawFn) -> StepKind:
    problem = draw(problems(periodic=False, labelled=False))
    skipped = draw(st.lists(st.integers(0, 1 << 62), max_size=4))
    seen = draw(st.integers(1, 1 << 40))
    return StepKind(problem, stacked(problem), recorded(problem, skipped), seen)


@settings(max_examples=60, deadline=None)
@given(plans(), st.lists(kinds(), max_size=3), st.booleans(), st.integers(0, 1 << 62))
def test_a_plan_is_read_back_as_it_was(
    plan: Plan, others: list[StepKind], elastic: bool, lifespan: int
) -> None:
    elastic = elastic and plan.hot.requests is not None
    lifespan = lifespan if plan.hot.requests is not None else 0
    plan = changed(plan, kinds=tuple(others), elastic=elastic, lifespan_bytes=lifespan)
    plan = changed(plan, device="cuda") if lifespan else plan
    data = dump_plan(plan)
    again = load_plan(data)
    assert_same_with_kinds(plan, again)
    assert dump_plan(again) == data
    assert again.lifespan_bytes == lifespan
    assert (b'\n"elastic": true' in data) == elastic
    assert (b'\n"lifespan_bytes": ' in data) == (lifespan > 0)
    assert (b'\n"kinds": [' in data) == bool(others)
    assert [v.failure for v in verify(again)] == [v.failure for v in verify(plan)]


def test_the_arena_holds_the_kinds() -> None:
    assert verify(PLAN) == []
    assert PLAN.peak < PLAN.arena_bytes == 128 + 5056
    assert load_plan(dump_plan(PLAN)).arena_bytes == PLAN.arena_bytes


def test_fields_that_say_nothing_may_be_there() -> None:
    def change(value: Fields) -> None:
        value["kinds"], value["elastic"] = [], False

    again = load_plan(edited(sample(), change))
    assert_same_with_kinds(again, sample())
    assert dump_plan(again) == dump_plan(sample())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("elastic", 1), "elastic is 1, and must be"),
        (put("elastic", None), "elastic is null"),
        (put("lifespan_bytes", -1), "lifespan_bytes is -1"),
        (put("lifespan_bytes", "64"), "lifespan_bytes is"),
        (put("kinds", None), "kinds is null, and must be a list"),
        (put("kinds", {}), "kinds is an object, and must be a list"),
        (put("kinds.0", 7), r"kinds\[0\] is 7, and must be an object"),
        (put("kinds.1", None), r"kinds\[1\] is null"),
        (put("kinds.1.more", 1), r"kinds\[1\] has a field .*'more'"),
        (put("kinds.1.ticks", 1), r"kinds\[1\] has a field .*'ticks'"),
        (without("kinds.1.seen"), r"kinds\[1\] lacks 'seen'"),
        (without("kinds.0.buffers"), r"kinds\[0\] lacks 'buffers'"),
        (put("kinds.1.seen", 0), r"kinds\[1\]\.seen is 0"),
        (put("kinds.1.seen", True), r"kinds\[1\]\.seen is true"),
        (put("kinds.1.seen", 1 << 63), r"kinds\[1\]\.seen is 9223372036854775808"),
        (put("kinds.1.starts", None), r"kinds\[1\]\.(starts|unplanned)"),
        (put("kinds.1.starts", []), "kind 1: .*starts must ascend from 0"),
        (put("kinds.1.starts", [0, 1]), "kind 1: it must be one step"),
        (put("kinds.1.starts", [1]), "kind 1: .*starts must ascend from 0"),
        (put("kinds.0.starts", [0, 0]), "kind 0: it must be one step"),
        (put("kinds.0.alignment", 0), r"kinds\[0\]\.alignment is 0"),
        (put("kinds.0.buffers.1.size", 0), r"kinds\[0\].*size is 0"),
        (put("kinds.0.buffers.1.offset", -64), r"offset.* -64"),
        (put("kinds.0.buffers.1.offset", (1 << 62) - 64), "kind 0: .*offset"),
        (put("kinds.0.buffers.1.lower", 4), r"kinds\[0\]"),
        (put("kinds.0.buffers.1.id", 0), r"kinds\[0\].*request 0 twice"),
        (put("kinds.0.buffers.1.id", 99), r"kinds\[0\].*id .* 99"),
        (put("kinds.0.buffers.1.id", "b"), r"kinds\[0\].*'b'"),
        (put("kinds.0.buffers.0.lower", 2), r"kind 0: request .* order of the clock"),
        (put("kinds.0.unplanned.0.size", -1), r"kinds\[0\].*size .*-1"),
        (put("kinds.0.buffers", []), r"kinds\[0\]"),
    ],
)
def test_unsound_kinds_are_refused_by_name(
    change: Callable[[Fields], object], message: str
) -> None:
    with pytest.raises(FormatError, match=rf"^bad\.json: .*{message}"):
        load_plan(edited(PLAN, change), "bad.json")


def test_lifespans_are_of_cuda_memory_and_of_requests() -> None:
    with pytest.raises(FormatError, match="lifespan_bytes is of CUDA memory"):
        dump_plan(changed(sample(), elastic=True, lifespan_bytes=64))
    bare = Plan.of(Problem.of([0], [1], [64]), np.array([0]), "bestfit")
    with pytest.raises(FormatError, match="lifespan_bytes must list its requests"):
        dump_plan(changed(bare, device="cuda", lifespan_bytes=64))


def test_an_elastic_plan_lists_its_requests() -> None:
    problem = Problem.of([0], [1], [64])
    plan = changed(Plan.of(problem, np.array([0]), "bestfit"), elastic=True)
    with pytest.raises(FormatError, match="elastic plan must list its requests"):
        dump_plan(plan)


def test_a_kind_whose_blocks_collide_does_not_verify() -> None:
    moved = load_plan(edited(PLAN, put("kinds.0.buffers.1.offset", 0)))
    found = verify(moved)
    assert [v.failure for v in found] == [Failure.OVERLAP]
    assert found[0].message.startswith("kind 0: ")
    askew = load_plan(edited(PLAN, put("kinds.1.buffers.0.offset", 65)))
    assert [v.failure for v in verify(askew)] == [Failure.MISALIGNED]


JUNK = st.none() | st.booleans() | st.integers(-2, 1 << 64) | st.text(max_size=3)


@settings(max_examples=100, deadline=None)
@given(st.data(), JUNK | st.lists(JUNK, max_size=2))
def test_junk_in_any_field_of_a_kind_is_refused_or_harmless(
    data: st.DataObject, junk: object
) -> None:
    value = json.loads(dump_plan(PLAN))
    kind = value["kinds"][data.draw(st.integers(0, 1))]
    rows = [kind, *kind["buffers"], *kind["unplanned"]]
    place = data.draw(st.sampled_from(rows))
    place[data.draw(st.sampled_from(sorted(place)))] = junk
    try:
        verify(load_plan(signed(value)))
    except InputError as error:
        assert str(error)


def test_every_truncation_is_refused() -> None:
    data = dump_plan(PLAN)
    for length in range(0, len(data), 7):
        with pytest.raises(FormatError, match=r"^cut\.json: "):
            load_plan(data[:length], "cut.json")
