"""What a JSON text would take up, told from its brackets before anything is built.

One pass of numpy over the text, so much at a time that caches hold it, finds the marks
that stand outside of strings. It refuses what is nested too deeply, weighs the rest,
and finds the long flat lists, which need not become Python objects all at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from memplan.arrays import Int64Array
from memplan.errors import FormatError

MAX_DEPTH = 64
MAX_KEYS = 1024  # of one object

# Bytes that a parsed value takes up at the most, in usual files at least: a list, an
# object, a key in it, a text beside its characters, and any other value in its place.
_WEIGHTS = {"[": 112, "{": 160, ":": 24, '"': 56, ",": 41}
_CHUNK = 1 << 16
_LONG = 1 << 16  # bytes of a list worth setting aside
_QUOTE, _COLON, _COMMA = ord('"'), ord(":"), ord(",")
_LIST, _LIST_END, _OBJECT = ord("["), ord("]"), ord("{")
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_NUMBERS = re.compile(rb"[-0-9, \t\r\n]*")
_WORDS = re.compile(rb'[a-z_", \t\r\n]*')
_LONG_NUMBER = 20  # digits; it may be more than 64 bits
_DIGITS_ALIKE = bytes(48 if chr(c).isdigit() else 0 for c in range(128)).ljust(256)

_IS_MARK = np.zeros(256, dtype=np.bool_)
_IS_MARK[list(b'[]{}":,')] = True
_STEP = np.zeros(256, dtype=np.int64)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1


class TooMuchError(Exception):
    """The text would take up more than any honest file; says what of."""


class LongList:
    """A long list of integers, or of plain words, kept as the text it was.

    data[begin:end] is what stands between its brackets.
    """

    def __init__(
        self, path: object, data: bytes | bytearray, begin: int, end: int
    ) -> None:
        self._path, self._data, self._begin, self._end = path, data, begin, end
        self._length = data.count(b",", begin, end) + 1

    def __len__(self) -> int:
        return self._length

    def pieces(self) -> Iterator[list[object]]:
        """Its values, some at a time; raises FormatError if they are no JSON."""
        begin, rest = self._begin, self._length
        while rest > 0:
            end = self._data.find(b",", min(begin + _CHUNK, self._end), self._end)
            end = self._end if end < 0 else end
            try:
                text = b"[%b]" % bytes(self._data[begin:end])
                values: list[object] = json.loads(text)
            except json.JSONDecodeError as error:
                place = f"byte {begin + error.pos - 1}"
                problem = f"not whole JSON: {error.msg} at {place}"
                raise FormatError(self._path, problem) from None
            rest -= len(values)
            if rest < 0 or (end == self._end and rest):
                problem = f"not whole JSON: a comma too many from byte {begin}"
                raise FormatError(self._path, problem)
            yield values
            begin = end + 1


@dataclass
class Scan:
    """What was seen so far. spans: of long flat lists, without their brackets."""

    counts: Int64Array = field(default_factory=lambda: np.zeros(256, np.int64))
    spans: list[tuple[int, int]] = field(default_factory=list)
    _texts: int = 0
    _inside: int = 0  # 1 within a string
    _depth: int = 0
    _open: int = -1  # the bracket of a list that has been flat so far
    _keys: Int64Array = field(
        default_factory=lambda: np.zeros(MAX_DEPTH + 1, dtype=np.int64)
    )

    @property
    def weight(self) -> int:
        """Bytes that the parsed values take up, beside the text."""
        counts = {mark: int(self.counts[ord(mark)]) for mark in _WEIGHTS}
        counts['"'] = max(0, self._texts - counts[":"])  # keys are kept but once
        return sum(counts[mark] * weight for mark, weight in _WEIGHTS.items())

    def take(self, chunk: bytes, begin: int) -> None:
        """Look at the next chunk, which begins at byte `begin`."""
        marks = np.frombuffer(chunk, dtype=np.uint8)
        at = np.flatnonzero(_IS_MARK[marks])
        if not len(at):
            return
        kind = marks[at]
        quote = kind == _QUOTE
        inside = (np.cumsum(quote) + self._inside) & 1 == 1
        self._inside = int(inside[-1])
        self._texts += int((quote & inside).sum())
        outside = ~(inside | quote)
        at, kind = at[outside] + begin, kind[outside]
        if not len(at):
            return
        self.counts += np.bincount(kind, minlength=256)
        level = np.cumsum(_STEP[kind]) + self._depth
        self._depth = max(0, int(level[-1]))
        if level.max() > MAX_DEPTH:
            raise TooMuchError("nested too deeply")
        self._count_keys(kind, level.clip(0))
        self._find_lists(at, kind)

    def _count_keys(self, kind: Int64Array, level: Int64Array) -> None:
        """Count the keys of each object, those of the same depth side by side."""
        chosen = (kind == _COLON) | (kind == _OBJECT)
        level = level[chosen]
        order = np.argsort(level.astype(np.uint8), kind="stable")
        level, key = level[order], (kind[chosen] == _COLON)[order]
        if not len(level):
            return
        new = np.diff(level, prepend=-1) > 0
        starts = np.flatnonzero(~key | new)
        count = np.add.reduceat(key.astype(np.int64), starts)
        going_on = key[starts]  # the object began in a chunk before
        count[going_on] += self._keys[level[starts[going_on]]]
        if count.max() > MAX_KEYS:
            raise TooMuchError(f"an object has more than {MAX_KEYS} keys")
        self._keys[level[starts]] = count  # of each depth, the last one stays

    def _find_lists(self, at: Int64Array, kind: Int64Array) -> None:
        bracket = kind != _COMMA
        at, kind = at[bracket], kind[bracket]
        if self._open >= 0:
            at = np.concatenate([[self._open], at])
            kind = np.concatenate([np.array([_LIST], dtype=np.uint8), kind])
        flat = (kind[:-1] == _LIST) & (kind[1:] == _LIST_END)
        flat &= np.diff(at) > _LONG
        for i in np.flatnonzero(flat).tolist():
            self.spans.append((int(at[i]) + 1, int(at[i + 1])))
        if len(at):
            self._open = int(at[-1]) if kind[-1] == _LIST else -1


def scan(data: bytes | bytearray) -> Scan:
    """Look at a whole text. Raises TooMuchError for what is nested too deeply."""
    found = Scan()
    begin = 0
    while begin < len(data):
        chunk = bytes(data[begin : begin + _CHUNK])
        if b"\\" in chunk:
            tail = len(chunk) - len(chunk.rstrip(b"\\"))
            if tail % 2 and begin + len(chunk) < len(data):  # its escape comes next
                chunk += bytes(data[begin + len(chunk) : begin + len(chunk) + 1])
            chunk = _ESCAPED.sub(b"__", chunk)
        found.take(chunk, begin)
        begin += len(chunk)
    return found


def has_long_number(
    data: bytes | bytearray, begin: int = 0, end: int | None = None
) -> bool:
    """Whether data[begin:end] has 20 digits in a row."""
    end = len(data) if end is None else end
    digits = b"0" * _LONG_NUMBER
    return any(
        digits
        in data[at : min(at + _CHUNK + _LONG_NUMBER, end)].translate(_DIGITS_ALIKE)
        for at in range(begin, end, _CHUNK)
    )


def long_lists(data: bytes | bytearray, found: Scan) -> list[tuple[int, int]]:
    """The spans that a LongList can be made of: 64-bit integers, or plain words.

    Where there are two quotes for every value, no comma stands within a text.
    """
    return [
        (begin, end)
        for begin, end in found.spans
        if (commas := data.count(b",", begin, end))
        and _is_flat(data, begin, end, commas)
    ]


def _is_flat(data: bytes | bytearray, begin: int, end: int, commas: int) -> bool:
    if _WORDS.fullmatch(data, begin, end):
        return data.count(b'"', begin, end) == 2 * (commas + 1)
    numbers = _NUMBERS.fullmatch(data, begin, end)
    return numbers is not None and not has_long_number(data, begin, end)
