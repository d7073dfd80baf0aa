"""What a recording of very many events takes to finish, and to solve.

Writes the journal that a training of so many events would leave, then measures, each in
a process of its own, the memory and the time to make the trace of it and to plan that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from memplan.trace.info import to_metadata
from memplan.trace.journal import END, EVENTS, MAGIC, METADATA, ROW
from memplan.trace.trace import Action, Columns, Mark, Trace

REQUESTS = 2000  # of a step; each freed some requests later, in its step


def step(rng: np.random.Generator) -> np.ndarray:
    """The rows of one step, as the recorder writes them: frees without a size."""
    lives = rng.integers(1, 60, REQUESTS)
    order = np.concatenate([np.arange(REQUESTS) * 2, np.arange(REQUESTS) * 2 + lives])
    rows = np.zeros(2 * REQUESTS + 1, dtype=ROW)
    rows["action"][REQUESTS:] = Action.FREE_COMPLETED
    rows["size"][:REQUESTS] = rng.integers(1, 4000, REQUESTS) * 64
    rows["address"][:-1] = np.tile(rng.permutation(REQUESTS) * (1 << 18), 2) + (1 << 40)
    rows[:-1] = rows[:-1][np.argsort(order, kind="stable")]
    rows[-1]["action"], rows[-1]["mark"] = Action.STEP, Mark.OPTIMIZER
    rows["stack"], rows["thread"] = -1, 4242
    return rows


def blocks(events: int) -> Iterator[tuple[int, bytes]]:
    """The journal's blocks: their kinds and payloads."""
    rng = np.random.default_rng(7)
    metadata = to_metadata(Trace(Columns.of()))
    yield METADATA, json.dumps(metadata).encode()
    rows, clock = step(rng), 0
    for _ in range(-(-events // len(rows))):
        times = clock + np.cumsum(rng.integers(100, 40_000, len(rows)))
        rows["time_ns"], clock = times, int(times[-1])
        yield EVENTS, rows.tobytes()
    yield END, b'{"complete": true}'


def write_journal(path: Path, events: int) -> None:
    """A journal of at least so many events."""
    with path.open("wb") as stream:
        stream.write(MAGIC)
        for kind, payload in blocks(events):
            head = np.array([kind, len(payload)], dtype="<u4").tobytes()
            check = zlib.crc32(payload, zlib.crc32(head))
            stream.write(head + np.uint32(check).tobytes() + payload)


def measured(*command: str) -> dict[str, float]:
    """Peak MiB and seconds of `memplan COMMAND`; exits if it fails."""
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "memplan", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    said = child.stderr.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"memplan {command[0]} ended with {child.returncode}: {said}")
    return {
        "MiB": usage.ru_maxrss / 1024,
        "seconds": time.perf_counter() - begin,
    }


def finish(journal: str, path: str) -> None:
    """Make the trace as a recording's end does, here; print MiB above those before."""
    from memplan.trace.recovery import recover_journal

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    recover_journal(journal, path, 0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.perf_counter() - begin
    print(json.dumps({"MiB": (after - before) / 1024, "seconds": seconds}))


def main() -> None:
    """Print memory and time of each part, as a table or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--finish", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.finish:
        finish(*options.finish)
        return
    with tempfile.TemporaryDirectory() as folder:
        journal, trace = Path(folder) / "t.parquet.journal", Path(folder) / "t.parquet"
        write_journal(journal, options.events)
        finished = subprocess.run(
            [sys.executable, __file__, "--finish", str(journal), str(trace)],
            stdout=subprocess.PIPE,
            check=True,
        )
        trace.unlink()
        plan = str(Path(folder) / "p.json")
        figures = {
            "finish": json.loads(finished.stdout),
            "recover": measured("recover", str(journal)),
            "solve": measured("solve", str(trace), "-o", plan),
        }
    if options.json:
        print(json.dumps(figures))
        return
    for name, values in figures.items():
        print(f"{name:<8}{values['MiB']:>8.0f} MiB{values['seconds']:>8.1f} s")
    print(f"{options.events:,} events; finish: above the process before it")


if __name__ == "__main__":
    main()
