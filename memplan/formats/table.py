"""Parsed values read by name and kind, and dataclasses built of them.

Whichever format they were written in, every refusal names the field and its place.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from memplan.arrays import Int64Array
from memplan.errors import FormatError
from memplan.formats.scan import LongList
from memplan.formats.strictjson import Refused, shown
from memplan.limits import MAX_INTEGER, MAX_TEXT

T = TypeVar("T")
_SAME_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Table:
    """An object, of JSON or TOML. `where` is its place in the file, "" at the top.

    lenient: keys may be missing or unknown, and texts hold lone surrogates, as names
    of files that are not UTF-8 do. Otherwise they may not.
    """

    path: object
    where: str
    fields: dict[str, object]
    remedy: str = ""
    lenient: bool = False

    @classmethod
    def of(
        cls,
        value: object,
        path: object,
        keys: frozenset[str],
        where: str = "",
        remedy: str = "",
        optional: frozenset[str] = frozenset(),
    ) -> Table:
        """`value`, if it is an object with `keys`, and perhaps `optional` ones.

        Raises FormatError otherwise.
        """
        return cls(path, where, {}, remedy).inside(value, where, keys, optional)

    def inside(
        self,
        value: object,
        where: str,
        keys: frozenset[str],
        optional: frozenset[str] = frozenset(),
    ) -> Table:
        """`value`, which stands at `where` in the same file, as `of` has it."""
        name = where or "the file"
        if not isinstance(value, dict):
            problem = f"{name} is {shown(value)}, and must be an object"
            raise FormatError(self.path, problem, self.remedy)
        if not self.lenient and not keys <= value.keys() <= keys | optional:
            problem = f"{name} {_key_problem(value, keys, optional)}"
            raise FormatError(self.path, problem, self.remedy)
        return replace(self, where=where, fields=value)

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
        self.check_texts([value], lambda _: key)
        return str(value)

    def check_texts(self, values: Sequence[object], name: Callable[[int], str]) -> None:
        """Raise FormatError for a value that is no text; `name(i)` is value i's."""
        for i, value in enumerate(values):
            if not isinstance(value, str) or not is_text(value, self.lenient):
                limit = f"must be text, UTF-8, at most {MAX_TEXT} characters"
                raise self.error(name(i), f"is {shown(value)}, and {limit}")

    def flag(self, key: str) -> bool:
        """The field as a truth value."""
        value = self.fields[key]
        if not isinstance(value, bool):
            raise self.error(key, f"is {shown(value)}, and must be true or false")
        return value

    def number(self, key: str) -> float:
        """The field as a finite number from 0 up, written in whichever way."""
        value = self.fields[key]
        number = math.nan
        if isinstance(value, Refused):
            number = value.value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                number = float(value)
        if not 0 <= number < math.inf:
            limit = "must be a finite number, not negative"
            raise self.error(key, f"is {shown(value)}, and {limit}")
        return number

    def table(
        self,
        key: str,
        keys: frozenset[str] = frozenset(),
        optional: frozenset[str] = frozenset(),
    ) -> Table:
        """The field as an object with `keys`, and perhaps `optional` ones."""
        return self.inside(self.fields[key], self.name(key), keys, optional)

    def choice(self, key: str, known: Iterable[str]) -> str:
        """The field as one of the texts that are known."""
        value, texts = self.text(key), tuple(known)
        if value not in texts:
            problem = f"is {shown(value)}, and none of {', '.join(texts)}"
            raise self.error(key, problem)
        return value

    def build(
        self, kind: type[T], names: Mapping[str, str] = _SAME_NAMES, least: int = 0
    ) -> T:
        """The dataclass `kind`, each field of it that is here checked by its type.

        names: keys of fields that are not called so here. Integers go from `least` up,
        numbers from 0; tuples are lists of any length, enumerations texts, mappings
        objects of numbers. A field that is not here takes its default.
        """

        def typed(table: Table, key: str, hint: Any) -> object:
            parts, found = get_args(hint), None
            if type(None) in parts:
                if table.fields[key] is None:
                    return None
                hint = next(part for part in parts if part is not type(None))
            readers: dict[type, Callable[[str], object]] = {
                int: lambda key: table.integer(key, least),
                str: table.text,
                bool: table.flag,
                float: table.number,
            }
            if hint in readers:
                found = readers[hint](key)
            elif get_origin(hint) is tuple:
                rows = {f"{key}[{i}]": row for i, row in enumerate(table.rows(key))}
                inner = replace(table, fields=rows)
                found = tuple(typed(inner, name, parts[0]) for name in rows)
            elif get_origin(hint) is Mapping:
                given = table.fields[key]
                own = table.table(key, frozenset(given if type(given) is dict else ()))
                found = {name: own.number(name) for name in own.fields}
            elif is_dataclass(hint):
                keys = frozenset(names.get(f.name, f.name) for f in fields(hint))
                found = table.table(key, keys).build(hint, names, least)  # type: ignore[arg-type]
            else:
                found = hint(table.choice(key, [one.value for one in hint]))
            return found

        found = {}
        for name, hint in _hints(kind).items():  # type: ignore[arg-type]
            key = names.get(name, name)
            if key in self.fields:
                found[name] = typed(self, key, hint)
        return kind(**found)

    def rows(self, key: str) -> list[object]:
        """The field as a list."""
        value = self.fields[key]
        if isinstance(value, LongList):
            return [entry for piece in value.pieces() for entry in piece]
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
                self.inside(row, f"{self.name(key)}[{i}]", keys)
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


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The fields of a dataclass and their types, compiled but once."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def check_version(
    path: object,
    value: dict[str, object],
    newest: int,
    what: str,
    remedy: str = "",
) -> None:
    """Raise FormatError unless the `version` in `value` is one from 1 to `newest`.

    what: the file is; its format's name in the message.
    """
    version = value.get("version")
    if type(version) is not int or version < 1:
        problem = f"version is {shown(version)}, and must be an integer from 1"
        raise FormatError(path, problem, remedy)
    if version > newest:
        given = f"version {shown(version)} of the {what} format"
        remedy = "upgrade: pip install --upgrade memplan"
        raise FormatError(path, f"{given} is newer than {newest}", remedy)


def is_text(value: str, lone_surrogates: bool = False) -> bool:
    """Whether a file may hold `value`: at most 64 Ki characters, no lone surrogates."""
    if len(value) > MAX_TEXT:
        return False
    return (
        lone_surrogates
        or value.isascii()
        or not any("\ud800" <= c <= "\udfff" for c in value)
    )


def _not_integer(value: object, low: int, high: int) -> str:
    limit = "2^63 - 1" if high == MAX_INTEGER else str(high)
    return f"is {shown(value)}, and must be an integer from {low} to {limit}"


def _key_problem(
    value: dict[str, object], keys: frozenset[str], optional: frozenset[str]
) -> str:
    missing = sorted(keys - value.keys())
    if missing:
        return f"lacks {', '.join(map(shown, missing))}"
    unknown = shown(min(value.keys() - keys - optional))
    known = f"; known are {', '.join(sorted(keys | optional))}" if optional else ""
    return f"has a field that does not belong there: {unknown}{known}"
