"""Hierarchies from TOML files, and those that come with memplan."""

from __future__ import annotations

import sys
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from memplan.blocking.machine.energy import DRAM_PJ, MAC_PJ, PAPER_WORDS, table_3
from memplan.blocking.machine.hierarchy import Cache, Hierarchy, Level
from memplan.blocking.nest.layer import Tensor
from memplan.errors import FormatError, UsageError
from memplan.files import read_bytes
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
_SHOWN = 80  # characters of a wrong value in a message


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
    except (ValueError, RecursionError) as error:  # also of bytes and long integers
        raise FormatError(name, f"is no TOML: {error}") from None
    return _Reader(name).hierarchy(data)


class _Reader:
    """Checks every entry; unknown ones are errors, so that none is silently unused."""

    def __init__(self, path: str) -> None:
        self._path = path

    def hierarchy(self, data: dict[str, Any]) -> Hierarchy:
        self._known(
            data,
            "",
            {"title", "source", "dram_pj", "mac_pj", "count_fills", "words", "level"},
        )
        words = dict(PAPER_WORDS)
        given = data.get("words", {})
        self._table(given, "words")
        for key, bits in given.items():
            if isinstance(bits, bool) or not isinstance(bits, int) or bits < 1:
                raise self._bad(f"words.{key}", bits, "bits, an integer from 1 up")
            words[self._tensor(key, "words")] = bits
        levels = data.get("level", [])
        if not isinstance(levels, list) or not 1 <= len(levels) <= _MAX_LEVELS:
            raise FormatError(
                self._path, f"needs 1 to {_MAX_LEVELS} levels, each as [[level]]"
            )
        read = tuple(self._level(entry, i) for i, entry in enumerate(levels, 1))
        self._ascending(read)
        fills = data.get("count_fills", False)
        if not isinstance(fills, bool):
            raise self._bad("count_fills", fills, "true or false")
        return Hierarchy(
            Path(self._path).stem,
            self._string(data, "title"),
            self._string(data, "source"),
            read,
            {tensor: table_3(bits) for tensor, bits in words.items()},
            self._positive("dram_pj", data.get("dram_pj", DRAM_PJ)),
            self._positive("mac_pj", data.get("mac_pj", MAC_PJ)),
            fills,
        )

    def _level(self, entry: object, number: int) -> Level:
        where = f"level {number}"
        self._table(entry, where)
        assert isinstance(entry, dict)
        known = {"name", "shared", "private", "pj", "ways", "line"}
        self._known(entry, f"{where}: ", known)
        name = entry.get("name")
        if not isinstance(name, str) or not name.strip():
            raise FormatError(self._path, f"{where} has no name")
        if ("shared" in entry) == ("private" in entry):
            raise FormatError(
                self._path, f"{where} ({name}) needs either shared or private bytes"
            )
        shared, private = None, None
        if "shared" in entry:
            shared = self._bytes(f"{where}: shared", entry["shared"])
        else:
            private = self._private(entry["private"], where)
        pj = self._pj(entry.get("pj", {}), where)
        return Level(name, shared, private, pj, self._cache(entry, where, shared))

    def _private(self, given: object, where: str) -> dict[Tensor, int]:
        self._table(given, f"{where}: private")
        assert isinstance(given, dict)
        private = {
            self._tensor(key, f"{where}: private"): self._bytes(f"{where}: {key}", size)
            for key, size in given.items()
        }
        for tensor in Tensor:
            if tensor not in private:
                raise FormatError(
                    self._path, f"{where} has no memory for the {tensor.value}"
                )
        return private

    def _pj(self, given: object, where: str) -> dict[Tensor, float]:
        if isinstance(given, dict):
            return {
                self._tensor(key, f"{where}: pj"): self._positive(f"{where}: pj", value)
                for key, value in given.items()
            }
        return dict.fromkeys(Tensor, self._positive(f"{where}: pj", given))

    def _cache(
        self, entry: dict[str, Any], where: str, shared: int | None
    ) -> Cache | None:
        if "ways" not in entry and "line" not in entry:
            return None
        ways, line = entry.get("ways"), entry.get("line")
        for key, value in (("ways", ways), ("line", line)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self._bad(f"{where}: {key}", value, "an integer from 1 up")
        assert isinstance(ways, int) and isinstance(line, int)
        if shared is None:
            raise FormatError(
                self._path, f"{where}: ways and line are for shared levels only"
            )
        if shared % (ways * line):
            raise FormatError(
                self._path, f"{where}: its bytes are no multiple of ways times line"
            )
        return Cache(shared, ways, line)

    def _ascending(self, levels: tuple[Level, ...]) -> None:
        names = [level.name for level in levels]
        if len(set(names)) < len(names) or "DRAM" in names:
            raise FormatError(
                self._path, "names two levels alike, or one DRAM, which comes after all"
            )
        for inner, outer in pairwise(levels):
            for tensor in Tensor:
                if outer.capacity(tensor) <= inner.capacity(tensor):
                    raise FormatError(
                        self._path,
                        f"level {outer.name} is not larger than {inner.name} inside it "
                        f"for the {tensor.value}",
                        "list levels from the innermost out",
                    )

    def _bytes(self, where: str, value: object) -> int:
        size = value
        if isinstance(value, str) and len(value) <= _SHOWN:
            try:
                size = parse_bytes(value)
            except UsageError as error:
                raise FormatError(self._path, f"{where}: {error}") from None
        if isinstance(size, bool) or not isinstance(size, int):
            size = 0
        if not 1 <= size <= _MAX_BYTES:
            raise self._bad(where, value, "bytes, such as 2048 or '32KiB'")
        return size

    def _positive(self, where: str, value: object) -> float:
        number = 0 if isinstance(value, bool) else value
        if isinstance(number, int | float) and 0 < number < _MOST_PJ:
            return float(number)
        raise self._bad(where, value, f"pJ, above 0 and below {_MOST_PJ:g}")

    def _string(self, data: dict[str, Any], key: str) -> str:
        value = data.get(key, "")
        if not isinstance(value, str):
            raise self._bad(key, value, "text")
        return value

    def _tensor(self, key: str, where: str) -> Tensor:
        try:
            return Tensor(key)
        except ValueError:
            raise FormatError(
                self._path, f"{where}: {key!r} is none of input, kernel, output"
            ) from None

    def _table(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(self._path, f"{where} is no table")

    def _known(self, data: dict[str, Any], where: str, known: set[str]) -> None:
        for key in data:
            if key not in known:
                raise FormatError(
                    self._path,
                    f"{where}{key!r} is unknown",
                    f"known are {', '.join(sorted(known))}",
                )

    def _bad(self, where: str, value: object, wanted: str) -> FormatError:
        return FormatError(self._path, f"{where} is {_shown(value)}", f"give {wanted}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits, or tables in tables
        return "far too long"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
