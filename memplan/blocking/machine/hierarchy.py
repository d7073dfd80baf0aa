"""Memory hierarchies: those that come with memplan, and those of files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

from memplan.blocking.machine.energy import PAPER_WORDS, Curve
from memplan.blocking.machine.technology import (
    FORTY_FIVE,
    TECHNOLOGY,
    Technology,
    positive,
    read_toml,
    technology_of,
)
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.precision import Precision, of_bits, parse_precision
from memplan.errors import FormatError, UsageError
from memplan.files import read_bytes
from memplan.formats.strictjson import shown
from memplan.formats.table import Table
from memplan.units import parse_bytes


@dataclass(frozen=True)
class Cache:
    """How a level is organised: bytes in all, ways, and bytes of a line."""

    nbytes: int
    ways: int
    line: int


@dataclass(frozen=True)
class Level:
    """One level: a memory shared by all tensors, or one for each.

    shared: bytes, or None; private: bytes by tensor, or None. pj: energy per 16 bits
    by tensor; where it is missing, Table 3 gives it for the memory's size.

    bandwidth: bytes a cycle of each port, by tensor; of a shared level the same for
    all; empty where it is not known. ports: 1, for reads and writes alike, or 2, one
    for each. double_buffered: half of the bytes take the next tile in while the other
    half is worked on, so that a tile is at most half of them. sliding: the input's
    bytes can shift, or their addresses go round, so that a buffer takes only new
    columns in where its loop goes on (`nest.counts`).
    """

    name: str
    shared: int | None
    private_bytes: Mapping[Tensor, int] | None
    pj: Mapping[Tensor, float]
    cache: Cache | None = None
    bandwidth: Mapping[Tensor, float] = field(default_factory=dict)
    ports: int = 1
    double_buffered: bool = False
    sliding: bool = False

    @property
    def private(self) -> bool:
        """Whether each tensor has a memory of its own."""
        return self.private_bytes is not None

    def capacity(self, tensor: Tensor) -> int:
        """Bytes that tiles of `tensor` may take up, perhaps shared with others."""
        return self.nbytes(tensor) // (2 if self.double_buffered else 1)

    def nbytes(self, tensor: Tensor) -> int:
        """Bytes of the memory that `tensor` is in; 0 where there is none."""
        if self.private_bytes is not None:
            return self.private_bytes[tensor]
        assert self.shared is not None
        return self.shared


@dataclass(frozen=True)
class Hierarchy:
    """Levels, innermost first, and what accesses cost.

    curves: energy by memory size for each tensor's word; dram_pj: of main memory, and
    mac_pj: of a multiplication with its addition, pJ. count_fills: whether writing
    what was fetched into a level costs as much as reading it. precision: bits of the
    elements; technology: where energies are from that no level gives.
    dram_bandwidth: bytes a cycle of each of main memory's `dram_ports`, None where it
    is not known; dram_by_tensor: pJ of main memory where it differs by tensor.
    """

    name: str
    title: str
    source: str
    levels: tuple[Level, ...]
    curves: Mapping[Tensor, Curve]
    dram_pj: float
    mac_pj: float
    count_fills: bool
    precision: Precision = field(default_factory=Precision)
    technology: Technology = FORTY_FIVE
    dram_bandwidth: float | None = None
    dram_ports: int = 1
    dram_by_tensor: Mapping[Tensor, float] = field(default_factory=dict)

    def at(self, precision: Precision) -> Hierarchy:
        """The same memories, with elements of other bits."""
        mac_pj = self.technology.mac_pj(precision)
        return replace(self, precision=precision, mac_pj=mac_pj)

    def slid(self) -> Hierarchy:
        """The same levels, all of which can have sliding buffers."""
        return replace(
            self, levels=tuple(replace(x, sliding=True) for x in self.levels)
        )

    @property
    def sliding(self) -> bool:
        """Whether any level can have sliding buffers."""
        return any(level.sliding for level in self.levels)

    @property
    def timed(self) -> bool:
        """Whether it says a bandwidth anywhere."""
        known = any(level.bandwidth for level in self.levels)
        return known or self.dram_bandwidth is not None

    def main_pj(self, tensor: Tensor) -> float:
        """pJ per 16 bits of main memory."""
        return self.dram_by_tensor.get(tensor, self.dram_pj)

    def rate(self, depth: int, tensor: Tensor) -> float:
        """Bytes a cycle of a port of level `depth`, from 0, or of main memory, which is
        the last; infinite where it is not known."""
        if depth < len(self.levels):
            return self.levels[depth].bandwidth.get(tensor, math.inf)
        return math.inf if self.dram_bandwidth is None else self.dram_bandwidth

    def ports(self, depth: int) -> int:
        """Likewise, how many there are."""
        inside = depth < len(self.levels)
        return self.levels[depth].ports if inside else self.dram_ports

    def price(self, depth: int, tensor: Tensor) -> float:
        """pJ per 16 bits of an access to level `depth`, from 0."""
        level = self.levels[depth]
        given = level.pj.get(tensor)
        if given is not None:
            return given
        return self.curves[tensor].on_chip(level.nbytes(tensor))

    @property
    def nbytes(self) -> int:
        """Bytes of all its memories."""
        sizes: list[int] = []
        for level in self.levels:
            if level.private_bytes is not None:
                sizes += level.private_bytes.values()
            else:
                sizes.append(level.nbytes(Tensor.INPUT))
        return sum(sizes)

    @property
    def private(self) -> bool:
        """Whether no level is shared between tensors."""
        return all(level.private for level in self.levels)

    @property
    def caches(self) -> tuple[Cache, ...]:
        """The levels' caches. Raises UsageError if one has no ways and line."""
        found = []
        for level in self.levels:
            if level.cache is None:
                raise UsageError(
                    f"level {level.name} of {self.name} is no cache: give it shared "
                    "bytes, ways and line"
                )
            found.append(level.cache)
        return tuple(found)


_PRESETS = "hierarchies"
_MAX_FILE = 1 << 14  # bytes; time and memory to parse long keys go with its square
_MAX_LEVELS = 8
_MAX_BYTES = 1 << 60
_NOT_LEVELS = {"DRAM", "datapath"}  # what is outside of all, and inside
_TENSORS = frozenset(tensor.value for tensor in Tensor)
_TOP = frozenset({"title", "source", "count_fills", "words", "bits"}) | TECHNOLOGY
_TOP |= {"dram_bandwidth", "dram_ports"}
_LEVEL = frozenset({"shared", "private", "pj", "ways", "line"})
_LEVEL |= {"bandwidth", "ports", "double_buffered", "sliding"}
_BITS = frozenset({"input", "kernel", "partial", "output"})


def presets() -> list[str]:
    """Names of the hierarchies that come with memplan."""
    folder = resources.files("memplan.blocking.machine") / _PRESETS
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name[:-5] for name in names if name.endswith(".toml"))


def load_hierarchy(name: str) -> Hierarchy:
    """A preset by its name, or the hierarchy in a TOML file.

    Raises InputError or FormatError naming the file and the entry that is wrong.
    """
    if name.lower() in presets():
        folder = resources.files("memplan.blocking.machine") / _PRESETS
        raw = (folder / f"{name.lower()}.toml").read_bytes()
    elif name.endswith(".toml"):
        raw = read_bytes(name, _MAX_FILE)
    else:
        raise UsageError(
            f"{name!r} is no hierarchy: give a .toml file, or one of "
            + ", ".join(presets())
        )
    data = read_toml(raw, name)
    return _hierarchy(Table.of(data, name, frozenset({"level"}), optional=_TOP))


def _hierarchy(table: Table) -> Hierarchy:
    words = dict(PAPER_WORDS)
    if "words" in table.fields:
        bits = table.table("words", optional=_TENSORS)
        words |= {Tensor(key): bits.integer(key, 1) for key in bits.fields}
    rows = table.rows("level")
    if not 1 <= len(rows) <= _MAX_LEVELS:
        raise table.error("level", f"must be 1 to {_MAX_LEVELS} levels: [[level]]")
    levels = tuple(_level(table, row, f"level {i}") for i, row in enumerate(rows, 1))
    _check_ascending(table, levels)
    given = table.fields
    technology, precision = technology_of(table), _precision(table)
    bandwidth = "dram_bandwidth" in given
    return Hierarchy(
        Path(str(table.path)).stem,
        table.text("title") if "title" in given else "",
        table.text("source") if "source" in given else "",
        levels,
        technology.curves(words),
        technology.dram_pj,
        technology.mac_pj(precision),
        "count_fills" in given and table.flag("count_fills"),
        precision,
        technology,
        positive(table, "dram_bandwidth") if bandwidth else None,
        _ports(table, "dram_ports"),
    )


def _precision(table: Table) -> Precision:
    """What `bits` says: a format's name, or the bits of some tensors."""
    if "bits" not in table.fields:
        return Precision()
    try:
        if isinstance(table.fields["bits"], str):
            return parse_precision(table.text("bits"))
        own = table.table("bits", optional=_BITS)
        return of_bits({key: own.integer(key) for key in own.fields})
    except UsageError as error:
        raise table.error("bits", f"cannot be: {error}") from None


def _ports(table: Table, key: str = "ports") -> int:
    return table.integer(key, 1, 2) if key in table.fields else 1


def _level(file: Table, row: object, where: str) -> Level:
    table = file.inside(row, where, frozenset({"name"}), _LEVEL)
    if not table.text("name").strip():
        raise table.error("name", "is empty")
    if ("shared" in table.fields) == ("private" in table.fields):
        problem = f"{table.where} needs either shared or private bytes"
        raise FormatError(table.path, problem)
    shared, private = None, None
    if "shared" in table.fields:
        shared = _bytes(table, "shared")
    else:
        own = table.table("private", _TENSORS)
        private = {tensor: _bytes(own, tensor.value, 0) for tensor in Tensor}
    level = Level(
        table.text("name"),
        shared,
        private,
        _by_tensor(table, "pj"),
        _cache(table, shared),
        _by_tensor(table, "bandwidth"),
        _ports(table),
        "double_buffered" in table.fields and table.flag("double_buffered"),
        "sliding" in table.fields and table.flag("sliding"),
    )
    if shared is not None and len(set(level.bandwidth.values())) > 1:
        raise table.error("bandwidth", "is of one shared memory: give one number")
    missing = [t.value for t in Tensor if t not in level.bandwidth]
    if level.bandwidth and missing:
        raise table.error("bandwidth", f"lacks {', '.join(missing)}")
    return level


def _by_tensor(table: Table, key: str) -> dict[Tensor, float]:
    """The field by tensor: one number for all, or some tensors' own."""
    if key not in table.fields:
        return {}
    if not isinstance(table.fields[key], dict):
        return dict.fromkeys(Tensor, positive(table, key))
    own = table.table(key, optional=_TENSORS)
    return {Tensor(name): positive(own, name) for name in own.fields}


def _cache(table: Table, shared: int | None) -> Cache | None:
    if not {"ways", "line"} & table.fields.keys():
        return None
    if shared is None or not {"ways", "line"} <= table.fields.keys():
        problem = f"{table.where}: ways and line go together, on a shared level"
        raise FormatError(table.path, problem)
    ways, line = table.integer("ways", 1), table.integer("line", 1)
    if shared % (ways * line):
        raise table.error(
            "shared", f"is no multiple of its {ways} ways of {line} bytes"
        )
    return Cache(shared, ways, line)


def _check_ascending(table: Table, levels: tuple[Level, ...]) -> None:
    names = [level.name for level in levels]
    if len(set(names)) < len(names) or not _NOT_LEVELS.isdisjoint(names):
        problem = "names two levels alike, or one DRAM or datapath, which are no levels"
        raise FormatError(table.path, problem)
    for tensor in Tensor:
        own = [level for level in levels if level.capacity(tensor)]
        for inner, outer in pairwise(own):
            if outer.capacity(tensor) <= inner.capacity(tensor):
                half = "half of " if outer.double_buffered else ""
                raise FormatError(
                    table.path,
                    f"{half}level {outer.name} is not larger than {inner.name} inside "
                    f"it for the {tensor.value}",
                    "list levels from the innermost out",
                )


def _bytes(table: Table, key: str, least: int = 1) -> int:
    """The field as bytes: an integer, or text such as "32KiB"."""
    value = table.fields[key]
    if not isinstance(value, str):
        return table.integer(key, least, _MAX_BYTES)
    try:
        size = parse_bytes(table.text(key))
    except UsageError as error:
        raise table.error(key, f"cannot be: {error}") from None
    if not least <= size <= _MAX_BYTES:
        problem = f"is {shown(value)}, and must be {least} bytes to 1 EiB"
        raise table.error(key, problem)
    return size
