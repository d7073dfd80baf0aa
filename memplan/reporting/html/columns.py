"""Columns of numbers as compressed text for a page, and the tree of stacks.

A column is cut into planes, the first byte of every number, then the second, and so on:
high bytes are alike, and compress to almost nothing. All planes of all columns stand in
one gzip stream, in base64.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.trace.stacks import Frame

_KINDS = {"u1": "<u1", "u4": "<u4", "f8": "<f8"}  # what the page can read
_LEVEL = 6


@dataclass
class PackedColumns:
    """Columns by name, in the order they were added."""

    _listed: list[dict[str, object]] = field(default_factory=list)
    _planes: list[bytes] = field(default_factory=list)

    def add(
        self, name: str, values: npt.ArrayLike, kind: str, *, delta: bool = False
    ) -> None:
        """A column, shape (n,), of "u1", "u4" or "f8".

        delta: stored as differences from the number before, which suits what ascends.
        Integers to 2^53 are exact as "f8", and so are their differences.
        """
        array: npt.NDArray[Any] = np.asarray(values).astype(_KINDS[kind])
        if delta and len(array):
            array = np.concatenate([array[:1], array[1:] - array[:-1]])
        width = array.dtype.itemsize
        bytes_of = np.ascontiguousarray(array).view(np.uint8).reshape(-1, width)
        self._planes.append(np.ascontiguousarray(bytes_of.T).tobytes())
        self._listed.append(
            {"name": name, "kind": kind, "count": len(array), "delta": delta}
        )

    def listed(self) -> list[dict[str, object]]:
        """What the columns are, for the page's JSON."""
        return self._listed

    def encoded(self) -> str:
        """All planes, as base64; the same columns give the same text."""
        packed = gzip.compress(b"".join(self._planes), _LEVEL, mtime=0)
        return base64.b64encode(packed).decode("ascii")


ROOT = 0


class StackTree:
    """Nodes by number: `parent` of each, and its `label`; node 0 is the root.

    A parent comes before its children.
    """

    def __init__(self) -> None:
        self.parent: list[int] = [ROOT]
        self.label: list[int] = [0]
        self.labels: list[tuple[str, int, str]] = [("", 0, "all")]
        self._known: dict[tuple[int, int], int] = {}
        self._numbers: dict[tuple[str, int, str], int] = {}

    def node(self, frames: Iterable[Frame]) -> int:
        """The node of a stack, outermost call first."""
        at = ROOT
        for frame in frames:
            entry = (frame.filename, frame.line, frame.name)
            number = self._numbers.setdefault(entry, len(self.labels))
            if number == len(self.labels):
                self.labels.append(entry)
            parent, at = at, self._known.setdefault((at, number), len(self.parent))
            if at == len(self.parent):
                self.parent.append(parent)
                self.label.append(number)
        return at
