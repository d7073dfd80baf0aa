"""Plan files from strangers: what is unsound is refused, and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from plan_samples import (
    Fields,
    edited,
    put,
    sample,
    signed,
    with_gaps,
    with_kinds,
    without,
)

from memplan.core.plan import Plan
from memplan.core.planfile import dump_plan, load_plan
from memplan.core.problem import Problem
from memplan.core.verify import Failure, verify
from memplan.errors import FormatError, InputError
from tests.strategies import examples

SAMPLE, PLAN, GAPPED = sample(), with_kinds(), with_gaps()


@pytest.mark.parametrize("plan", [PLAN, GAPPED], ids=["kinds", "gaps"])
def test_every_truncation_is_refused(plan: Plan) -> None:
    data = dump_plan(plan)
    for length in range(len(data)):
        with pytest.raises(FormatError, match=r"^cut\.json: "):
            load_plan(data[:length], "cut.json")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = value if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    inner = [value[key] for key in keys if isinstance(value[key], dict | list)]
    return found + [place for child in inner for place in places(child)]


@examples(
    100,
    st.data(),
    st.sampled_from([SAMPLE, PLAN, GAPPED]),
    JUNK | st.integers(-2, 1 << 64),
)
def test_junk_in_any_field_is_refused_or_harmless(
    data: st.DataObject, plan: Plan, junk: object
) -> None:
    value = json.loads(dump_plan(plan))
    del value["checksum"]
    container, key = data.draw(st.sampled_from(places(value)))
    container[key] = junk
    try:
        verify(load_plan(signed(value)))
    except InputError as error:
        assert str(error)


IN_A_PLAN: list[tuple[Callable[[Fields], object], str]] = [
    (put("seed", 1.5), "seed is 1.5, and must be an integer from 0"),
    (put("seed", float("nan")), "seed is NaN"),
    (put("seed", True), "seed is true"),
    (put("seed", 1 << 63), "seed is 9223372036854775808, .* to 2\\^63 - 1"),
    (put("seed", int("9" * 60)), "seed is 9999999.*\\.\\.\\."),
    (put("method", 3), "method is 3, and must be text"),
    (put("method", "\ud800"), "method is '\\\\ud800', and must be text"),
    (put("method", "x" * 70000), "method is 'xxx.*\\.\\.\\., .* at most 65536"),
    (put("length", 5), "buffers do not make a problem: buffer 2: .* period of 5"),
    (put("alignment", 0), "alignment is 0"),
    (put("bounds.proved_optimal", 1), "bounds.proved_optimal is 1, .* true or"),
    (put("trace.buffers", 3), "trace.buffers is 3, and 4 are listed"),
    (put("surprise", 1), "the file has a field that .* 'surprise'"),
    (without("method"), "the file lacks 'method'"),
    (without("program.torch"), "program lacks 'torch'"),
    (put("buffers", {}), "buffers is an object, and must be a list"),
    (put("buffers.1", 7), "buffers\\[1\\] is 7, and must be an object"),
    (without("buffers.1.offset"), "buffers\\[1\\] lacks 'offset'"),
    (put("buffers.1.fixed", 0), "buffers\\[1\\] has a field .* 'fixed'"),
    (put("buffers.1.offset", -64), "buffers\\[1\\].offset \\(id 2\\) is -64"),
    (put("buffers.1.offset", 1 << 62), "buffer 2: offset .* 2\\^62"),
    (put("buffers.1.size", 0), "buffer 2: size is 0"),
    (put("buffers.1.size", (1 << 63) - 1), "add up to"),
    (put("buffers.1.lower", 6), "buffer 2: lower and upper are both 6"),
    (put("buffers.1.lower", 13), "buffer 2: lifespan leaves the period"),
    (put("buffers.1.id", 6), "buffers\\[1\\].id is 6, and must be .* from 0 to 5"),
    (without("buffers.1"), "buffers\\[2\\].id is 5, .* from 0 to 4"),
    (put("unplanned.0.size", -1), "unplanned\\[0\\].size \\(id 1\\) is -1"),
    (put("starts", [0, 4, 3]), "starts must .* and are '0, 4, 3'"),
    (put("starts", [0, 7]), "starts must ascend from 0 to at most 6"),
    (put("starts", [0, False]), "starts\\[1\\] is false"),
    (put("starts", None), "unplanned holds requests, but starts is null"),
    (put("warmup.starts", None), "warmup.unplanned holds requests"),
    (
        lambda v: v["warmup"].update(starts=None, unplanned=[], buffers=[]),
        "warmup.starts is null, and must be a list",
    ),
    (put("warmup.ticks", 3), "warm-up: buffer 2: lower 3 is not before ticks 3"),
    (put("warmup.ticks", (1 << 63) - 20), "warm-up: ticks .* too large"),
    (put("warmup.length", 9), "warmup has a field .* 'length'"),
    (put("warmup.buffers.0.lower", 9), "warmup.buffers do not .* comes after"),
    (put("version", 2), "newer than 1; upgrade: pip install --upgrade memplan"),
    (put("version", 0), "version is 0"),
    (put("schema", "other"), "it has the schema 'other'"),
    (without("schema"), "not a plan: it has no schema"),
    (put("schema", "memplan.trace"), "not a plan; run memplan solve bad.json"),
]
OF_KINDS: list[tuple[Callable[[Fields], object], str]] = [
    (put("elastic", 1), "elastic is 1, and must be"),
    (put("lifespan_bytes", -1), "lifespan_bytes is -1"),
    (put("kinds", None), "kinds is null, and must be a list"),
    (put("kinds.0", 7), r"kinds\[0\] is 7, and must be an object"),
    (put("kinds.1.more", 1), r"kinds\[1\] has a field .*'more'"),
    (without("kinds.1.seen"), r"kinds\[1\] lacks 'seen'"),
    (put("kinds.1.seen", 0), r"kinds\[1\]\.seen is 0"),
    (put("kinds.1.starts", None), r"kinds\[1\]\.(starts|unplanned)"),
    (put("kinds.1.starts", [0, 1]), "kind 1: it must be one step"),
    (put("kinds.0.buffers.1.offset", (1 << 62) - 64), "kind 0: .*offset"),
    (put("kinds.0.buffers.1.id", 0), r"kinds\[0\].*request 0 twice"),
    (put("kinds.0.buffers.0.lower", 2), r"kind 0: request .* order of the clock"),
]
OF_GAPS: list[tuple[Callable[[Fields], object], str]] = [
    (without("buffers.1.gaps"), r"buffers\[1\] lacks 'gaps'"),
    (without("buffers.0.gaps"), r"buffers\[1\] has a field .* 'gaps'"),
    (put("buffers.1.gaps", None), r"buffers\[1\].gaps \(id 'b'\) is null, .* list"),
    (put("buffers.0.gaps", {"2": 4}), r"buffers\[0\].gaps .* is an object"),
    (put("buffers.0.gaps.1", 7), r"holds what is not \[lower, upper\] or \[low"),
    (put("buffers.0.gaps.1", [5, 7, 1]), r"is not \[lower, upper\]"),
    (put("buffers.0.gaps.1", [5, 7, 3, 3]), "has a window of no bytes: leave it"),
    (put("buffers.2.gaps.0.0", 3.0), r"buffers\[2\].gaps \(id 'c'\) is 3.0, and"),
    (put("buffers.2.gaps.0.1", 1 << 63), r"is 9223372036854775808, .* to 2\^63"),
    (put("buffers.0.gaps.1", [3, 7]), r"buffer a: the gap \[3, 7\) begins before"),
    (put("buffers.0.gaps.1", [5, 10]), r"buffer a: the gap .* leaves its lifespan"),
    (put("buffers.0.gaps.1.3", 9), "buffer a: the gap .* window beyond its bytes"),
    (put("length", 20), "buffers do not make a problem: gaps need a linear clock"),
]
IMPORTED_ROWS: list[tuple[Callable[[Fields], object], str]] = [
    (put("buffers.1.id", "a"), "two buffers have the label 'a'"),
    (put("buffers.1.id", 1), "buffers\\[1\\].id is 1, and must be text"),
    (put("buffers.1.id", "\ud800"), "label '\\\\ud800' is not text"),
    (put("unplanned", [{"id": 2, "size": 1}]), "starts is null"),
    (put("buffers.0.fixed", -1), "buffers\\[0\\].fixed \\(id 'a'\\) is -1"),
    (put("buffers.1.fixed", 65), "buffer b: fixed offset 65 is not a multiple"),
    (without("buffers.0.fixed"), "buffers\\[1\\] has a field .* 'fixed'"),
]
IMPORTED = Plan.of(
    Problem.of(
        [0, 1], [2, 3], [8, 8], alignment=[8, 64], fixed=[-1, 64], labels=["a", "b"]
    ),
    np.array([0, 64]),
    "exact",
)
UNSOUND = [
    (plan, *row)
    for plan, rows in (
        (SAMPLE, IN_A_PLAN),
        (PLAN, OF_KINDS),
        (GAPPED, OF_GAPS),
        (IMPORTED, IMPORTED_ROWS),
    )
    for row in rows
]


@pytest.mark.parametrize(("plan", "change", "message"), UNSOUND)
def test_an_unsound_field_is_refused_by_name(
    plan: Plan, change: Callable[[Fields], object], message: str
) -> None:
    assert verify(load_plan(dump_plan(plan))) == []
    with pytest.raises(FormatError, match=rf"^bad\.json: .*{message}"):
        load_plan(edited(plan, change), "bad.json")


def test_unnamed_buffers_must_count_from_nought() -> None:
    plan = Plan.of(Problem.of([0, 1], [2, 3], [8, 8]), np.array([0, 8]), "exact")
    for ids in ([1, 0], [0, 2], [0, 0], [False, True]):
        value = json.loads(dump_plan(plan))
        for row, i in zip(value["buffers"], ids, strict=True):
            row["id"] = i
        with pytest.raises(FormatError, match=r"id is .*, and must be text"):
            load_plan(signed(value))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"id,lower,upper,size\n0,0,1,8\n", "not whole JSON"),
        (b"PAR1....PAR1", "Parquet.*run memplan solve bad.json"),
        (b"\x80\x04]q\x00.", "pickle.*run memplan solve bad.json"),
        (b"\x1f\x8b\x08\x00", "gzip; run gunzip bad.json"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 200_000, "nested too deeply|not whole JSON"),
        (b'{"a":' * 200_000, "nested too deeply|not whole JSON"),
        (b'{"seed": 1, "seed": 2}', "has the key 'seed' twice"),
        (b'{"buffers": [{"id": 4, "size": 1, "size": 2}]}', "with id 4 has the key"),
        (b"{}", "no schema"),
        (b"[]", "no schema"),
        (b"null", "no schema"),
        (b"3", "no schema"),
        (b'{"schema": ["memplan.plan"]}', "schema a list"),
        (b'{"schema": "memplan.plan", "version": 1}', "lacks 'alignment', 'bounds'"),
        (b'{"schema": "memplan.plan", "version": 1e0}', "version is 1e0"),
        (b"9" * 100_000, "no schema"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_in_words(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=rf"^bad\.json: .*({message})"):
        load_plan(data, "bad.json")


@pytest.mark.parametrize("data", [b"PAR1", b'{"schema": "memplan.trace"}'])
def test_a_command_to_copy_is_quoted_for_the_shell(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"; run memplan solve 'my trace; ls'$"):
        load_plan(data, "my trace; ls")


def test_a_file_reformatted_or_edited_is_refused_as_changed() -> None:
    data = dump_plan(sample())
    with pytest.raises(FormatError, match="checksum does not match"):
        load_plan(data.replace(b'"seed": 7', b'"seed": 8'))
    pretty = json.dumps(json.loads(data), indent=1).encode()
    with pytest.raises(FormatError, match="checksum does not stand on a line"):
        load_plan(pretty)


# ---- tampered with and signed again: verify names what is unsound


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


def test_a_kind_whose_blocks_collide_does_not_verify() -> None:
    moved = load_plan(edited(PLAN, put("kinds.0.buffers.1.offset", 0)))
    found = verify(moved)
    assert [v.failure for v in found] == [Failure.OVERLAP]
    assert found[0].message.startswith("kind 0: ")
    askew = load_plan(edited(PLAN, put("kinds.1.buffers.0.offset", 65)))
    assert [v.failure for v in verify(askew)] == [Failure.MISALIGNED]


def test_a_gap_changed_in_a_file_is_found() -> None:
    """The file is sound, but no longer says what its fingerprint says."""
    shorter = load_plan(edited(GAPPED, put("buffers.0.gaps.0", [2, 3])))
    assert {v.failure for v in verify(shorter)} == {
        Failure.FINGERPRINT,
        Failure.OVERLAP,
    }
