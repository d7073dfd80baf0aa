"""Runs modules in children of a process that has loaded torch.

To start Python and load torch takes seconds; to fork a process that has done so takes a
moment. Each child is a process of its own: no run sees what another one left.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, NoReturn

from memplan.errors import RecordError
from memplan.recording.target import Target, run
from memplan.streams import private_streams, unnamed_file

# Optimizers and fake tensors load what is below torch._dynamo at their first use.
_LOADED = ("torch", "torch._dynamo", "pyarrow.parquet", "memplan.recording.record")


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code, negative for a signal, and its stderr."""

    code: int
    said: str


def last_error(lines: Sequence[str]) -> str:
    """The line that says what a program ended with: the first of an exception's text,
    which may go on, or else the last one; "" if there are none."""
    trace = "Traceback (most recent call last):"
    if trace in lines:
        last = len(lines) - 1 - lines[::-1].index(trace)
        for line in lines[last + 1 :]:
            if line and not line[0].isspace():
                return line
    return lines[-1] if lines else ""


class ForkServer:
    """Runs `python -m MODULE ARGUMENTS` any number of times.

    The first run starts the process that loads torch. The `with` block ends it, and
    after an exception also the run that goes on.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = dict(environment)
        self._context = contextlib.ExitStack()
        self._process: subprocess.Popen[str] | None = None
        self._said: IO[bytes] | None = None

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and kind is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._context.close()

    def run(self, module: str, arguments: Sequence[str]) -> Ended:
        """Run a module to its end, with nothing to read; what it prints is dropped.

        Raises RecordError if the process that has loaded torch is gone.
        """
        if self._said is None or self._process is None:
            self._said = self._context.enter_context(unnamed_file())
            self._process = self._start(self._said)
        self._said.seek(0)
        self._said.truncate()
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([module, *arguments]), file=orders, flush=True)
        answer = answers.readline()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        if not answer:
            why = last_error(said.strip().splitlines()) or "is there enough memory?"
            raise RecordError(f"the process that loads torch was ended: {why}")
        return Ended(int(answer), said)

    def _start(self, said: IO[bytes]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,  # one signal ends it and its children
        )
        self._context.callback(process.communicate)
        return process


def _serve(orders: IO[str], answers: IO[str]) -> None:
    """Fork for each order, until there are no more."""
    for name in _LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a child's collector leaves alone what is shared
    for order in orders:
        child = os.fork()
        if child == 0:
            orders.close()
            answers.close()
            _become(*json.loads(order))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _become(module: str, *arguments: str) -> NoReturn:
    """Run a module, and end as Python does, but without taking the memory apart."""
    code = 1
    try:
        code = run(Target(module, arguments, is_module=True))
        threading._shutdown()  # type: ignore[attr-defined] # waits for its threads
        atexit._run_exitfuncs()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    with private_streams() as (_orders, _answers):
        _serve(_orders, _answers)
