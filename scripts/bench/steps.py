"""One run of a training or inference program in a process of its own, step by step."""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.runner import BenchError, Figures, run_child

HOOK = Path(__file__).resolve().parent / "hook"
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


def environment(preload: Path | None = None) -> dict[str, str]:
    """The environment of a child, with `preload` as its only allocator setting."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name not in _UNSET and not name.startswith("MALLOC_")
    }
    if preload is not None:
        found["LD_PRELOAD"] = str(preload)
    return found


def measure_steps(
    command: Sequence[str],
    *,
    preload: Path | None = None,
    warmup: int = 3,
    timeout: float = 1800.0,
) -> StepRun:
    """Run a Python program with the step hook. Raises BenchError.

    warmup: step boundaries until what counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "marks.json"
        env = environment(preload)
        path = [str(HOOK), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        env["BENCH_MARKS_FILE"], env["BENCH_WARMUP"] = str(marks), str(warmup)
        done = run_child(command, env=env, timeout=timeout)
        if "cannot be preloaded" in done.errors:
            raise BenchError(f"{preload} cannot be preloaded")
        if not marks.exists():
            raise BenchError(f"saw no step of: {' '.join(command)}")
        noted = json.loads(marks.read_text())
    digest = _DIGEST.search(done.output)
    if digest is None:
        raise BenchError(f"no loss-sha256 in the output of: {' '.join(command)}")
    steady = noted["rows"][warmup - 1 :]
    if len(steady) < 2:
        raise BenchError(f"{len(noted['rows'])} steps seen, {warmup} of them warm-up")
    first, last, count = steady[0], steady[-1], len(steady) - 1
    figures = {
        **done.figures(),
        # The kernel counts in batches: three readings of one peak differ a little.
        "peak_bytes": max(done.peak_bytes, noted["peak_before_reset"], last[3]),
        "step_seconds": statistics.median(
            after[0] - before[0] for before, after in itertools.pairwise(steady)
        ),
        "step_faults": (last[1] - first[1]) / count,
        "step_cpu_seconds": (last[4] - first[4]) / count,
    }
    if noted["was_reset"]:  # else the kernel cannot tell the steady steps' peak
        figures["steady_peak_bytes"] = last[3]
    return StepRun(figures, digest.group(1))
