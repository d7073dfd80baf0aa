"""The entries of one device's history as columns, from Python objects or a pickle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray
from memplan.trace.importers.plain_pickle import value_of

if TYPE_CHECKING:
    from memplan.native._plain import Plain

UInt64Array = npt.NDArray[np.uint64]
MAX_KEYS = 64  # of an entry; torch writes a dozen
_LARGEST = (1 << 64) - 1


class Entries(Protocol):
    """A history: its entries in order, most of them dicts."""

    def __len__(self) -> int: ...

    def misfit(self) -> int | None:
        """The first entry that is no dict, or has too many keys; None for none."""

    def actions(self) -> list[object]:
        """The `action` of each, whatever it is; None where there is none."""

    def integers(self, name: str) -> tuple[UInt64Array, BoolArray, BoolArray]:
        """Of each a field's value; where it is an integer from 0 to 2^64 - 1, and
        where there is such a field at all."""

    def identities(self, name: str) -> tuple[list[Any], npt.NDArray[np.int64]]:
        """The different objects in a field, and which of them each entry has; objects
        that are shared are one. -1 where there is none."""

    def value(self, i: int) -> object:
        """The entry as a Python object."""


class ObjectEntries:
    """Of a list of dicts: a history fetched from torch, or read from JSON."""

    def __init__(self, history: Sequence[Any]) -> None:
        self._history = history

    def __len__(self) -> int:
        return len(self._history)

    def misfit(self) -> int | None:
        rows = enumerate(self._history)
        return next((i for i, entry in rows if not isinstance(entry, dict)), None)

    def actions(self) -> list[object]:
        return [entry.get("action") for entry in self._history]

    def integers(self, name: str) -> tuple[UInt64Array, BoolArray, BoolArray]:
        values = [entry.get(name) for entry in self._history]
        good = [type(v) is int and 0 <= v <= _LARGEST for v in values]
        numbers = [v if ok else 0 for v, ok in zip(values, good, strict=True)]
        present = [name in entry for entry in self._history]
        return np.array(numbers, dtype=np.uint64), _flags(good), _flags(present)

    def identities(self, name: str) -> tuple[list[Any], npt.NDArray[np.int64]]:
        places: dict[int, int] = {}
        found: list[Any] = []
        rows = np.full(len(self), -1, dtype=np.int64)
        for i, entry in enumerate(self._history):
            value = entry.get(name)
            if not value:
                continue
            place = places.setdefault(id(value), len(found))
            if place == len(found):
                found.append(value)
            rows[i] = place
        return found, rows

    def value(self, i: int) -> object:
        return self._history[i]


class PlainEntries:
    """Of a list in a pickle of plain data, which never become Python objects."""

    def __init__(self, plain: Plain, cell: int) -> None:
        self._plain, self._cell = plain, cell

    def __len__(self) -> int:
        return self._plain.length(self._cell)

    def misfit(self) -> int | None:
        most, place = self._plain.widest(self._cell)
        if 0 <= most <= MAX_KEYS:
            return None
        return place

    def actions(self) -> list[object]:
        different, rows = np.unique(
            self._plain.column(self._cell, "action"), return_inverse=True
        )
        names = self._plain.values(different)
        return [names[row] for row in rows.tolist()]

    def integers(self, name: str) -> tuple[UInt64Array, BoolArray, BoolArray]:
        from memplan.native._plain import ABSENT

        cells = self._plain.column(self._cell, name)
        values, good = self._plain.integers(cells)
        return values, good.astype(np.bool_), cells != np.uint64(ABSENT)

    def identities(self, name: str) -> tuple[list[Any], npt.NDArray[np.int64]]:
        cells = self._plain.column(self._cell, name)
        different, rows = np.unique(cells, return_inverse=True)
        values = self._plain.values(different)
        kept = [value for value in values if value]
        places = np.full(len(values), -1, dtype=np.int64)
        places[[i for i, value in enumerate(values) if value]] = np.arange(len(kept))
        return kept, places[rows]

    def value(self, i: int) -> object:
        return value_of(self._plain, self._plain.item(self._cell, i))


def _flags(values: list[bool]) -> BoolArray:
    return np.array(values, dtype=np.bool_)
