"""Hierarchies from TOML files, and those that come with memplan."""

from __future__ import annotations

import sys
from importlib import resources
from itertools import pairwise
from pathlib import Path

from memplan.blocking.machine.energy import DRAM_PJ, MAC_PJ, PAPER_WORDS, table_3
from memplan.blocking.machine.hierarchy import Cache, Hierarchy, Level
from memplan.blocking.nest.layer import Tensor
from memplan.errors import FormatError, UsageError
from memplan.files import read_bytes
from memplan.formats.strictjson import shown
from memplan.formats.table import Table
from memplan.units import parse_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PRESETS = "hierarchies"
_MAX_FILE = 1 << 14  # bytes; time and memory to parse long keys go with its square
_MOST_PJ = 1e12
_MAX_LEVELS = 8
_MAX_BYTES = 1 << 60
_TENSORS = frozenset(tensor.value for tensor in Tensor)
_TOP = frozenset({"title", "source", "dram_pj", "mac_pj", "count_fills", "words"})
_LEVEL = frozenset({"shared", "private", "pj", "ways", "line"})


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
    try:
        data = tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(name, f"is no TOML: {error}") from None
    except ValueError:  # Python converts no integers of thousands of digits
        raise FormatError(name, "holds a number that is far too long") from None
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
    return Hierarchy(
        Path(str(table.path)).stem,
        table.text("title") if "title" in given else "",
        table.text("source") if "source" in given else "",
        levels,
        {tensor: table_3(wide) for tensor, wide in words.items()},
        _energy(table, "dram_pj") if "dram_pj" in given else DRAM_PJ,
        _energy(table, "mac_pj") if "mac_pj" in given else MAC_PJ,
        "count_fills" in given and table.flag("count_fills"),
    )


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
        private = {tensor: _bytes(own, tensor.value) for tensor in Tensor}
    pj: dict[Tensor, float] = {}
    if isinstance(table.fields.get("pj"), dict):
        given = table.table("pj", optional=_TENSORS)
        pj = {Tensor(key): _energy(given, key) for key in given.fields}
    elif "pj" in table.fields:
        pj = dict.fromkeys(Tensor, _energy(table, "pj"))
    return Level(table.text("name"), shared, private, pj, _cache(table, shared))


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
    if len(set(names)) < len(names) or "DRAM" in names:
        problem = "names two levels alike, or one DRAM, which comes after all"
        raise FormatError(table.path, problem)
    for inner, outer in pairwise(levels):
        for tensor in Tensor:
            if outer.capacity(tensor) <= inner.capacity(tensor):
                raise FormatError(
                    table.path,
                    f"level {outer.name} is not larger than {inner.name} inside it "
                    f"for the {tensor.value}",
                    "list levels from the innermost out",
                )


def _bytes(table: Table, key: str) -> int:
    """The field as bytes: an integer, or text such as "32KiB"."""
    value = table.fields[key]
    if not isinstance(value, str):
        return table.integer(key, 1, _MAX_BYTES)
    try:
        size = parse_bytes(table.text(key))
    except UsageError as error:
        raise table.error(key, f"cannot be: {error}") from None
    if not 1 <= size <= _MAX_BYTES:
        raise table.error(key, f"is {shown(value)}, and must be 1 byte to 1 EiB")
    return size


def _energy(table: Table, key: str) -> float:
    """The field as pJ."""
    value = table.number(key)
    if not 0 < value < _MOST_PJ:
        raise table.error(key, f"is {value:g}, and must be pJ, above 0 and below 1e12")
    return value
