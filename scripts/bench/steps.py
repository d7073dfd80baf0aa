"""A program in a process of its own: recorded and planned, or step by step."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from step_log import FILE, WARMUP

from bench.runner import MEMPLAN, BenchError, Figures, run_child

# The user's own settings that would replace the default allocator.
_UNSET = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF")
_DIGEST = re.compile(r"^loss-sha256 ([0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True)
class StepRun:
    """A run's figures, and the digest of its losses.

    peak_bytes: highest resident memory of the process; steady_peak_bytes: of the steps
    after the warm-up; step_seconds: their median; step_cpu_seconds and step_faults:
    CPU time of all threads and page faults per step.
    """

    figures: Figures
    digest: str


def environment(preload: str | None = None) -> dict[str, str]:
    """The environment of a child, with `preload` as its only allocator setting."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name not in _UNSET and not name.startswith("MALLOC_")
    }
    if preload is not None:
        found["LD_PRELOAD"] = preload
    return found


def measure_steps(
    command: Sequence[str], *, preload: str | None = None, timeout: float = 1800.0
) -> StepRun:
    """Run a program that logs its steps (see `step_log`). Raises BenchError."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.json"
        env = environment(preload) | {FILE: str(log)}
        done = run_child(command, env=env, timeout=timeout)
        if "cannot be preloaded" in done.errors:
            raise BenchError(f"{preload} cannot be preloaded")
        digest = _DIGEST.search(done.output)
        if digest is None or not log.exists():
            raise BenchError(f"no steps in the log of: {' '.join(command)}")
        noted = json.loads(log.read_text(encoding="utf-8"))
    steady = noted["rows"][WARMUP - 1 :]
    if len(steady) < 2:
        raise BenchError(f"{len(noted['rows'])} steps seen, {WARMUP} of them warm-up")
    first, last, count = steady[0], steady[-1], len(steady) - 1
    figures = {
        "seconds": done.seconds,
        "cpu_seconds": done.cpu_seconds,
        # The kernel counts in batches: three readings of one peak differ a little.
        "peak_bytes": max(done.peak_bytes, noted["first_peak"], last["peak"]),
        "step_seconds": statistics.median(
            after["at"] - before["at"] for before, after in itertools.pairwise(steady)
        ),
        "step_faults": (last["faults"] - first["faults"]) / count,
        "step_cpu_seconds": (last["cpu"] - first["cpu"]) / count,
    }
    if noted["is_reset"]:  # else the kernel cannot tell the steady steps' peak
        figures["steady_peak_bytes"] = last["peak"]
    return StepRun(figures, digest.group(1))


def make_plan(
    words: Sequence[str], folder: Path, timeout: float, *options: str
) -> Path:
    """Record a program with `options`, plan its memory, in `folder`; print how it went.

    Raises BenchError.
    """
    trace, plan = folder / "t.parquet", folder / "t.plan.json"
    print(f"\n$ {shlex.join(words)}", flush=True)
    recording = [*MEMPLAN, "record", "-q", *options, "-o", str(trace), *words]
    run_child(recording, env=environment(), timeout=timeout)
    solving = [*MEMPLAN, "solve", str(trace), "-o", str(plan), "--json"]
    solved = json.loads(run_child(solving, env=environment(), timeout=timeout).output)
    shown = ("method", "buffers", "peak", "lower_bound", "status", "seconds")
    facts = ", ".join(f"{key} {solved[key]}" for key in shown if key in solved)
    print(f"memplan solve: {facts}", flush=True)
    return plan
