"""A program recorded in a process of its own, to see what it needs at some size."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from memplan.errors import RecordError
from memplan.recording.target import Target
from memplan.scratch import scratch_folder
from memplan.trace.pieces import Summary
from memplan.trace.read import read_trace
from memplan.trace.reserved import most_reserved, ran_out


@dataclass(frozen=True)
class Trial:
    """What a recording found.

    live, reserved: the most bytes, exact; reserved is 0 on the CPU. out_of_memory: the
    device had no room for all. notes: what memplan said of it, a line each.
    """

    live: int
    reserved: int
    out_of_memory: bool
    notes: tuple[str, ...]


def trial(target: Target, device: str, steps: int) -> Trial:
    """Record `steps` steps of a program, and end it there.

    device: as `record --device` takes it. Raises RecordError, with the last line that
    the program said, if it failed for any other reason than memory; and if nothing of
    it was recorded.
    """
    with scratch_folder("memplan-fit-") as folder:
        path = folder / "trace.parquet"
        options = ["--device", device, "--steps", str(steps), "--then-exit"]
        command = [sys.executable, "-m", "memplan", "record", *options]
        done = subprocess.run(
            [*command, "--output", str(path), *target.command()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        said = done.stderr.strip().splitlines()
        if not path.exists():
            raise RecordError(_failure(target, said, done.returncode))
        events = read_trace(path).events
    if not len(events):
        raise RecordError(
            f"{' '.join(target.command())} asked for no memory that is seen, so nothing"
            " is known of what it needs; if it starts others that do, name one of them"
        )
    failed = ran_out(events)
    if done.returncode and not failed:
        raise RecordError(_failure(target, said, done.returncode))
    notes = tuple(
        line.removeprefix("memplan: ")
        for line in said
        if line.startswith("memplan: ") and "taken as" in line
    )
    return Trial(Summary.of(events).peak_live, most_reserved(events), failed, notes)


def _failure(target: Target, said: list[str], code: int) -> str:
    own = ("memplan: recorded ", " ")  # of the recording, which is thrown away
    told = [
        line for line in said if not line.startswith(own) and " is empty: " not in line
    ]
    last = told[-1].removeprefix("memplan: ") if told else "it said nothing"
    return f"{' '.join(target.command())} ended with {code}: {last}"
