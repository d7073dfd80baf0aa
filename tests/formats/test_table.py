"""Dataclasses of parsed values: every field checked, and named where it is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from memplan.errors import FormatError
from memplan.formats.strictjson import parse
from memplan.formats.table import Table
from memplan.limits import MAX_TEXT


@dataclass(frozen=True)
class Wheel:
    spokes: int = 0
    inches: float = 26.0


@dataclass(frozen=True)
class Bicycle:
    name: str
    wheel: Wheel = field(default_factory=Wheel)
    bells: tuple[str, ...] = ()
    sold: bool = False


WHOLE = b'{"name":"n","wheel":{"spokes":3,"inches":2.5},"bells":["a","b"],"sold":true}'
KEYS = frozenset({"name", "wheel", "bells", "sold"})


def built(data: bytes, lenient: bool = False) -> Bicycle:
    value = parse(data, "shop.json")
    file = Table("shop.json", "", {}, lenient=lenient)
    return file.inside(value, "", KEYS).build(Bicycle)


def test_every_field_finds_its_place() -> None:
    assert built(WHOLE) == Bicycle("n", Wheel(3, 2.5), ("a", "b"), True)


def test_a_lenient_table_may_lack_some_and_hold_more() -> None:
    data = b'{"name":"\\udc80","wheel":{"spokes":1,"x":null},"weather":{}}'
    assert built(data, lenient=True) == Bicycle("\udc80", Wheel(1))
    with pytest.raises(
        FormatError, match=r"^shop.json: the file lacks 'bells', 'sold'"
    ):
        built(data)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"3", b"-1", "wheel.spokes is -1, and must be an integer from 0 to 2"),
        (b"3", b"true", "wheel.spokes is true, and must be an integer"),
        (b"2.5", b"NaN", "wheel.inches is NaN, and must be a finite number, not neg"),
        (b"2.5", b"1e999", "wheel.inches is 1e999, and must be a finite number"),
        (b"2.5", b'"2"', "wheel.inches is '2', and must be a finite number"),
        (b'"b"', b"7", r"bells\[1\] is 7, and must be text"),
        (b'["a","b"]', b"{}", "bells is an object, and must be a list"),
        (b"true", b"1", "sold is 1, and must be true or false"),
        (b'"n"', b'"' + b"n" * (MAX_TEXT + 1) + b'"', "name is 'nnn.* at most 65536"),
        (b'"n"', b'"\\ud800"', "name is '.*', and must be text, UTF-8"),
        (b',"inches":2.5', b"", "wheel lacks 'inches'"),
        (b'"inches"', b'"feet"', "wheel lacks 'inches'"),
        (b'{"spokes":3,"inches":2.5}', b"[]", "wheel is a list, and must be an object"),
    ],
)
def test_a_field_that_is_wrong_is_named(old: bytes, new: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=f"^shop.json: {problem}"):
        built(WHOLE.replace(old, new))


def test_a_number_may_have_many_digits() -> None:
    digits = b"2.5000000000000000000000000000000000000000000000000001"
    assert built(WHOLE.replace(b"2.5", digits)).wheel.inches == 2.5
