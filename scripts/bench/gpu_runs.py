"""Programs on a GPU, run one after the other within a time, and what they say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MODES = ("native", "expandable", "memplan")
LINES = 20  # of what a program that failed said last
_SAID = re.compile(r"^cuda (\{.*\})$", re.MULTILINE)
_DIGEST = re.compile(r"^loss-sha256 (\w+)$", re.MULTILINE)
_SECONDS = re.compile(r"^seconds/step median ([\d.]+)$", re.MULTILINE)


class BenchError(Exception):
    """A program that did not end well. said: its last lines."""

    def __init__(self, what: str = "", said: str = "") -> None:
        super().__init__(what)
        self.said = said


class OutOfTimeError(Exception):
    """No time is left for another program."""


class Clock:
    """How much time there is, and what a program took that is to be run again."""

    def __init__(self, seconds: float | None, timeout: float) -> None:
        """seconds: for all, or None; timeout: for one program."""
        self._end = None if seconds is None else time.monotonic() + seconds
        self._timeout = timeout
        self._took: dict[object, float] = {}

    def timeout(self) -> float:
        """Seconds that the next program may take."""
        left = float("inf") if self._end is None else self._end - time.monotonic()
        return max(min(self._timeout, left), 1.0)

    @contextlib.contextmanager
    def turn(self, what: object) -> Iterator[None]:
        """One of `what`. Raises OutOfTimeError where that took longer than is left."""
        if self._end is not None:
            left = self._end - time.monotonic()
            if left <= 1.1 * self._took.get(what, 0.0):
                raise OutOfTimeError
        begun = time.monotonic()
        try:
            yield
        except BenchError:
            if self._end is not None and time.monotonic() >= self._end:
                raise OutOfTimeError from None
            raise
        self._took[what] = time.monotonic() - begun


@dataclass(frozen=True)
class Run:
    """Of one run; bytes, calls after the warm-up, seconds a step, GPU and torch."""

    reserved: int
    allocated: int
    driver: int
    calls: int
    seconds: float
    digest: str
    on: str


def environment(mode: str) -> dict[str, str]:
    """What a run under `mode` gets: none of the user's own settings of an allocator."""
    unset = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    own = {name: value for name, value in os.environ.items() if name not in unset}
    if mode == "expandable":
        own[unset[0]] = "expandable_segments:True"
    return own


def run(command: Sequence[str], mode: str, timeout: float) -> str:
    """The output of Python with `command`. Raises BenchError."""
    try:
        done = subprocess.run(
            [sys.executable, *command],
            env=environment(mode),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"took more than {timeout:g} s: {' '.join(command)}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [""]
        raise BenchError(
            f"ended with {done.returncode}: {' '.join(command)}: {lines[-1]}",
            "\n".join(lines[-LINES:]),
        )
    return done.stdout


def read_run(output: str) -> Run:
    """What a training program printed. Raises BenchError if it is not all there."""
    found = [pattern.search(output) for pattern in (_SAID, _DIGEST, _SECONDS)]
    if not all(found):
        raise BenchError("a program did not say what it took")
    said, digest, seconds = (each.group(1) for each in found if each)
    entries = json.loads(said)
    return Run(
        entries["reserved"],
        entries["allocated"],
        entries["driver"],
        entries["num_device_alloc"] + entries["num_device_free"],
        float(seconds),
        digest,
        entries["on"],
    )


def tell(line: str) -> None:
    """On standard error: what is no part of the table."""
    print(line, file=sys.stderr, flush=True)
