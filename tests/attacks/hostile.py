"""Hostile files for each reader: bombs first, then honest files spoiled at random."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from memplan.chunking.plan import ChunkPlan, Part
from memplan.chunking.planfile import write_chunk_plan
from memplan.chunking.region import Region
from memplan.chunking.rules.flow import Slice
from memplan.core.planfile import dump_plan
from memplan.trace.journal import MAGIC, METADATA
from memplan.trace.write import write_trace
from tests.attacks import bombs
from tests.attacks.spoil import TOKENS, WRONG, bytes_spoiled, json_text, value_spoiled
from tests.core.plan_samples import sample as sample_plan
from tests.core.plan_samples import signed
from tests.snapshot_samples import Device, snapshot, step
from tests.trace.trace_samples import block, journal_blocks
from tests.trace.trace_samples import sample as sample_trace

Spoiled = Callable[[random.Random], bytes]
Bombs = Callable[[int], Iterator[bytes]]
HIERARCHY = """\
title = "two caches"
source = "nowhere"
dram_pj = 320.0
mac_pj = 1.0
count_fills = true

[words]
input = 16

[[level]]
name = "L1"
shared = "32KiB"
ways = 8
line = 64

[[level]]
name = "L2"
private = { input = 65536, kernel = "128KiB", output = 65536 }
pj = 2.5
"""
CSV = """\
id,lower,upper,size,alignment,hint,gaps,offset
a,0,9,64,1,-1,1-2 3-4@5:6,-1
b,3,12,128,64,0,,-1
c,10,20,1,1,-1,12-14,7
"""


def no_bombs(size: int) -> Iterator[bytes]:
    """For readers whose bombs are spoiled files of their own making."""
    yield from ()


def trace_json(folder: Path) -> Spoiled:
    return _json(_trace_as(folder, "json"))


def trace_gzip(folder: Path) -> Spoiled:
    spoiled, honest = trace_json(folder), _trace_as(folder, "json.gz")

    def make(dice: random.Random) -> bytes:
        if dice.random() < 0.5:
            return bytes_spoiled(honest, dice)
        return gzip.compress(spoiled(dice), dice.randrange(10))

    return make


def plan(folder: Path) -> Spoiled:
    honest = dump_plan(sample_plan())
    value = json.loads(honest)

    def make(dice: random.Random) -> bytes:
        if dice.random() < 0.3:
            return bytes_spoiled(honest, dice)
        return signed(value_spoiled(value, dice))

    return make


def nests(folder: Path) -> Spoiled:
    path = folder / "nests.json"
    layer = ["--layer", "8,8,6,6,3,3", "--memory", "diannao"]
    command = ["-m", "memplan", "blocking", "optimize", *layer, "-o", str(path)]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return _json(path.read_bytes())


def chunks(folder: Path) -> Spoiled:
    path = folder / "chunks.json"
    pieces = {"mm": Slice(0), "relu": Slice(1, Fraction(1, 2), 1, 2)}
    inner = Region({"mm": Slice(1)}, 8, 4, frozenset({"mm"}))
    region = Region(pieces, 64, 16, frozenset({"mm"}), (inner,))
    parts = (Part("block", "abc", (region, inner)), Part("", "def", (region,)))
    write_chunk_plan(ChunkPlan("chunked", "", 1 << 20, parts), path)
    return _json(path.read_bytes())


def csv(folder: Path) -> Spoiled:
    def make(dice: random.Random) -> bytes:
        if dice.random() < 0.4:
            return bytes_spoiled(CSV.encode(), dice)
        rows = [line.split(",") for line in CSV.splitlines()]
        for _ in range(dice.randrange(1, 4)):
            row = dice.choice(rows)
            match dice.randrange(4):
                case 0 if row:
                    del row[dice.randrange(len(row))]
                case 1:
                    rows.insert(dice.randrange(len(rows)), list(row))
                case 2:
                    dice.shuffle(row)
                case _ if row:
                    row[dice.randrange(len(row))] = str(dice.choice(WRONG))
        text = "\n".join(map(",".join, rows)) or "\n"
        return text.encode("utf-8", "surrogatepass")

    return make


def snapshot_pickle(folder: Path) -> Spoiled:
    value = _snapshot()
    codes = [bytes([code]) for code in range(256)] + [
        b"cos\nsystem\n(X\x04\x00\x00\x00truetR",
        b"\x8c\x02os\x8c\x06system\x93",
        *TOKENS,
    ]

    def make(dice: random.Random) -> bytes:
        protocol = dice.randrange(6)
        if dice.random() < 0.5:
            return pickle.dumps(value_spoiled(value, dice), protocol)
        honest = pickle.dumps(value, 4)
        if dice.random() < 0.5:
            return bytes_spoiled(honest, dice)
        at = dice.randrange(2, len(honest))
        return honest[:at] + dice.choice(codes) * dice.randrange(1, 3) + honest[at:]

    return make


def snapshot_json(folder: Path) -> Spoiled:
    return _json(json.dumps(_snapshot()).encode())


def hierarchy(folder: Path) -> Spoiled:
    def make(dice: random.Random) -> bytes:
        if dice.random() < 0.4:
            return bytes_spoiled(HIERARCHY.encode(), dice)
        lines = HIERARCHY.splitlines()
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(lines))
            key = lines[at].partition("=")[0]
            text = json.dumps(dice.choice(WRONG)).replace("null", "inf")
            changed = ([], [lines[at]] * 2, [f"x{lines[at]}"], [f"{key}= {text}"])
            lines[at : at + 1] = dice.choice(changed)
        return "\n".join(lines).encode() or b"\n"

    return make


def journal(folder: Path) -> Spoiled:
    blocks = journal_blocks(sample_trace())

    def make(dice: random.Random) -> bytes:
        made = list(blocks)
        match dice.randrange(5):
            case 0:
                return bytes_spoiled(MAGIC + b"".join(made), dice)
            case 1:
                at = dice.randrange(len(made))
                made[at : at + 1] = dice.choice(([], [made[at]] * 2, [made[0]]))
            case 2:
                value = value_spoiled(json.loads(made[0][12:]), dice)
                made[0] = block(METADATA, json_text(value, dice))
            case _:
                at = dice.randrange(len(made))
                payload = bytes_spoiled(made[at][12:], dice)
                made[at] = block(dice.choice((made[at][0], dice.randrange(6))), payload)
        return MAGIC + b"".join(made)

    return make


def parquet(folder: Path) -> Spoiled:
    honest = _trace_as(folder, "parquet")
    table = pq.read_table(io.BytesIO(honest))
    entries = json.loads(table.schema.metadata[b"memplan"])

    def make(dice: random.Random) -> bytes:
        if dice.random() < 0.4:
            return bytes_spoiled(honest, dice)
        made, about = table, json.dumps(entries).encode()
        match dice.randrange(4):
            case 0:
                about = json_text(value_spoiled(entries, dice), dice)
            case 1:
                made = made.drop_columns([dice.choice(made.column_names)])
            case 2:
                at = dice.randrange(made.num_columns)
                kind = dice.choice((pa.string(), pa.float64(), pa.int8(), pa.int64()))
                values: list[Any] = [dice.choice((0, 1, -1, 99, None))] * len(made)
                if kind == pa.string():
                    values = [dice.choice(("alloc", "x" * 70_000, "\x1b[31m"))] * len(
                        made
                    )
                made = made.set_column(
                    at, made.column_names[at], pa.array(values, kind)
                )
            case _:
                made = pa.concat_tables([made] * dice.randrange(2, 4))
        made = made.replace_schema_metadata({b"memplan": about})
        sink = io.BytesIO()
        pq.write_table(made, sink, compression=dice.choice(("zstd", "none", "gzip")))
        return sink.getvalue()

    return make


# By reader: who reads, its files' suffix, and who makes them.
READERS: dict[str, tuple[str, str, Callable[[Path], Spoiled], Bombs]] = {
    "trace": ("memplan:read_trace", "json", trace_json, bombs.trace_bombs),
    "gzip": ("memplan:read_trace", "json.gz", trace_gzip, bombs.gzip_bombs),
    "parquet": ("memplan:read_trace", "parquet", parquet, no_bombs),
    "plan": ("memplan:read_plan", "json", plan, bombs.plan_bombs),
    "nests": ("memplan.blocking.planfile:read_plan", "json", nests, bombs.nest_bombs),
    "chunks": ("memplan:read_chunk_plan", "json", chunks, bombs.chunk_bombs),
    "csv": (
        "memplan.trace.importers.minimalloc:read_minimalloc",
        "csv",
        csv,
        bombs.csv_bombs,
    ),
    "pickle": ("memplan:read_trace", "pickle", snapshot_pickle, bombs.pickle_bombs),
    "snapshot": ("memplan:read_trace", "json", snapshot_json, no_bombs),
    "hierarchy": (
        "memplan.blocking.machine.hierarchy:load_hierarchy",
        "toml",
        hierarchy,
        bombs.toml_bombs,
    ),
    "journal": (
        "memplan.trace.recovery:recover_journal",
        "journal",
        journal,
        bombs.journal_bombs,
    ),
}


def _json(honest: bytes) -> Spoiled:
    value = json.loads(honest)

    def make(dice: random.Random) -> bytes:
        if dice.random() < 0.3:
            return bytes_spoiled(honest, dice)
        return json_text(value_spoiled(value, dice), dice)

    return make


def _trace_as(folder: Path, suffix: str) -> bytes:
    path = folder / f"honest.{suffix}"
    write_trace(sample_trace(), path)
    return path.read_bytes()


def _snapshot() -> dict[str, Any]:
    devices = [Device(), Device()]
    for i in range(3):
        step(devices[1], 4096 * i)
    return snapshot(*devices)
