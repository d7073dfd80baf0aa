"""JSON from strangers: integers only, no key twice, no more than its file may hold.

Whatever is wrong with the text is a FormatError, never another exception.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from memplan.errors import FormatError
from memplan.formats import scan
from memplan.formats.scan import LongList, TooMuchError, has_long_number

# What a text may take up, parsed and all: so much for each byte of its file, and
# something more. Who reads the values takes up some, too.
MEMORY_PER_BYTE = 8
MEMORY_ANYWAY = 120 << 20
MAX_NAMES = 10_000  # different keys
MAX_REFUSED = 500_000  # numbers that are no integers

T = TypeVar("T")
_SET_ASIDE = b"-Infinity"  # stands for a LongList while the rest is parsed


class Refused:
    """A number that is no 63-bit integer, kept until its field is known."""

    __slots__ = ("text", "value")

    def __init__(self, text: str) -> None:
        self.text = text if len(text) <= 40 else f"{text[:37]}..."
        # What a float makes of it, however long it is; thousands of digits are none.
        self.value = float(text) if len(text) <= 400 else math.nan

    def __repr__(self) -> str:
        return self.text


@dataclass
class Budget:
    """What the values of a file of `size` bytes may take up; `taken`, so far."""

    size: int
    taken: int = 0

    @property
    def limit(self) -> int:
        """Bytes, its text and its values together."""
        return MEMORY_PER_BYTE * self.size + MEMORY_ANYWAY

    def take(self, values: int, text: int) -> None:
        """Note what some values take up; the text they are made of does not stay.

        Raises TooMuchError where that is too much for the file.
        """
        self.taken += values
        if self.taken + text > self.limit:
            most = f"about {self.taken + text >> 20} MiB, too much for a file"
            problem = f"too large: its values would take up {most} of {self.size} bytes"
            raise TooMuchError(problem)


def parse(
    data: bytes | bytearray,
    path: object,
    remedy: str = "",
    budget: Budget | None = None,
) -> object:
    """The value `data` stands for; floats, NaN and long numbers become Refused.

    A long list of integers or of words becomes a LongList. budget: of the file that
    `data` is from; if it is the whole file, none need be given. Raises FormatError,
    with `remedy`, if `data` is not UTF-8, not JSON, nested more than 64 deep, holds an
    object with the same key twice, or is too much for the budget.
    """
    builder = _Builder(path)

    def integer(text: str) -> int | Refused:
        return int(text) if len(text) <= 20 else Refused(text)

    try:
        data = builder.set_aside(data, budget or Budget(len(data)))
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=builder.table,
            # Without long numbers Python's own, faster, will do.
            parse_int=integer if has_long_number(data) else None,
            parse_float=builder.number,
            parse_constant=builder.constant,
        )
    except UnicodeDecodeError as error:
        problem = f"byte {builder.byte(error.start)} is not UTF-8 text"
    except json.JSONDecodeError as error:
        problem = f"not whole JSON: {error.msg} at {builder.place(error)}"
    except RecursionError:
        problem = "nested too deeply"
    except (TooMuchError, _RepeatedKeyError) as error:
        problem = str(error)
    raise FormatError(path, problem, remedy)


class _RepeatedKeyError(Exception):
    pass


class _Builder:
    """What the parser asks for objects and odd numbers, and counts of them."""

    def __init__(self, path: object) -> None:
        self._path = path
        self._whole: bytes | bytearray = b""
        self._spans: list[tuple[int, int]] = []
        self._names: set[str] = set()
        self._refused = 0
        self._aside: Iterator[LongList] | None = None

    def set_aside(self, data: bytes | bytearray, budget: Budget) -> bytes | bytearray:
        """`data` without its long lists, if it is not too much for the budget."""
        found, kept = scan.scan(data), len(data)
        spans = [] if _SET_ASIDE in data else scan.long_lists(data, found)
        self._whole, self._spans = data, spans
        if spans:
            lists = [LongList(self._path, data, *span) for span in spans]
            self._aside = iter(lists)
            kept += sum(map(len, lists)) * 6  # bytes a row of a column, about
            ends = [-1, *(end for _, end in spans)]
            starts = [*(begin - 1 for begin, _ in spans), len(data)]
            between = zip(ends, starts, strict=True)
            data = _SET_ASIDE.join(bytes(data[end + 1 : at]) for end, at in between)
            found = scan.scan(data)
        width = 1 if data.isascii() else 4  # bytes a character may take as text
        budget.take(found.weight, kept + width * len(data))
        return data

    def byte(self, at: int) -> int:
        """Where in the whole text byte `at` is of what `set_aside` returned."""
        for begin, end in self._spans:
            if at < begin:
                break
            at += end + 2 - begin - len(_SET_ASIDE)
        return at

    def place(self, error: json.JSONDecodeError) -> str:
        """The line and the column in the whole text, both from 1."""
        at = self.byte(len(error.doc[: error.pos].encode()))
        line = self._whole.count(b"\n", 0, at) + 1
        start = self._whole.rfind(b"\n", 0, at) + 1
        return f"line {line}, column {len(self._whole[start:at].decode()) + 1}"

    def table(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) != len(pairs):
            last = {key: i for i, (key, _) in enumerate(pairs)}
            twice = next(key for i, (key, _) in enumerate(pairs) if last[key] != i)
            name = f" with id {shown(table['id'])}" if "id" in table else ""
            raise _RepeatedKeyError(f"an object{name} has the key {shown(twice)} twice")
        self._names.update(table)
        if len(self._names) > MAX_NAMES:
            raise TooMuchError(f"more than {MAX_NAMES} different keys")
        return table

    def number(self, text: str) -> Refused:
        self._refused += 1
        if self._refused > MAX_REFUSED:
            raise TooMuchError(f"more than {MAX_REFUSED} numbers that are no integers")
        return Refused(text)

    def constant(self, text: str) -> object:
        return self.number(text) if self._aside is None else next(self._aside)


def shown(value: object) -> str:
    """`value` as a message quotes it: short, printable, one line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | LongList):
        return "a list"
    if isinstance(value, tuple):  # its text might be endless
        return "a tuple"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        text = ascii(value) if isinstance(value, str) else repr(value)
    except ValueError:  # an integer of thousands of digits, as TOML may have
        return "far too long"
    return text if len(text) <= 60 else f"{text[:56]}..."
