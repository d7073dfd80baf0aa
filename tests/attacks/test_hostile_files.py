"""Whatever a file holds, its reader reads it or refuses it, within bounds.

Memory: ten times the file and 200 MiB. Time: two seconds of the processor for 10 MB,
for a processor that parses a megabyte of JSON as fast as it should.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from tests.attacks.hostile import READERS
from tests.conftest import ROOT

FEW, MANY = 100, 1000
SMALL_BOMB, BOMB = 1 << 18, 10 << 20
READ_ALL = Path(__file__).with_name("read_all.py")
_NOMINAL_SECONDS = 0.02  # to parse the text below


def slowness() -> float:
    """How many times slower than it should this machine is just now, at least 1."""
    text = "[" + ",".join(map(str, range(100_000, 250_000))) + "]"
    start = time.process_time()
    json.loads(text)
    return max(1.0, (time.process_time() - start) / _NOMINAL_SECONDS)


def attack(reader: str, count: int, bomb: int, seed: int, folder: Path) -> None:
    """Make `count` hostile files of `seed`, bombs of `bomb` bytes, and read them."""
    target, suffix, spoiled, bombs = READERS[reader]
    files = folder / "files"
    files.mkdir()
    made = list(bombs(bomb))
    make, dice = spoiled(folder), random.Random(f"{reader} {seed}")
    made += [make(dice) for _ in range(count - len(made))]
    sizes = {}
    for i, data in enumerate(made):
        path = files / f"{i:04}.{suffix}"
        path.write_bytes(data)
        sizes[path.name] = max(len(data), _unpacked(data) // 10)
    slow = slowness()
    done = subprocess.run(
        [sys.executable, str(READ_ALL), target, str(files)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(made) >= count
    slow = max(slow, slowness())
    wrong = []
    for name, outcome, rise, seconds in results:
        size = sizes[name]
        if outcome not in ("read", "refused"):
            wrong.append((name, outcome))
        if rise > 10 * (files / name).stat().st_size + (200 << 20):
            wrong.append((name, f"{rise >> 20} MiB for {size} bytes"))
        # What takes quadratic time takes minutes: ten times is no matter of speed.
        if seconds > 10 * slow * (1 + 2e-7 * size):
            wrong.append((name, f"{seconds:.2f} s for {size} bytes"))
    assert not wrong
    refused = sum(outcome == "refused" for _, outcome, *_ in results)
    assert refused > len(made) // 8


def _unpacked(data: bytes) -> int:
    """What a gzip file holds, up to what any may hold that is read to its end."""
    if not data.startswith(b"\x1f\x8b"):
        return 0
    try:
        most = 8 * len(data) + (120 << 20)
        return 10 * len(zlib.decompressobj(31).decompress(data, most))
    except zlib.error:
        return 0


@pytest.mark.parametrize("reader", READERS)
def test_hostile_files_are_read_or_refused(reader: str, tmp_path: Path) -> None:
    attack(reader, FEW, SMALL_BOMB, 1, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("reader", READERS)
def test_many_hostile_files_are_read_or_refused(reader: str, tmp_path: Path) -> None:
    attack(reader, MANY, BOMB, 2, tmp_path)
