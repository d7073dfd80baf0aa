"""Plan files from strangers: what is unsound is refused, and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_samples import Fields, edited, put, sample, signed, without

from memplan.core.plan import Plan
from memplan.core.planfile import dump_plan, load_plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.errors import FormatError, InputError


def test_every_truncation_is_refused() -> None:
    data = dump_plan(sample())
    for length in range(len(data)):
        with pytest.raises(FormatError, match=r"^cut\.json: "):
            load_plan(data[:length], "cut.json")


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_every_changed_byte_is_noticed(data: st.DataObject) -> None:
    damaged = bytearray(dump_plan(sample()))
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        load_plan(bytes(damaged))


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


@given(st.data(), JUNK | st.integers(-2, 1 << 64))
@settings(deadline=None, max_examples=100)
def test_junk_in_any_field_is_refused_or_harmless(
    data: st.DataObject, junk: object
) -> None:
    value = json.loads(dump_plan(sample()))
    del value["checksum"]
    container, key = data.draw(st.sampled_from(places(value)))
    container[key] = junk
    try:
        verify(load_plan(signed(value)))
    except InputError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("seed", 1.5), "seed is 1.5, and must be an integer from 0"),
        (put("seed", float("nan")), "seed is NaN"),
        (put("peak", float("inf")), "peak is Infinity"),
        (put("seed", True), "seed is true"),
        (put("seed", -1), "seed is -1"),
        (put("seed", 1 << 63), "seed is 9223372036854775808, .* to 2\\^63 - 1"),
        (put("seed", int("9" * 60)), "seed is 9999999.*\\.\\.\\."),
        (put("method", 3), "method is 3, and must be text"),
        (put("method", "\ud800"), "method is '\\\\ud800', and must be text"),
        (put("method", "x" * 70000), "method is 'xxx.*\\.\\.\\., .* at most 65536"),
        (put("length", 0), "length is 0"),
        (put("length", 5), "buffers do not make a problem: buffer 2: .* period of 5"),
        (put("alignment", 0), "alignment is 0"),
        (put("bounds.proved_optimal", 1), "bounds.proved_optimal is 1, .* true or"),
        (put("bounds", []), "bounds is a list, and must be an object"),
        (put("trace.sha256", None), "trace.sha256 is null"),
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
        (put("buffers.1.id", 0), "buffers and unplanned list request 0 twice"),
        (put("buffers.1.id", 6), "buffers\\[1\\].id is 6, and must be .* from 0 to 5"),
        (put("buffers.1.id", "2"), "buffers\\[1\\].id is '2'"),
        (without("buffers.1"), "buffers\\[2\\].id is 5, .* from 0 to 4"),
        (without("unplanned.0"), "from 0 to 4"),
        (put("unplanned.0.size", -1), "unplanned\\[0\\].size \\(id 1\\) is -1"),
        (put("starts", [1]), "starts must ascend from 0"),
        (put("starts", []), "starts must ascend from 0"),
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
        (put("warmup.buffers.0.size", 0), "warmup.buffers do not .* size is 0"),
        (put("warmup.buffers.0.lower", 9), "warmup.buffers do not .* comes after"),
        (put("version", 2), "newer than 1; upgrade: pip install --upgrade memplan"),
        (put("version", True), "version is true"),
        (put("version", 0), "version is 0"),
        (without("version"), "version is null"),
        (put("schema", "other"), "it has the schema 'other'"),
        (without("schema"), "not a plan: it has no schema"),
        (put("schema", "memplan.trace"), "not a plan; run memplan solve bad.json"),
    ],
)
def test_an_unsound_field_is_refused_by_name(
    change: Callable[[Fields], object], message: str
) -> None:
    with pytest.raises(FormatError, match=rf"^bad\.json: .*{message}"):
        load_plan(edited(sample(), change), "bad.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("buffers.1.id", "a"), "two buffers have the label 'a'"),
        (put("buffers.1.id", 1), "buffers\\[1\\].id is 1, and must be text"),
        (put("buffers.1.id", "\ud800"), "label '\\\\ud800' is not text"),
        (put("unplanned", [{"id": 2, "size": 1}]), "starts is null"),
        (put("buffers.0.fixed", -1), "buffers\\[0\\].fixed \\(id 'a'\\) is -1"),
        (put("buffers.0.alignment", 0), "buffer a: alignment 0 is not at least 1"),
        (put("buffers.1.fixed", 65), "buffer b: fixed offset 65 is not a multiple"),
        (without("buffers.0.fixed"), "buffers\\[1\\] has a field .* 'fixed'"),
    ],
)
def test_an_unsound_imported_buffer_is_refused_by_name(
    change: Callable[[Fields], object], message: str
) -> None:
    problem = Problem.of(
        [0, 1], [2, 3], [8, 8], alignment=[8, 64], fixed=[-1, 64], labels=["a", "b"]
    )
    plan = Plan.of(problem, np.array([0, 64]), "exact")
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


def test_a_repeated_key_in_a_sound_plan_is_refused() -> None:
    data = dump_plan(sample()).replace(b'"seed": 7', b'"seed": 7,\n"seed": 7')
    with pytest.raises(FormatError, match="'seed' twice"):
        load_plan(data)


def test_a_file_reformatted_or_edited_is_refused_as_changed() -> None:
    data = dump_plan(sample())
    with pytest.raises(FormatError, match="checksum does not match"):
        load_plan(data.replace(b'"seed": 7', b'"seed": 8'))
    pretty = json.dumps(json.loads(data), indent=1).encode()
    with pytest.raises(FormatError, match="checksum does not stand on a line"):
        load_plan(pretty)
