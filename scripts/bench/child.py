"""One measured run of a whole process."""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.programs import SCRIPTS

HOOK = Path(__file__).resolve().parent / "hook"
# Settings of the user's that would make another allocator of the default one.
_UNSET = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF")
_DIGEST = re.compile(r"^loss-sha256 ([0-9a-f]{64})$", re.MULTILINE)


class BenchError(Exception):
    """A run that failed, or results that must not differ and do."""


@dataclass(frozen=True)
class Run:
    """What one run took. Bytes and seconds; per-step figures are those after warm-up.

    peak_bytes: highest resident memory of the whole process; steady_peak_bytes: of
    the steps after warm-up (None where the kernel cannot reset its mark);
    step_seconds: the median; cpu_seconds: of all threads, a step, on average (other
    programs on the machine change it less); step_faults: page faults a step, likewise.
    """

    peak_bytes: int
    steady_peak_bytes: int | None
    step_seconds: float
    step_faults: float
    seconds: float
    digest: str
    cpu_seconds: float | None = None
    report: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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


def run_child(
    command: Sequence[str], env: dict[str, str], timeout: float
) -> tuple[str, str, int]:
    """Run to the end; standard output, standard error, peak resident bytes.

    The bytes are ru_maxrss, which starts from what this process has resident: keep
    it small. Raises BenchError on a failing exit code, or after `timeout` seconds.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            command, env=env, cwd=SCRIPTS.parent, stdout=out, stderr=err
        )
        was_late = threading.Event()
        late = threading.Timer(timeout, lambda: (was_late.set(), child.kill()))
        late.start()
        try:
            # Not Popen.wait: only wait4 tells of this child alone.
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            late.cancel()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    output, errors = texts
    if was_late.is_set():
        raise BenchError(f"killed after {timeout:g} s: {' '.join(command)}")
    if child.returncode != 0:
        tail = "\n  ".join(errors.strip().splitlines()[-8:])
        raise BenchError(f"exit code {child.returncode}: {' '.join(command)}\n  {tail}")
    if "cannot be preloaded" in errors:
        raise BenchError(f"{env.get('LD_PRELOAD')} cannot be preloaded")
    return output, errors, usage.ru_maxrss * 1024


def measure(
    command: Sequence[str], preload: Path | None, warmup: int, timeout: float
) -> Run:
    """Run `command`, a Python program, with the step hook. Raises BenchError."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "marks.json"
        env = environment(preload)
        path = [str(HOOK), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        env["BENCH_MARKS_FILE"], env["BENCH_WARMUP"] = str(marks), str(warmup)
        started = time.perf_counter()
        output, _, peak = run_child(command, env, timeout)
        seconds = time.perf_counter() - started
        if not marks.exists():
            raise BenchError(f"saw no step of: {' '.join(command)}")
        noted = json.loads(marks.read_text())
    digest = _DIGEST.search(output)
    if digest is None:
        raise BenchError(f"no loss-sha256 in the output of: {' '.join(command)}")
    return summarise(noted, warmup, peak, seconds, digest.group(1))


def summarise(
    noted: dict[str, Any], warmup: int, max_resident: int, seconds: float, digest: str
) -> Run:
    """A run from the rows that the step hook noted, and the parent's ru_maxrss."""
    steady = noted["rows"][warmup - 1 :]
    if len(steady) < 2:
        raise BenchError(
            f"{len(noted['rows'])} steps seen, {warmup} of them warm-up: "
            "nothing left to measure"
        )
    times = [row[0] for row in steady]
    highest: int = steady[-1][3]
    return Run(
        # The kernel counts in batches: three readings of one peak differ a little.
        peak_bytes=max(max_resident, noted["peak_before_reset"], highest),
        steady_peak_bytes=highest if noted["was_reset"] else None,
        step_seconds=statistics.median(
            after - before for before, after in itertools.pairwise(times)
        ),
        step_faults=(steady[-1][1] - steady[0][1]) / (len(steady) - 1),
        seconds=seconds,
        digest=digest,
        cpu_seconds=(steady[-1][4] - steady[0][4]) / (len(steady) - 1),
    )
