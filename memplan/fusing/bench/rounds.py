"""Contenders timed in turns, each in its own process, so that what else the machine
does falls on all of them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import memplan.fusing as home
from memplan.fusing.bench.worker import Job

_FAREWELL = 10.0  # seconds that a process has to end when it is told to


@dataclass
class Contender:
    """What was measured of one. turns: seconds, one a round; remarks: what it warned of
    when it was first called; failure: why it ended."""

    name: str
    first_call: float | None = None
    turns: list[float] = field(default_factory=list)
    error: float | None = None
    peak_bytes: int | None = None
    failure: str | None = None
    remarks: list[str] = field(default_factory=list)


class Process:
    """A worker. Raises ChildError, in any call, when it fails or takes too long."""

    def __init__(self, job: Job, timeout: float) -> None:
        self._timeout = timeout
        self._child = subprocess.Popen(
            [sys.executable, "-m", "memplan.fusing.bench.worker", job.to_json()],
            env=environment(job),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def first(self) -> dict[str, Any]:
        """The answer that comes unasked."""
        return self._answer()

    def ask(self, request: str) -> dict[str, Any]:
        """The answer to one of the worker's REQUESTS."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has gone: the answer says so
            self._child.stdin.write(request.encode() + b"\n")
            self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._child.kill()

        timer = threading.Timer(self._timeout, kill)
        timer.start()
        try:
            line = self._child.stdout.readline()
        finally:
            timer.cancel()
        if late.is_set():
            raise ChildError(f"no answer within {self._timeout:g} s")
        if not line:
            raise ChildError(f"its process ended with code {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise ChildError(answer["failure"])
        return answer

    def close(self) -> None:
        """End the process, gently first."""
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            self._child.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class ChildError(Exception):
    """A contender that failed: the reason, on one line."""


def environment(job: Job) -> dict[str, str]:
    """Of a worker: threads settled, and caches in its folder, which are cold in a
    folder that is new."""
    found = dict(os.environ)
    # This very package is the one to be measured, wherever the user stands.
    here = str(Path(home.__file__).parents[2])
    found["PYTHONPATH"] = os.pathsep.join(
        filter(None, [here, found.get("PYTHONPATH", "")])
    )
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        found[name] = str(job.threads)
    caches = Path(job.folder)
    found["TORCHINDUCTOR_CACHE_DIR"] = str(caches / "inductor")
    found["MEMPLAN_CACHE_DIR"] = str(caches / "memplan")
    return found


@contextlib.contextmanager
def started(job: Job, timeout: float) -> Iterator[Process]:
    """A worker that has ended when this ends."""
    process = Process(job, timeout)
    try:
        yield process
    finally:
        process.close()


class Rounds:
    """Contenders on one network at one batch, each kept alive between its turns."""

    def __init__(self, jobs: Sequence[Job], clock: str, timeout: float) -> None:
        self._jobs, self._clock, self._timeout = jobs, clock, timeout
        self._stack = contextlib.ExitStack()
        self._alive: dict[str, Process] = {}
        self.found = {job.contender: Contender(job.contender) for job in jobs}

    def __enter__(self) -> Rounds:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start one after the other: a first call is timed with nobody beside it."""
        for job in self._jobs:
            process = self._stack.enter_context(started(job, self._timeout))
            self._alive[job.contender] = process
            with self._noting(job.contender) as one:
                answer = process.first()
                one.first_call, one.remarks = answer["first_call"], answer["remarks"]

    def run(self, repeats: int) -> None:
        """A round to warm up, then `repeats` that count. Each begins with another
        contender, so that none always follows the same."""
        for number in range(repeats + 1):
            names = list(self._alive)
            first = number % max(len(names), 1)
            for name in names[first:] + names[:first]:
                with self._noting(name) as one:
                    seconds = self._alive[name].ask("turn")[self._clock]
                    if number > 0:
                        one.turns.append(seconds)

    def check(self, name: str) -> None:
        """Note the error of `name` against eager."""
        if name in self._alive:
            with self._noting(name) as one:
                one.error = self._alive[name].ask("error")["error"]
                if one.error is None:
                    one.failure = "its result is not eager's: shape, type, NaN or inf"

    def weigh(self, name: str) -> None:
        """Note the peak of activations of `name`."""
        if name in self._alive:
            with self._noting(name) as one:
                one.peak_bytes = self._alive[name].ask("memory")["bytes"]

    def shares(self, name: str) -> dict[str, Any]:
        """Layers and the share of time, by one contender's process; {} if it fails."""
        if name in self._alive:
            with self._noting(name):
                return self._alive[name].ask("shares")
        return {}

    @contextlib.contextmanager
    def _noting(self, name: str) -> Iterator[Contender]:
        """A contender's record; where it fails, it ends, and the record says why."""
        try:
            yield self.found[name]
        except ChildError as error:
            self.found[name].failure = str(error)
            self._alive.pop(name).close()
