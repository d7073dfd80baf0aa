"""Energies and areas of a process: accesses, multiplications and memories."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from memplan.blocking.machine.energy import (
    DRAM_PJ,
    MAC_PJ,
    PAPER_WORDS,
    Curve,
    table_3,
)
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.precision import MULTIPLIERS, Precision
from memplan.errors import FormatError
from memplan.files import read_bytes
from memplan.formats.table import Table

MM2_PER_MIB = 5.5
DIANNAO_MM2 = 1.0
DIANNAO_BYTES = 36 << 10
_MIB = 1 << 20
# What is not memory: the multipliers, and all else.
DATAPATH_MM2 = DIANNAO_MM2 - MM2_PER_MIB * DIANNAO_BYTES / _MIB


@dataclass(frozen=True)
class Area:
    """mm² of a MiB of memory, and of the datapath with all else that is no memory."""

    per_mib: float = MM2_PER_MIB
    datapath: float = DATAPATH_MM2


PAPER_AREA = Area()


def area_mm2(nbytes: int, area: Area = PAPER_AREA) -> float:
    """mm² of a core with so many bytes of memory on the chip; by default 45 nm."""
    return area.datapath + area.per_mib * nbytes / _MIB


_LARGE = float(1 << 40)  # bytes that energies are continued to
# pJ in 45 nm of a multiplication and an addition of the partial sum's bits (Horowitz,
# Computing's energy problem, ISSCC 2014): int8 0.2 + 0.1, int32 3.1 + 0.1, fp16 1.1 +
# 0.9, fp32 3.7 + 0.9. int16 is the blocking paper's 1 pJ; bf16 is taken as fp16, whose
# multiplier is the larger.
MULTIPLIER_PJ: Mapping[str, float] = {
    "int8": 0.3,
    "int16": MAC_PJ,
    "int32": 3.2,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp32": 4.6,
}


@dataclass(frozen=True)
class AccessTable:
    """pJ of 16 bits: a row per size in bytes, a column per bits read at once; both
    ascend, and so do the energies down every column."""

    nbytes: tuple[float, ...]
    words: tuple[float, ...]
    pj: tuple[tuple[float, ...], ...]

    def curve(self, word: int, dram_pj: float) -> Curve:
        """For words of so many bits, the nearest where the table has none so short or
        so long; between columns both logarithms go together linearly. Energy goes with
        the square root of the size above the last row, and stays below the first."""
        at = np.log2(word)
        columns = np.log2(self.words)
        pj = [float(np.exp(np.interp(at, columns, np.log(row)))) for row in self.pj]
        outside = pj[-1] * (_LARGE / self.nbytes[-1]) ** 0.5
        return Curve((*self.nbytes, _LARGE), (*pj, outside), dram_pj=dram_pj)


@dataclass(frozen=True)
class Technology:
    """table: None for the paper's Table 3; dram_pj: 16 bits from main memory;
    multiplier_pj: a multiplication with its addition, by format."""

    table: AccessTable | None = None
    dram_pj: float = DRAM_PJ
    multiplier_pj: Mapping[str, float] = field(
        default_factory=lambda: dict(MULTIPLIER_PJ)
    )
    area: Area = PAPER_AREA

    def curves(self, words: Mapping[Tensor, int] = PAPER_WORDS) -> dict[Tensor, Curve]:
        """Energy by size for each tensor, of so many bits read at once."""
        if self.table is None:
            return {
                tensor: replace(table_3(word), dram_pj=self.dram_pj)
                for tensor, word in words.items()
            }
        return {t: self.table.curve(word, self.dram_pj) for t, word in words.items()}

    def mac_pj(self, precision: Precision) -> float:
        """pJ of one multiplication with its addition."""
        return self.multiplier_pj[precision.multiplier]


FORTY_FIVE = Technology()


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TECHNOLOGY = frozenset({"dram_pj", "mac_pj", "table", "area"})
_MAX_FILE = 1 << 14
_MOST = 1e12  # pJ, or bytes a cycle
_MOST_ROWS = 64
_TITLES = frozenset({"title", "source"})


def load_technology(path: Path) -> Technology:
    """The energies and areas in a TOML file.

    Raises InputError or FormatError naming the file and the entry that is wrong.
    """
    data = read_toml(read_bytes(path, _MAX_FILE), str(path))
    table = Table.of(data, str(path), frozenset(), optional=TECHNOLOGY | _TITLES)
    return technology_of(table)


def read_toml(raw: bytes, name: str) -> dict[str, Any]:
    """What is in the file `name`. Raises FormatError where it is no TOML."""
    try:
        data: dict[str, Any] = tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(name, f"is no TOML: {error}") from None
    except ValueError:  # Python converts no integers of thousands of digits
        raise FormatError(name, "holds a number that is far too long") from None
    return data


def technology_of(table: Table) -> Technology:
    """The fields of TECHNOLOGY that are here; of others, those of 45 nm."""
    given = table.fields
    return Technology(
        _access_table(table) if "table" in given else None,
        positive(table, "dram_pj") if "dram_pj" in given else DRAM_PJ,
        _multipliers(table),
        _area(table),
    )


def positive(table: Table, key: str) -> float:
    """The field, pJ or bytes a cycle, as a number above 0 and below _MOST."""
    value = table.number(key)
    if not 0 < value < _MOST:
        what = "pJ" if "pj" in table.name(key) else "a number"
        below = f"{_MOST:.0e}".replace("e+", "e")
        problem = f"is {value:g}, and must be {what}, above 0 and below {below}"
        raise table.error(key, problem)
    return value


def _multipliers(table: Table) -> dict[str, float]:
    """pJ by format: one number for all, or some of them."""
    if "mac_pj" not in table.fields:
        return dict(MULTIPLIER_PJ)
    if not isinstance(table.fields["mac_pj"], dict):
        return dict.fromkeys(MULTIPLIERS, positive(table, "mac_pj"))
    own = table.table("mac_pj", optional=frozenset(MULTIPLIERS))
    return dict(MULTIPLIER_PJ) | {key: positive(own, key) for key in own.fields}


def _area(table: Table) -> Area:
    if "area" not in table.fields:
        return Area()
    own = table.table("area", optional=frozenset({"mm2_per_mib", "datapath_mm2"}))
    return Area(
        positive(own, "mm2_per_mib") if "mm2_per_mib" in own.fields else MM2_PER_MIB,
        own.number("datapath_mm2") if "datapath_mm2" in own.fields else DATAPATH_MM2,
    )


def _access_table(table: Table) -> AccessTable:
    own = table.table("table", frozenset({"bytes", "words", "pj"}))
    sizes = _ascending(own, "bytes", own.rows("bytes"))
    words = _ascending(own, "words", own.rows("words"))
    rows = own.rows("pj")
    if len(rows) != len(sizes):
        raise own.error("pj", f"has {len(rows)} rows, and there are {len(sizes)} sizes")
    found: list[tuple[float, ...]] = []
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(words):
            raise own.error(
                f"pj[{number}]", f"needs {len(words)} numbers, one per word length"
            )
        found.append(_numbers(own, f"pj[{number}]", row))
    for before, after in pairwise(found):
        if any(one > other for one, other in zip(before, after, strict=True)):
            raise own.error("pj", "falls from a size to a larger one")
    return AccessTable(sizes, words, tuple(found))


def _ascending(table: Table, key: str, values: list[object]) -> tuple[float, ...]:
    found = _numbers(table, key, values)
    if not 1 <= len(found) <= _MOST_ROWS or any(
        one >= other for one, other in pairwise(found)
    ):
        raise table.error(key, f"must be 1 to {_MOST_ROWS} ascending numbers")
    return found


def _numbers(table: Table, key: str, values: list[object]) -> tuple[float, ...]:
    entries = {f"{key}[{i}]": value for i, value in enumerate(values)}
    inner = table.inside(entries, table.where, frozenset(entries))
    return tuple(positive(inner, name) for name in entries)
