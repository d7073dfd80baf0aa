"""Runs programs, and `memplan ARGS`, in children of a process that has loaded torch.

To start Python and load torch takes two seconds, the programs of most tests a tenth of
one. A child is as a new process in all else: its own folder, environment and streams,
`__main__` and exit handlers, and an end of its own. Only a command of `SHORT` ends
without taking its memory apart: for torch's that takes longer than most commands.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import multiprocessing.process
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

LOADED = ["torch", "torch._dynamo", "numpy", "pandas", "pyarrow.parquet"]
LOADED += [f"memplan.cli.{name}" for name in ("record", "apply", "solve", "fit")]
# Commands that run no program in their process: nothing of memplan is in what ends it.
SHORT = ("check", "convert", "diff", "fit", "recover", "report", "solve", "stats")
SHORT += ("verify",)
# What only the start of a process looks at: with others of these it has to be started.
AT_START = ("LD_", "PYTHON", "OMP_", "KMP_", "MKL_", "MALLOC_", "GLIBC_", "TORCH")


def at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """What the start of a process looks at."""
    return {n: value for n, value in environment.items() if n.startswith(AT_START)}


class WarmProcess:
    """The process with torch, and the children that it is asked for, one at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.at_start = at_start(environment)
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, __file__],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        timeout: float = 900,
    ) -> subprocess.CompletedProcess[str]:
        """`python ARGUMENTS` in `folder`, to its end: a script, or -m and a module.

        After `timeout` seconds it and this process are killed; raises ValueError.
        """
        timer = threading.Timer(timeout, os.killpg, (self._process.pid, signal.SIGKILL))
        timer.start()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            streams = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
            asked = [[*arguments], str(folder), dict(environment), streams]
            self._stream("stdin").write(json.dumps(asked) + "\n")
            self._stream("stdin").flush()
            answer = self._stream("stdout").readline()
            timer.cancel()
            said = [_read(file) for file in (out, err)]
        return subprocess.CompletedProcess(arguments, int(answer), *said)

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _stream(self, name: str) -> IO[str]:
        stream: IO[str] = getattr(self._process, name)
        return stream


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


def next_child() -> tuple[Any, ...] | None:
    """Forks for each line that is asked: in a child, what it is to do; None at the
    end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            answers.close()
            return tuple(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    return None


def become(
    arguments: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    streams: Sequence[str],
) -> None:
    """What `python ARGUMENTS` finds when it starts."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    opened = [os.open("/dev/null", os.O_RDONLY)]
    opened += [os.open(path, os.O_WRONLY | os.O_APPEND) for path in streams]
    for number, descriptor in enumerate(opened):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = os.fdopen(0, closefd=False)  # the other has lines of its own
    is_module = arguments[0] == "-m"
    sys.argv[:] = arguments[1:] if is_module else arguments
    # Where `spawn` looks for the program: the folder of the import before the fork.
    multiprocessing.process.ORIGINAL_DIR = folder  # type: ignore[attr-defined]
    sys.path[0] = folder if is_module else str(Path(arguments[0]).resolve().parent)
    if is_module:
        try:
            runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
        except SystemExit as stop:
            if arguments[1] == "memplan" and {*arguments[2:3]} & {*SHORT}:
                end_at_once(stop.code)
            raise
    else:
        runpy.run_path(arguments[0], run_name="__main__")


def end_at_once(code: object) -> NoReturn:
    """End as Python does, but leave the memory as it is."""
    assert isinstance(code, int)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for _name in LOADED:
        with contextlib.suppress(ImportError):
            __import__(_name)
    gc.collect()
    gc.freeze()  # a child's collector leaves alone what is shared
    _asked = next_child()
    if _asked is not None:
        become(*_asked)
