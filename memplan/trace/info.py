"""The `memplan` metadata of a trace: a JSON object, to and from TraceInfo and stacks.

Stacks are stored interned: file names and function names once each, frames as
[file, line, name] indexes, stacks as lists of frame indexes. Where it is known what
ran there, `origins` has a row [module, operator, phase] for each stack: indexes into
the names, and the code of a Phase. `calls` is there if modules' calls were recorded.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TypeGuard

from memplan.errors import FormatError
from memplan.files import PathLike
from memplan.formats.strictjson import shown
from memplan.formats.table import Table, check_version
from memplan.limits import MAX_INTEGER
from memplan.trace.calls import calls_from_json
from memplan.trace.stacks import Frame, Origin, Phase, StackTable
from memplan.trace.trace import SCHEMA, VERSION, Columns, Trace, TraceInfo
from memplan.version import __version__

MAX_METADATA_BYTES = 256 << 20  # some half a million distinct stacks


def to_metadata(trace: Trace) -> dict[str, object]:
    """The metadata object of `trace`, ready for JSON.

    An empty `producer` becomes this version of memplan.
    """
    entries: dict[str, object] = {"schema": SCHEMA, "version": VERSION}
    entries.update(asdict(trace.info))
    entries["producer"] = trace.info.producer or f"memplan {__version__}"
    entries["stacks_table"] = _stacks_to_json(trace.stacks)
    if trace.calls is not None:
        entries["calls"] = trace.calls.to_json()
    return entries


def encode_metadata(path: PathLike, trace: Trace) -> bytes:
    """The metadata as ASCII JSON; FormatError if no reader would take it."""
    _info(path, json.loads(json.dumps(asdict(trace.info))))
    data = json.dumps(to_metadata(trace), separators=(",", ":"))
    if len(data) > MAX_METADATA_BYTES:
        what, remedy = "the stack table takes", "record with fewer stacks"
        if trace.calls is not None:
            what, remedy = "stacks and calls take", "record fewer steps"
        problem = f"{what} {len(data)} bytes of {MAX_METADATA_BYTES}"
        raise FormatError(path, problem, remedy)
    return data.encode("ascii")


def from_metadata(path: PathLike, value: object) -> Trace:
    """What `to_metadata` wrote, as a trace without events.

    Entries that are missing take their defaults; those that this version does not know
    are ignored. Raises FormatError for another
    schema, a newer version, or an entry of the wrong type, which it names.
    """
    if not isinstance(value, dict):
        raise FormatError(path, f"the metadata is {shown(value)}, not a JSON object")
    _check_schema(path, value)
    stacks = {"stacks_table": value.get("stacks_table", {})}
    table = Table(path, "", stacks, lenient=True).table("stacks_table", frozenset())
    calls = calls_from_json(path, value["calls"]) if "calls" in value else None
    return Trace(Columns.of(), _stacks_from_json(table), _info(path, value), calls)


def frame_from_json(path: PathLike, value: object) -> Frame:
    """A Frame from a JSON list [filename, line, name]; line -1 (unknown) becomes 0."""
    match value:
        case [str() as filename, line, str() as name] if line == -1 or _counts(line):
            return Frame(filename, max(line, 0), name)
    raise FormatError(path, f"{shown(value)} is not [filename, line, name]")


def origin_from_json(path: PathLike, value: object) -> Origin:
    """An Origin from a JSON list [module, operator, code of a Phase]."""
    match value:
        case [str() as module, str() as operator, phase] if _counts(
            phase
        ) and phase <= max(Phase):
            return Origin(module, operator, Phase(phase))
    raise FormatError(path, f"{shown(value)} is not [module, operator, phase]")


def _check_schema(path: PathLike, entries: dict[str, Any]) -> None:
    schema = entries.get("schema")
    if schema == "memplan.plan":
        raise FormatError(path, "this is a plan, not a trace", "name a trace")
    if schema != SCHEMA:
        problem = f"the schema is {shown(schema)}, not {SCHEMA!r}"
        remedy = "name a trace recorded or imported by memplan"
        raise FormatError(path, problem, remedy)
    check_version(path, entries, VERSION, "trace")


def _stacks_to_json(stacks: StackTable) -> dict[str, object]:
    files: dict[str, int] = {}
    names: dict[str, int] = {}
    frames: dict[Frame, int] = {}
    table = [[frames.setdefault(f, len(frames)) for f in stack] for stack in stacks]
    interned = [
        (files.setdefault(f, len(files)), max(line, 0), names.setdefault(n, len(names)))
        for f, line, n in frames
    ]
    origins = []
    if stacks.has_origins:
        for module, operator, phase in map(stacks.origin, range(len(stacks))):
            texts = [names.setdefault(n, len(names)) for n in (module, operator)]
            origins.append([*texts, int(phase)])
    found = {"files": list(files), "names": list(names), "frames": interned}
    return {**found, "stacks": table, **({"origins": origins} if origins else {})}


def _stacks_from_json(table: Table) -> StackTable:
    path = table.path
    columns: dict[str, list[Any]] = {
        name: table.rows(name) if name in table.fields else []
        for name in ("files", "names", "frames", "stacks", "origins")
    }
    for name in ("files", "names"):
        table.check_texts(columns[name], f"{name}[{{}}]".format)

    def entry(index: object, column: str) -> Any:
        entries = columns[column]
        if not _counts(index) or index >= len(entries):
            raise FormatError(path, f"stacks_table.{column} has no {shown(index)}")
        return entries[index]

    frames = []
    for row in columns["frames"]:
        match row:
            case [file, line, name] if _counts(line):
                frames.append(Frame(entry(file, "files"), line, entry(name, "names")))
            case _:
                problem = f"stacks_table.frames: {shown(row)} is not three indexes"
                raise FormatError(path, problem)
    columns["frames"] = frames
    for i, stack in enumerate(columns["stacks"]):
        if not isinstance(stack, list):
            raise table.error(f"stacks[{i}]", f"is {shown(stack)}, and must be a list")
    origins = []
    for row in columns["origins"]:
        match row:
            case [module, operator, phase] if _counts(phase) and phase <= max(Phase):
                texts = entry(module, "names"), entry(operator, "names")
                origins.append(Origin(*texts, Phase(phase)))
            case _:
                problem = f"stacks_table.origins: {shown(row)} is no origin"
                raise FormatError(path, problem)
    if len(origins) > len(columns["stacks"]):
        raise FormatError(path, "stacks_table.origins has more rows than stacks")
    stacks = (tuple(entry(i, "frames") for i in each) for each in columns["stacks"])
    return StackTable(stacks, origins)


def _info(path: PathLike, entries: dict[str, object]) -> TraceInfo:
    info = Table(path, "", entries, lenient=True).build(TraceInfo)
    if info.alignment < 1:
        raise FormatError(path, f"alignment is {info.alignment}, less than 1")
    return info


def _counts(value: object) -> TypeGuard[int]:
    """Whether it is an int (and no bool) from 0 to 2^63-1."""
    return type(value) is int and 0 <= value <= MAX_INTEGER
