"""JSON from strangers: integers only, no key twice, every refusal names its place.

`parse` builds plain values; `Table` and the column functions read them by name and
kind. Whatever is wrong with the text is a FormatError, never another exception.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.errors import FormatError
from memplan.limits import MAX_INTEGER, MAX_TEXT


class Refused:
    """A number that is no 63-bit integer, kept until its field is known."""

    def __init__(self, text: str) -> None:
        self.text = text if len(text) <= 40 else f"{text[:37]}..."

    def __repr__(self) -> str:
        return self.text


class _RepeatedKeyError(Exception):
    pass


def parse(data: bytes, path: object, remedy: str = "") -> object:
    """The value `data` stands for; floats, NaN and long numbers become Refused.

    Raises FormatError, with `remedy`, if `data` is not UTF-8, not JSON, nested
    beyond Python's recursion limit, or holds an object with the same key twice.
    """
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=Refused,
            parse_constant=Refused,
        )
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is not UTF-8 text"
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        problem = f"not whole JSON: {error.msg} at {place}"
    except RecursionError:
        problem = "nested too deeply"
    except _RepeatedKeyError as error:
        problem = str(error)
    raise FormatError(path, problem, remedy)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        last = {key: i for i, (key, _) in enumerate(pairs)}
        twice = next(key for i, (key, _) in enumerate(pairs) if last[key] != i)
        name = f" with id {shown(table['id'])}" if "id" in table else ""
        raise _RepeatedKeyError(f"an object{name} has the key {shown(twice)} twice")
    return table


def _integer(text: str) -> int | Refused:
    return int(text) if len(text) <= 20 else Refused(text)


def shown(value: object) -> str:
    """`value` as a message quotes it: short, printable, one line."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:56]}..."


@dataclass(frozen=True)
class Table:
    """A JSON object of known keys. `where` is its place in the file, "" at the top."""

    path: object
    where: str
    fields: dict[str, object]
    remedy: str = ""

    @classmethod
    def of(
        cls,
        value: object,
        path: object,
        keys: frozenset[str],
        where: str = "",
        remedy: str = "",
    ) -> Table:
        """`value`, if it is an object with exactly `keys`; FormatError otherwise."""
        name = where or "the file"
        if not isinstance(value, dict):
            problem = f"{name} is {shown(value)}, and must be an object"
            raise FormatError(path, problem, remedy)
        if value.keys() != keys:
            raise FormatError(path, f"{name} {_key_problem(value, keys)}", remedy)
        return cls(path, where, value, remedy)

    def name(self, key: str) -> str:
        """The field's place in the file, as in ``bounds.lower_bound``."""
        return f"{self.where}.{key}" if self.where else key

    def error(self, key: str, problem: str) -> FormatError:
        """A FormatError about the field `key`."""
        return FormatError(self.path, f"{self.name(key)} {problem}", self.remedy)

    def integer(self, key: str, low: int = 0, high: int = MAX_INTEGER) -> int:
        """The field as an integer in [low, high], both ends included."""
        value = self.fields[key]
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, _not_integer(value, low, high))
        return value

    def text(self, key: str) -> str:
        """The field as text."""
        value = self.fields[key]
        if not isinstance(value, str) or not is_text(value):
            limit = f"must be text, UTF-8, at most {MAX_TEXT} characters"
            raise self.error(key, f"is {shown(value)}, and {limit}")
        return value

    def flag(self, key: str) -> bool:
        """The field as a truth value."""
        value = self.fields[key]
        if not isinstance(value, bool):
            raise self.error(key, f"is {shown(value)}, and must be true or false")
        return value

    def table(self, key: str, keys: frozenset[str]) -> Table:
        """The field as an object with exactly `keys`."""
        return Table.of(self.fields[key], self.path, keys, self.name(key), self.remedy)

    def rows(self, key: str) -> list[object]:
        """The field as a list."""
        value = self.fields[key]
        if not isinstance(value, list):
            raise self.error(key, f"is {shown(value)}, and must be a list")
        return value

    def columns(self, key: str, keys: frozenset[str]) -> dict[str, list[object]]:
        """The field, a list of objects with exactly `keys`, as one list per key."""
        rows: list[dict[str, object]] = []
        for i, row in enumerate(self.rows(key)):
            if isinstance(row, dict) and row.keys() == keys:
                rows.append(row)
            else:
                Table.of(row, self.path, keys, f"{self.name(key)}[{i}]", self.remedy)
        return {name: [row[name] for row in rows] for name in keys}

    def integers(
        self,
        values: Sequence[object],
        name: Callable[[int], str],
        low: int = 0,
        high: int = MAX_INTEGER,
    ) -> Int64Array:
        """`values` as int64, each in [low, high]; `name(i)` is value i's place here."""
        whole = all(kind is int for kind in set(map(type, values)))
        if whole and (not values or low <= min(values) <= max(values) <= high):  # type: ignore[type-var,operator]
            return np.array(values, dtype=np.int64)
        i, value = next(
            (i, value)
            for i, value in enumerate(values)
            if type(value) is not int or not low <= value <= high
        )
        raise self.error(name(i), _not_integer(value, low, high))


def is_text(value: str) -> bool:
    """Whether a file may hold `value`: at most 64 Ki characters, no lone surrogates."""
    if len(value) > MAX_TEXT:
        return False
    return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)


def _not_integer(value: object, low: int, high: int) -> str:
    limit = "2^63 - 1" if high == MAX_INTEGER else str(high)
    return f"is {shown(value)}, and must be an integer from {low} to {limit}"


def _key_problem(value: dict[str, object], keys: frozenset[str]) -> str:
    missing = sorted(keys - value.keys())
    if missing:
        return f"lacks {', '.join(map(shown, missing))}"
    unknown = sorted(value.keys() - keys)
    return f"has a field that does not belong there: {shown(unknown[0])}"
