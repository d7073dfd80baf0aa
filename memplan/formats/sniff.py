"""What a file is, told by its first bytes or its top-level `schema`; opened but once.

Whoever reads the file takes the stream that is open already: a file that is replaced
meanwhile is never half of the one and half of the other.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import os
from collections.abc import Iterator
from typing import IO

from memplan.errors import InputError
from memplan.files import PathLike, open_input
from memplan.formats.strictjson import parse
from memplan.garbage import no_collections
from memplan.limits import MAX_FILE_BYTES

MAX_JSON_BYTES = 1 << 30
_HEAD_BYTES = 4096
_MOST_FOOTER = 128 << 20
# In a text of JSON it would have backslashes.
_PLAN_ENTRY = b'"schema": "memplan.plan"'


class Kind(enum.Enum):
    """What a file seems to be; whether it is, and is whole, its reader says."""

    PARQUET = "a Parquet file"
    TRACE = "a trace as JSON"
    GZIP = "compressed with gzip"
    PLAN = "a plan"
    BLOCKING_PLAN = "a plan of loop nests"
    PICKLE = "a pickle"
    JOURNAL = "the journal of a recording"
    JSON = "some other JSON"
    UNKNOWN = "unknown"


MAGIC_OF = {
    Kind.PARQUET: b"PAR1",
    Kind.GZIP: b"\x1f\x8b",
    Kind.JOURNAL: b"MPLNJRN1",
}
_SCHEMAS = {
    "memplan.trace": Kind.TRACE,
    "memplan.plan": Kind.PLAN,
    "memplan.blocking-plan": Kind.BLOCKING_PLAN,
}


class Opened:
    """A file that is open.

    size: in bytes. head: the first of them. stream: of them all, at the start.
    """

    def __init__(self, path: PathLike, stream: IO[bytes], size: int) -> None:
        self.path, self.stream, self.size = path, stream, size
        self.head = stream.read(_HEAD_BYTES)
        self._kind = begins_as(self.head)
        stream.seek(0)
        self._data: bytes | None = None
        self._parsed: list[object] = []

    @property
    def kind(self) -> Kind:
        """What the file is. Raises FormatError if it begins as JSON, and is none."""
        if self._kind is Kind.JSON:
            value = self.json()
            schema = value.get("schema") if isinstance(value, dict) else None
            return _SCHEMAS.get(schema if isinstance(schema, str) else "", Kind.JSON)
        return Kind.PLAN if self.is_parquet and self._holds_plan else self._kind

    @property
    def is_parquet(self) -> bool:
        """Whether it is Parquet, be it a trace or a plan."""
        return self._kind is Kind.PARQUET

    @functools.cached_property
    def _holds_plan(self) -> bool:
        """Whether a Parquet file's metadata, which stands at its end, is a plan's."""
        ending = 8  # the metadata's length, and the magic once more
        place = self.stream.tell()
        try:
            self.stream.seek(max(0, self.size - ending))
            length = int.from_bytes(self.stream.read(4), "little")
            if length > min(self.size - ending, _MOST_FOOTER):
                return False
            self.stream.seek(self.size - ending - length)
            return _PLAN_ENTRY in self.stream.read(length)
        finally:
            self.stream.seek(place)

    def read(self, limit: int = MAX_FILE_BYTES) -> bytes:
        """The whole file. Raises InputError if it has more than `limit` bytes."""
        if self.size > limit:
            name = os.fspath(self.path)
            raise InputError(f"{name}: {self.size} bytes, above the limit of {limit}")
        if self._data is None:
            self._data = self.stream.read(self.size)
        return self._data

    def json(self, remedy: str = "the file may be cut off") -> object:
        """The file as JSON, parsed but once. Raises FormatError."""
        if not self._parsed:
            self._parsed.append(parse(self.read(MAX_JSON_BYTES), self.path, remedy))
        return self._parsed[0]

    def sha256(self) -> str:
        """The SHA-256 of the file's bytes, in hexadecimal."""
        if self._data is not None:
            return hashlib.sha256(self._data).hexdigest()
        place = self.stream.tell()
        self.stream.seek(0)
        digest = hashlib.sha256()
        while piece := self.stream.read(1 << 20):
            digest.update(piece)
        self.stream.seek(place)
        return digest.hexdigest()


Input = PathLike | Opened  # what readers take


@contextlib.contextmanager
def sniff(path: PathLike) -> Iterator[Opened]:
    """The file at `path`, opened, and what it is.

    Raises InputError as `open_input` does, or if the file changes while it is read.
    """
    with open_input(path) as (stream, size), no_collections():
        before = os.fstat(stream.fileno())
        yield Opened(path, stream, size)
        after = os.fstat(stream.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise InputError(f"{os.fspath(path)}: changed while it was read; try again")


@contextlib.contextmanager
def opened(source: Input) -> Iterator[Opened]:
    """`source`, if it is open already; raises as `sniff` does otherwise."""
    if isinstance(source, Opened):
        yield source
    else:
        with sniff(source) as file:
            yield file


def begins_as(data: bytes) -> Kind:
    """What a file seems to be by its first bytes alone; JSON, whatever its schema."""
    head = data[:_HEAD_BYTES]
    for kind, magic in MAGIC_OF.items():
        if head.startswith(magic):
            return kind
    if head[:1] == b"\x80" and 1 < int.from_bytes(head[1:2], "little") < 32:
        return Kind.PICKLE
    return Kind.JSON if head.lstrip()[:1] == b"{" else Kind.UNKNOWN
