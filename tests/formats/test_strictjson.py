"""Strict JSON: plain values come through, anything else is a FormatError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import FormatError
from memplan.formats.strictjson import Refused, parse, shown
from memplan.formats.table import Table


@given(st.binary() | st.text(alphabet='[]{}",:0eE.-nul ').map(str.encode))
def test_any_other_bytes_are_a_format_error(data: bytes) -> None:
    try:
        value = parse(data, "x")
    except FormatError as error:
        assert str(error).startswith("x: ")
    else:
        assert json.loads(data) is not None or value is None


def test_numbers_that_are_no_integers_are_kept_to_be_named() -> None:
    value = parse(b"[1.5, NaN, -Infinity, 1e3, " + b"9" * 50 + b"]", "x")
    assert isinstance(value, list)
    assert all(isinstance(item, Refused) for item in value)
    assert [shown(item) for item in value[:4]] == ["1.5", "NaN", "-Infinity", "1e3"]
    assert shown(value[4]) == "9" * 37 + "..."


def test_a_long_number_takes_no_time() -> None:
    value = parse(b"1" * 5_000_000, "x")
    assert isinstance(value, Refused)


def test_a_field_is_named_by_its_place() -> None:
    top = Table.of({"a": {"b": [1, True]}}, "f.json", frozenset("a"), remedy="mend it")
    inner = top.table("a", frozenset("b"))
    with pytest.raises(FormatError, match=r"^f.json: a.b\[1\] is true, .*; mend it$"):
        inner.integers(inner.rows("b"), "b[{}]".format)
    assert inner.integers([1, 2], "b[{}]".format).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("value", "text"),
    [({}, "an object"), ([], "a list"), (None, "null"), (True, "true"), (3, "3")],
)
def test_a_message_shows_the_value_in_short(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_message_stays_on_one_printable_line() -> None:
    assert shown("a\n\x1b[31m") == "'a\\n\\x1b[31m'"
    assert len(shown("x" * 1000)) < 64
