"""Recordings of very many events: memory stays where it is promised to stay."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MIB_TO_FINISH = 300  # above the program's own
PROCESS_MIB = 60  # of memplan before it begins


@pytest.mark.parametrize(
    ("events", "mib_to_solve"),
    [(2_000_000, 400), pytest.param(20_000_000, 1500, marks=pytest.mark.soak)],
)
def test_many_events_take_little_memory(
    scripts_on_path: Path, events: int, mib_to_solve: int
) -> None:
    script = str(scripts_on_path / "bench_large.py")
    done = subprocess.run(
        [sys.executable, script, "--json", "--events", str(events)],
        capture_output=True,
        text=True,
        check=True,
    )
    figures = json.loads(done.stdout)
    assert figures["finish"]["MiB"] < MIB_TO_FINISH
    assert figures["recover"]["MiB"] < MIB_TO_FINISH + PROCESS_MIB
    assert figures["solve"]["MiB"] < mib_to_solve
