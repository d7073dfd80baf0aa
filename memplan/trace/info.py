"""The `memplan` metadata of a trace: a JSON object, to and from TraceInfo and stacks.

Stacks are stored interned: file names and function names once each, frames as
[file, line, name] indexes, stacks as lists of frame indexes.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

from memplan.errors import FormatError
from memplan.files import PathLike
from memplan.formats.strictjson import Refused, parse, shown
from memplan.limits import MAX_INTEGER
from memplan.trace.stacks import Frame, StackTable
from memplan.trace.trace import SCHEMA, VERSION, Trace, TraceInfo
from memplan.version import __version__

MAX_METADATA_BYTES = 256 << 20  # some half a million distinct stacks

T = TypeVar("T")


def to_metadata(trace: Trace) -> dict[str, object]:
    """The metadata object of `trace`, ready for JSON.

    An empty `producer` becomes this version of memplan.
    """
    entries: dict[str, object] = {"schema": SCHEMA, "version": VERSION}
    entries.update(asdict(trace.info))
    entries["producer"] = trace.info.producer or f"memplan {__version__}"
    entries["stacks_table"] = _stacks_to_json(trace.stacks)
    return entries


def encode_metadata(path: PathLike, trace: Trace) -> bytes:
    """The metadata as ASCII JSON; FormatError if no reader would take it."""
    _info(path, parse(json.dumps(asdict(trace.info)).encode(), path))
    data = json.dumps(to_metadata(trace), separators=(",", ":"))
    if len(data) > MAX_METADATA_BYTES:
        raise FormatError(
            path,
            f"the stack table takes {len(data)} bytes of {MAX_METADATA_BYTES}",
            "record with fewer stacks",
        )
    return data.encode("ascii")


def from_metadata(path: PathLike, value: object) -> tuple[TraceInfo, StackTable]:
    """What `to_metadata` wrote; entries that are missing take their defaults.

    Entries this version does not know are ignored. Raises FormatError for another
    schema, a newer version, or an entry of the wrong type, which it names.
    """
    entries = _object(path, value, "the metadata")
    _check_schema(path, entries)
    return _info(path, entries), _stacks_from_json(
        path, entries.get("stacks_table", {})
    )


def frame_from_json(path: PathLike, value: object) -> Frame:
    """A Frame from a JSON list [filename, line, name]; line -1 (unknown) becomes 0."""
    match value:
        case [str() as filename, line, str() as name] if line == -1 or _counts(line):
            return Frame(filename, max(line, 0), name)
    raise FormatError(path, f"{shown(value)} is not [filename, line, name]")


def _check_schema(path: PathLike, entries: dict[str, Any]) -> None:
    schema, version = entries.get("schema"), entries.get("version")
    if schema == "memplan.plan":
        raise FormatError(path, "this is a plan, not a trace", "name a trace")
    if schema != SCHEMA:
        raise FormatError(
            path,
            f"the schema is {shown(schema)}, not {SCHEMA!r}",
            "name a trace recorded or imported by memplan",
        )
    if not _counts(version) or version == 0:
        raise FormatError(path, f"the version is {shown(version)}, not 1 or more")
    if version > VERSION:
        raise FormatError(
            path,
            f"trace format version {version}, and this memplan reads up to {VERSION}",
            "upgrade it: pip install --upgrade memplan",
        )


def _stacks_to_json(stacks: StackTable) -> dict[str, object]:
    files: dict[str, int] = {}
    names: dict[str, int] = {}
    frames: dict[Frame, int] = {}
    table = [[frames.setdefault(f, len(frames)) for f in stack] for stack in stacks]
    interned = [
        (files.setdefault(f, len(files)), max(line, 0), names.setdefault(n, len(names)))
        for f, line, n in frames
    ]
    return {
        "files": list(files),
        "names": list(names),
        "frames": interned,
        "stacks": table,
    }


def _stacks_from_json(path: PathLike, value: object) -> StackTable:
    entries = _object(path, value, "stacks_table")
    columns = {
        name: _list(path, entries.get(name, []), f"stacks_table.{name}")
        for name in ("files", "names", "frames", "stacks")
    }

    def string(index: object, column: str) -> str:
        texts = columns[column]
        if not _counts(index) or index >= len(texts):
            raise FormatError(path, f"stacks_table.{column} has no {shown(index)}")
        if not isinstance(text := texts[index], str):
            raise FormatError(path, f"stacks_table.{column}: {shown(text)} is no text")
        return text

    frames: list[Frame] = []
    for entry in columns["frames"]:
        match entry:
            case [file, int() as line, name] if _counts(line):
                frames.append(Frame(string(file, "files"), line, string(name, "names")))
            case _:
                problem = f"stacks_table.frames: {shown(entry)} is not three indexes"
                raise FormatError(path, problem)

    def frame(index: object) -> Frame:
        if not _counts(index) or index >= len(frames):
            raise FormatError(path, f"stacks_table.frames has no {shown(index)}")
        return frames[index]

    return StackTable(
        tuple(frame(index) for index in _list(path, stack, "stacks_table.stacks"))
        for stack in columns["stacks"]
    )


def _info(path: PathLike, value: object) -> TraceInfo:
    info = _build(path, TraceInfo, value, "")
    if info.alignment < 1:
        raise FormatError(path, f"alignment is {info.alignment}, less than 1")
    return info


def _build(path: PathLike, kind: type[T], value: object, where: str) -> T:
    """The dataclass `kind` from a JSON object, every known entry checked."""
    entries = _object(path, value, where)
    hints = _hints(kind)  # type: ignore[arg-type]
    names = [f.name for f in fields(kind) if f.name in entries]  # type: ignore[arg-type]
    known = {
        name: _typed(path, hints[name], entries[name], f"{where}{name}")
        for name in names
    }
    return kind(**known)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)  # which compiles them anew on every call


def _typed(path: PathLike, hint: Any, value: Any, where: str) -> object:
    if is_dataclass(hint) and isinstance(hint, type):
        return _build(path, hint, value, f"{where}.")
    if get_origin(hint) is tuple:
        entry = get_args(hint)[0]
        return tuple(_typed(path, entry, v, where) for v in _list(path, value, where))
    if hint is float:
        value = _finite(value)
    elif hint is int and not _counts(value):
        value = None
    if type(value) is not hint:
        wanted = {
            bool: "true or false",
            int: "an integer from 0 to 2^63-1",
            float: "a finite number, not negative",
            str: "text",
        }[hint]
        raise FormatError(path, f"{where} is not {wanted}")
    return value


def _finite(value: object) -> float | None:
    """The float that was written, or None; strictjson leaves them as they were."""
    if _counts(value):
        return float(value)
    if not isinstance(value, Refused):
        return None
    try:
        number = float(value.text)
    except ValueError:  # thousands of digits, cut short
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _counts(value: object) -> TypeGuard[int]:
    """Whether it is an int (and no bool) from 0 to 2^63-1."""
    return type(value) is int and 0 <= value <= MAX_INTEGER


def _object(path: PathLike, value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        name = where.rstrip(".") or "the metadata"
        raise FormatError(path, f"{name} is {shown(value)}, not a JSON object")
    return value


def _list(path: PathLike, value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(path, f"{where} is {shown(value)}, not a list")
    return value
