"""Chunk plans as JSON: regions and what they were measured to be worth, no code."""

from __future__ import annotations

import json
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from memplan.chunking.plan import ChunkPlan, Part
from memplan.chunking.region import Region
from memplan.chunking.rules.flow import Slice
from memplan.errors import FormatError
from memplan.files import PathLike, open_input, write_bytes
from memplan.formats import strictjson
from memplan.formats.table import Table
from memplan.limits import MAX_INTEGER
from memplan.version import __version__

SCHEMA = "memplan.chunks"
VERSION = 1
MAX_PLAN_BYTES = 256 << 20
REMEDY = "make it anew with memplan chunk"
_REPORT = frozenset({"status", "reason", "budget_bytes", "device", "torch"})


def to_json(plan: ChunkPlan) -> dict[str, Any]:
    """The plan as its file has it."""
    report = asdict(plan)
    report.pop("parts")
    report["regions"] = list(plan.regions)
    for name in ("internal_errors", "loss_rows"):
        if not report[name]:
            report.pop(name)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "producer": f"memplan {__version__}",
        **report,
        "saved": plan.saved,
        "parts": [
            {**vars(part), "regions": list(map(_region_json, part.regions))}
            for part in plan.parts
        ],
    }


def write_chunk_plan(plan: ChunkPlan, path: PathLike) -> None:
    """Write the plan to `path`, whole or not at all."""
    text = json.dumps(to_json(plan), indent=1, ensure_ascii=False)
    write_bytes(path, text.encode() + b"\n")


def read_chunk_plan(path: PathLike) -> ChunkPlan:
    """The plan in a file. Its figures are of where it was made.

    Raises InputError and FormatError, naming the field that is wrong.
    """
    with open_input(path, MAX_PLAN_BYTES) as (stream, _):
        value = strictjson.parse(stream.read(), path)
    table = Table(path, "", {}, REMEDY, lenient=True).inside(value, "", frozenset())
    for key in ("schema", "version", "parts", *_REPORT):
        if key not in table.fields:
            raise FormatError(path, f"the file has no field {key!r}", REMEDY)
    if table.fields["schema"] != SCHEMA:
        raise FormatError(path, f"schema must be {SCHEMA!r}", "name a chunk plan")
    if table.fields["version"] != VERSION:
        raise FormatError(path, f"version must be {VERSION}", REMEDY)
    return ChunkPlan(
        table.text("status"),
        table.text("reason"),
        table.integer("budget_bytes"),
        tuple(
            _part(table, each, f"parts[{i}]")
            for i, each in enumerate(table.rows("parts"))
        ),
        device=table.text("device"),
        torch=table.text("torch"),
        loss_rows=_loss_rows(table),
    )


def _loss_rows(outer: Table) -> dict[str, int]:
    if "loss_rows" not in outer.fields:
        return {}
    table = _object(outer, outer.fields["loss_rows"], "loss_rows", "")
    return {name: table.integer(name, 1) for name in table.fields}


def _region_json(region: Region) -> dict[str, Any]:
    more: dict[str, Any] = {"whole": sorted(region.whole)} if region.whole else {}
    more |= {"slides": True} if region.slides else {}
    return {
        "slices": [
            [name, dim, *ratio.as_integer_ratio(), before, after, *[True] * total]
            for name, (dim, ratio, before, after, total) in region.slices.items()
        ],
        "extent": region.extent,
        "step": region.step,
        "copied": sorted(region.copied),
        "fresh": region.fresh,
        "inner": [_region_json(each) for each in region.inner],
        **more,
    }


def _part(outer: Table, value: object, name: str) -> Part:
    table = _object(outer, value, name, "path fingerprint regions")
    again = table.rows("again") if "again" in table.fields else []
    table.check_texts(again, lambda i: f"again[{i}]")
    return Part(
        table.text("path"),
        table.text("fingerprint"),
        _regions(table, "regions"),
        tuple(map(str, again)),
    )


def _regions(table: Table, key: str, depth: int = 0) -> tuple[Region, ...]:
    rows = enumerate(table.rows(key))
    return tuple(_region(table, row, f"{key}[{i}]", depth) for i, row in rows)


def _region(outer: Table, value: object, name: str, depth: int) -> Region:
    if depth > 8:
        raise outer.error(name, "holds regions in regions more than 8 deep")
    table = _object(outer, value, name, "slices extent step copied inner fresh")
    slices = [_slice(table, i, piece) for i, piece in enumerate(table.rows("slices"))]
    if not slices or len(dict(slices)) < len(slices):
        raise table.error("slices", "must be slices, one of each of some operators")
    extent = table.integer("extent", 2)
    return Region(
        dict(slices),
        extent,
        table.integer("step", 1, extent),
        _names(table, "copied"),
        _regions(table, "inner", depth + 1),
        fresh=table.flag("fresh"),
        whole=_names(table, "whole") if "whole" in table.fields else frozenset(),
        slides="slides" in table.fields and table.flag("slides"),
    )


def _names(table: Table, key: str) -> frozenset[str]:
    names = table.rows(key)
    table.check_texts(names, lambda i: f"{key}[{i}]")
    return frozenset(map(str, names))


def _slice(table: Table, at: int, value: object) -> tuple[str, Slice]:
    items: list[Any] = value if isinstance(value, list) and value else [None]
    total = len(items) == 7 and items[-1] is True
    name, *numbers = items[:-1] if total else items
    good = len(numbers) == 5 and all(
        type(number) is int and abs(number) <= MAX_INTEGER for number in numbers
    )
    halo = good and total and any(numbers[3:])
    if not good or halo or min(numbers[0], numbers[1] - 1, numbers[2] - 1) < 0:
        raise table.error(
            f"slices[{at}]",
            "must be [operator, dimension, numerator, denominator, before, after], and "
            "true if the operator adds slices to a total",
        )
    table.check_texts([name], lambda _: f"slices[{at}][0]")
    dim, numerator, denominator, before, after = numbers
    ratio = Fraction(numerator, denominator)
    return str(name), Slice(dim, ratio, before, after, total)


def _object(outer: Table, value: object, name: str, keys: str) -> Table:
    """The object at `name`, which has at least the fields `keys`."""
    table = outer.inside(value, outer.name(name), frozenset())
    for key in sorted(set(keys.split()) - table.fields.keys()):
        raise table.error(key, "is missing")
    return table
