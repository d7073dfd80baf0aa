"""The C++ compiler of this machine: which one it is, and one run of it."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memplan.errors import EnvironmentUnfitError

TIMEOUT = 120.0  # seconds that one run may take
_NAMES = ("c++", "g++", "clang++")
_VERSION_TIMEOUT = 20.0


class NoCompilerError(EnvironmentUnfitError):
    """There is no C++ compiler on this machine."""

    def __init__(self) -> None:
        super().__init__("no C++ compiler found; install g++ or clang++, or set CXX")


class CompileError(EnvironmentUnfitError):
    """The compiler failed: the first error it printed, on one line."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that answered.

    path: the program, absolute. version: all that it prints for --version. arguments:
    what stands behind the program's name in $CXX, before all others.
    """

    path: str
    version: str
    arguments: tuple[str, ...] = ()


def find_compiler() -> Compiler | None:
    """The compiler that $CXX names, else the first of c++, g++ and clang++ in $PATH.

    One that is not there, or that cannot tell its version, is passed over; None if all
    are. A program is asked once, as long as its file does not change.
    """
    for command in _commands():
        path = shutil.which(command[0])
        if path is None:
            continue
        path = os.path.abspath(path)
        with contextlib.suppress(OSError):
            changed = os.stat(path).st_mtime_ns
            version = _version(path, tuple(command[1:]), changed)
            if version is not None:
                return Compiler(path, version, tuple(command[1:]))
    return None


def _commands() -> Iterator[list[str]]:
    with contextlib.suppress(ValueError):  # quotes that do not close
        named = shlex.split(os.environ.get("CXX", ""))
        if named:
            yield named
    for name in _NAMES:
        yield [name]


@functools.cache
def _version(path: str, arguments: tuple[str, ...], changed: int) -> str | None:
    """What the program says it is; `changed` makes a new file a new question."""
    command = [path, *arguments, "--version"]
    try:
        code, output, _ = _run(command, None, _VERSION_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return output if code == 0 and output.strip() else None


def compile_source(
    compiler: Compiler,
    arguments: Sequence[str],
    folder: Path,
    timeout: float = TIMEOUT,
) -> None:
    """Run the compiler in `folder`, for at most `timeout` seconds.

    Raises CompileError if it fails, cannot be started or takes too long; whatever it
    started is then ended, too.
    """
    command = [compiler.path, *compiler.arguments, *arguments]
    try:
        code, output, errors = _run(command, folder, timeout)
    except subprocess.TimeoutExpired:
        raise CompileError(
            f"{compiler.path}: still compiling after {timeout:g} s; "
            "set CXX to another compiler"
        ) from None
    except OSError as error:
        raise CompileError(
            f"{compiler.path}: cannot be started ({error.strerror}); set CXX"
        ) from error
    if code:
        raise CompileError(f"{compiler.path}: {_reason(code, errors or output)}")


def _run(
    command: Sequence[str], folder: Path | None, timeout: float
) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command that has no input."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},  # "error:" is looked for
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # to be ended as one, with what it starts
        text=True,
        errors="replace",
    )
    with process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output, errors


def _reason(code: int, printed: str) -> str:
    """The first error of what a compiler printed; the last line if it names none."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    for line in lines:
        if "error:" in line:
            return line
    if code < 0:
        return f"ended by signal {-code}"
    return lines[-1] if lines else f"failed with exit code {code}"
