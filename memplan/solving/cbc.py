"""CBC, which solves integer programs; the only file that knows PuLP.

PuLP is used only for the CBC that it ships. The solver runs silently, in a folder of
its own, without a shell, and is killed on Ctrl-C or when its time is over. What it
proved is read from its output.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from memplan.errors import EnvironmentUnfitError, as_options
from memplan.files import write_bytes

OTHER = 'take mip_solver="highs"'
MODEL = "model.mps"
_START, _ANSWER = "start.mst", "answer.sol"
_BOUND = re.compile(r"^Lower bound: +(-?[\d.]+(?:e[+-]?\d+)?)$", re.MULTILINE)
_TO_STOP = 0.15  # of its time, at most, that a solver is given to notice it is over
_MOST_TO_STOP = 1.0  # seconds
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@dataclass(frozen=True)
class Answer:
    """What CBC said.

    state: in its words, "Optimal" if it is proved. values: of the variables by name,
    those that are 0 left out; None without a solution. bound: on the objective; None if
    it proved nothing. infeasible: there is no solution. killed: it was still running at
    the deadline, and said nothing.
    """

    state: str = ""
    values: Mapping[str, float] | None = None
    bound: float | None = None
    infeasible: bool = False
    killed: bool = False

    @property
    def finished(self) -> bool:
        """Whether the solution is proved to be the best."""
        return self.state.startswith("Optimal")


def seconds_left(deadline: float) -> float:
    """Until `deadline`, by `time.perf_counter`."""
    return max(0.0, deadline - time.perf_counter())


def asked_seconds(deadline: float) -> float:
    """What to tell a solver, which needs some time to stop."""
    left = seconds_left(deadline)
    return left - min(_TO_STOP * left, _MOST_TO_STOP)


def solve_mps(  # noqa: PLR0913 - all by name
    folder: Path,
    deadline: float,
    *,
    gap: float,
    relative_gap: float | None = None,
    threads: int | None = None,
    seed: int = 0,
    start: Mapping[str, float] | None = None,
) -> Answer:
    """Solve the program in `folder`, a file named MODEL in the free MPS form.

    deadline: by `time.perf_counter`; infinite for none. gap, relative_gap: between the
    solution and the bound, at which to stop. start: all variables in the order of the
    file, of a solution that is known.

    Raises EnvironmentUnfitError if CBC is not there, or ends without an answer.
    """
    command = [_program(), MODEL]
    if start is not None:
        lines = [f"{k} {name} {start[name]} 0\n" for k, name in enumerate(start)]
        text = "Stopped on time - objective value 0\n" + "".join(lines)
        write_bytes(folder / _START, text.encode("ascii"))
        command += ["-mipstart", _START]
    if math.isfinite(deadline):
        command += ["-sec", f"{asked_seconds(deadline):.3f}", "-timeMode", "elapsed"]
    if threads is not None and threads > 1:
        command += ["-threads", str(threads)]
    command += ["-allow", f"{gap:.9f}", "-randomCbcSeed", str(seed % 10**6)]
    if relative_gap is not None:
        command += ["-ratio", f"{relative_gap:.9f}"]
    command += ["-solve", "-solution", _ANSWER]
    log = _run_silently(command, folder, deadline)
    return Answer(killed=True) if log is None else _read(log, folder / _ANSWER)


def _program() -> str:
    try:
        import pulp
    except ImportError as error:
        text = f"PuLP cannot be loaded ({error}); pip install pulp, or {OTHER}"
        raise EnvironmentUnfitError(text, shell=as_options(text)) from None
    program = str(pulp.PULP_CBC_CMD.pulp_cbc_path)
    if not os.access(program, os.X_OK):
        text = f"PuLP's CBC is not to be found at {program}; reinstall PuLP, or {OTHER}"
        raise EnvironmentUnfitError(text, shell=as_options(text))
    return program


def _run_silently(command: list[str], folder: Path, deadline: float) -> str | None:
    """What the command prints, or None if it had to be killed at the deadline.

    It gets no input, and does not outlive this call.
    """
    process = None
    try:
        # A signal that raises while it starts would leave nobody to end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for us, and we pass it on
                preexec_fn=_in_child(before),  # noqa: PLW1509 - system calls, no locks
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        limit = seconds_left(deadline) if math.isfinite(deadline) else None
        log, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process is not None:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            with process:  # which closes the pipe, and waits
                pass
    return log


def _in_child(mask: Iterable[int]) -> Callable[[], None]:
    """What a child does first: it takes signals again, and on Linux asks to be killed
    when we are."""
    linux = sys.platform.startswith("linux")
    # Looked up before the fork.
    set_death_signal = ctypes.CDLL(None).prctl if linux else None
    parent = os.getpid()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if set_death_signal is not None:
            set_death_signal(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # too late: it is dead already
                os._exit(1)

    return prepare


def _read(log: str, answer: Path) -> Answer:
    """From CBC's log and the file with its answer, whose first line tells the end."""
    text = answer.read_text() if answer.exists() else ""
    header, *rows = text.splitlines() or [""]
    state, _, objective = header.partition(" - objective value ")
    if "infeasible" in (header or log).lower():
        return Answer(infeasible=True)
    if not objective:
        last = (log.strip().splitlines() or ["nothing"])[-1]
        text = (
            f"CBC ended without an answer; the last it said was {last!r}; {OTHER}, or "
            'method="exact"'
        )
        raise EnvironmentUnfitError(text, shell=as_options(text))
    # A gap is reported where there is one; what is solved outright has none.
    reported = _BOUND.search(log)
    finished = state.startswith("Optimal")
    bound = float(reported[1]) if reported else float(objective) if finished else None
    if "no integer solution" in header:
        return Answer(state, None, bound)
    # Two stars mark what is a little outside its limits.
    words = [row.replace("**", " ").split() for row in rows]
    return Answer(state, {word[1]: float(word[2]) for word in words}, bound)
