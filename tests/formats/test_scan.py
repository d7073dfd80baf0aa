"""What is told of a text from its brackets is what its values are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan.errors import FormatError
from memplan.formats import scan, strictjson
from memplan.formats.scan import MAX_DEPTH, MAX_KEYS, LongList, TooMuchError
from memplan.formats.strictjson import parse

_TEXT = st.text(alphabet='ab"\\[]{},:0é', max_size=6)
_FLAT = st.lists(st.integers(-999, 999)) | st.lists(st.sampled_from(["alloc", "free"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | _TEXT | _FLAT,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(_TEXT, inner, max_size=5)
    ),
    max_leaves=20,
)


@pytest.fixture(params=[3, 16, 1 << 20], ids="chunks of {}".format)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks so small that everything goes across their ends."""
    monkeypatch.setattr(scan, "_CHUNK", request.param)
    monkeypatch.setattr(scan, "_LONG", 8)


def plain(value: Any) -> Any:
    """`value` with lists in the place of long lists."""
    if isinstance(value, LongList):
        return [entry for piece in value.pieces() for entry in piece]
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return value


def counted(value: Any) -> tuple[int, int, int]:
    """Lists, objects and keys in `value`."""
    inner = value if isinstance(value, list) else []
    inner = list(value.values()) if isinstance(value, dict) else inner
    lists, objects, keys = isinstance(value, list), isinstance(value, dict), 0
    keys = len(value) if objects else 0
    counts = [counted(entry) for entry in inner]
    sums = [sum(column) for column in zip((lists, objects, keys), *counts, strict=True)]
    return sums[0], sums[1], sums[2]


@pytest.mark.usefixtures("small")
@given(value=VALUES, ascii_only=st.booleans(), indent=st.none() | st.integers(0, 2))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_values_come_through_whole(
    value: object, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert plain(parse(text, "x")) == value
    found = scan.scan(text)
    marks = tuple(int(found.counts[ord(mark)]) for mark in "[{:")
    assert marks == counted(value)


@pytest.mark.usefixtures("small")
def test_long_lists_stay_text_until_they_are_wanted() -> None:
    numbers, words = list(range(50)), ["alloc", "free_completed"] * 20
    value = {"a": numbers, "b": [words, numbers[:1]], "c": '["x", 1]'}
    found = parse(json.dumps(value).encode(), "x")
    assert isinstance(found, dict)
    assert isinstance(found["a"], LongList)
    assert isinstance(found["b"][0], LongList)
    assert (len(found["a"]), len(found["b"][0])) == (50, 40)
    assert plain(found) == value


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("odd", ["-Infinity", '"-Infinity"', '"x,y"', "1.5", "9" * 21])
def test_what_cannot_be_set_aside_is_parsed_in_place(odd: str) -> None:
    text = f'{{"a": [{", ".join("12" * 9)}], "b": [{odd}, 2, 3, 4, 5]}}'
    found = parse(text.encode(), "x")
    assert isinstance(found, dict)
    assert [str(entry) for entry in plain(found["a"])] == list("12" * 9)
    assert len(plain(found["b"])) == 5


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("value", [[None, ","], ["a,b", None, "c"], [True, "a, b"]])
def test_a_comma_within_a_text_parts_no_values(value: list[object]) -> None:
    assert plain(parse(json.dumps(value * 3).encode(), "x")) == value * 3


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("text", ["é {0}, {0}\n, {0} x", "\n\n{0}x{0}", "x", "{0}"])
def test_what_is_wrong_is_placed_in_the_whole_text(text: str) -> None:
    numbers = "[" + "1, " * 20 + "\n2]"
    whole = '{"é": [\n' + text.replace("é", '"é",').format(numbers)
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(whole)
    place = f"line {expected.value.lineno}, column {expected.value.colno}"
    with pytest.raises(FormatError, match=rf"{expected.value.msg} at {place}$"):
        parse(whole.encode(), "x")


@pytest.mark.usefixtures("small")
def test_a_byte_that_is_no_text_is_placed_in_the_whole_text() -> None:
    before = b"[[" + b"1, " * 20 + b"2], "
    with pytest.raises(FormatError, match=f"byte {len(before) + 1} is not UTF-8"):
        parse(before + b'"\xff"]', "x")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "text",
    ["1,,2,3,4,5,6", "1 2,3,4,5,6,7", "01,2,3,4,5,6", "1,2,3,4,5,6,", "1,--2,3,4,5"],
)
def test_a_long_list_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match=r"^x: not whole JSON"):
        plain(parse(b'{"a":[%b]}' % text.encode(), "x"))


def test_depth_and_keys_are_bounded() -> None:
    assert parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, "x")
    with pytest.raises(TooMuchError, match="nested too deeply"):
        scan.scan(b"[" * (MAX_DEPTH + 1))
    keys = ",".join(f'"{i}":{{}}' for i in range(MAX_KEYS))
    assert parse(f"[{{{keys}}},{{{keys}}}]".encode(), "x")
    with pytest.raises(FormatError, match="an object has more than 1024 keys"):
        parse(f'{{"more":1,{keys}}}'.encode(), "x")


def test_keys_numbers_and_values_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strictjson, "MAX_NAMES", 3)
    monkeypatch.setattr(strictjson, "MAX_REFUSED", 3)
    assert parse(b'[{"a":1.5,"b":1.5},{"a":1.5,"c":1}]', "x")
    with pytest.raises(FormatError, match="more than 3 different keys"):
        parse(b'[{"a":1,"b":1},{"c":1,"d":1}]', "x")
    with pytest.raises(FormatError, match="more than 3 numbers that are no integers"):
        parse(b"[1.5,2e1,NaN,0.1]", "x")
    monkeypatch.setattr(strictjson, "MEMORY_ANYWAY", 1000)
    assert parse(b"[[],[],[]]", "x")
    with pytest.raises(FormatError, match="too large: its values would take up about"):
        parse(b"[" + b"[]," * 20 + b"[]]", "x")


def test_the_text_itself_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strictjson, "MEMORY_ANYWAY", 1000)
    budget = strictjson.Budget(0)
    assert parse(f'"{"e" * 200}"'.encode(), "x", budget=budget)
    with pytest.raises(FormatError, match="too large"):
        parse(f'"{"é" * 200}"'.encode(), "x", budget=budget)
