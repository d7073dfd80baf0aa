"""Integer programs handed to CBC or HiGHS; the only file that knows PuLP.

PuLP makes the model's file, and brings CBC along. The solver itself is run from here:
silently, in a folder of its own, without a shell, and ended on Ctrl-C. What it proved
is read from its own words, since PuLP also calls "optimal" what a time limit cut off.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memplan.arrays import Float64Array
from memplan.errors import EnvironmentUnfitError
from memplan.files import write_bytes
from memplan.solving.model import Model
from memplan.solving.options import Options

if TYPE_CHECKING:
    import pulp

Offsets: TypeAlias = Float64Array

_MODEL, _START, _ANSWER = "model.mps", "start.mst", "answer.sol"
_BOUND = re.compile(r"^Lower bound: +(-?[\d.]+(?:e[+-]?\d+)?)$", re.MULTILINE)
_GRACE_SECONDS = 5.0  # beyond its time limit, before it is killed
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_UNIT_GAP = 0.999  # peaks are whole numbers of units: a smaller gap is none


@dataclass(frozen=True, eq=False)
class Found:
    """What a solver said, and how it ended.

    offsets: in units, inexact, shape (n,); None without a solution.
    bound: on the peak, in units; None if it proved nothing.
    infeasible: there is no packing at or below the ceiling.
    """

    status: str
    offsets: Offsets | None = None
    bound: float | None = None
    infeasible: bool = False


def run(model: Model, options: Options) -> Found:
    """Solve `model` with `options.mip_solver`, within the time limit.

    Raises EnvironmentUnfitError if the solver is not installed, or fails.
    """
    solve = _highs if options.mip_solver == "highs" else _cbc
    with tempfile.TemporaryDirectory(prefix="memplan-") as name:
        folder = Path(name)
        with warnings.catch_warnings():  # PuLP 3 warns of what only PuLP 4 has
            warnings.simplefilter("ignore", DeprecationWarning)
            names = _write(model, folder)
        return solve(model, options, folder, names)


def _write(model: Model, folder: Path) -> list[str]:
    """Writes the model's file; the names of its variables, in the order of the file."""
    import pulp

    program = pulp.LpProblem("memplan", pulp.LpMinimize)
    peak = pulp.LpVariable("u", model.floor, model.ceiling)
    program += peak
    size = model.size.tolist()
    x = [_offset(model, i) for i in range(len(size))]
    for i, own in enumerate(size):
        program += x[i] + own <= peak
    rows = (model.first.tolist(), model.second.tolist(), model.settled.tolist())
    for i, j, settled in zip(*rows, strict=True):
        if settled:
            program += x[i] + size[i] <= x[j]
            continue
        above = pulp.LpVariable(f"z{i}_{j}", cat=pulp.LpBinary)
        program += x[i] + size[i] <= x[j] + model.ceiling * above
        program += x[j] + size[j] <= x[i] + model.ceiling - model.ceiling * above
    written = program.writeMPS(str(folder / _MODEL), rename=0)
    return [variable.name for variable in written]


def _offset(model: Model, i: int) -> pulp.LpAffineExpression:
    """The offset of buffer i in units: a number, a variable, or a multiple of one."""
    import pulp

    fixed = int(model.fixed[i])
    if fixed >= 0:
        return pulp.LpAffineExpression(constant=fixed)
    most = model.ceiling - int(model.size[i])
    if model.step is None:
        return pulp.LpAffineExpression(pulp.LpVariable(f"x{i}", 0, most))
    step = int(model.step[i])
    return step * pulp.LpVariable(f"x{i}", 0, most // step, pulp.LpInteger)


def _start_values(model: Model, names: list[str]) -> list[float] | None:
    """The known packing as values of the variables; None if there is none."""
    if model.start is None:
        return None
    x, size = model.start.tolist(), model.size.tolist()
    step = [1] * len(x) if model.step is None else model.step.tolist()
    values = []
    for name in names:
        first, _, second = name[1:].partition("_")
        if name == "u":
            value = max(x[i] + size[i] for i in range(len(x)))
        elif second:
            value = int(x[int(first)] > x[int(second)])
        else:
            value = x[int(first)] // step[int(first)]
        values.append(float(value))
    return values


def _offsets_from(model: Model, values: dict[str, float]) -> Offsets:
    """The solver's offsets in units; what it does not mention is 0."""
    step = np.ones(len(model.size)) if model.step is None else model.step
    found = [values.get(f"x{i}", 0.0) for i in range(len(model.size))]
    return np.where(model.fixed >= 0, model.fixed, np.array(found) * step)


def _cbc(model: Model, options: Options, folder: Path, names: list[str]) -> Found:
    import pulp

    program = str(pulp.PULP_CBC_CMD.pulp_cbc_path)
    if not os.access(program, os.X_OK):
        raise EnvironmentUnfitError(
            f"PuLP's CBC is not to be found at {program}; reinstall PuLP, or take "
            "--mip-solver highs"
        )
    command = [program, _MODEL]
    start = _start_values(model, names)
    if start is not None:
        lines = [f"{k} {name} {start[k]} 0\n" for k, name in enumerate(names)]
        text = "Stopped on time - objective value 0\n" + "".join(lines)
        write_bytes(folder / _START, text.encode("ascii"))
        command += ["-mipstart", _START]
    if options.time_limit is not None:
        command += ["-sec", f"{options.time_limit:.3f}", "-timeMode", "elapsed"]
    if options.threads is not None and options.threads > 1:
        command += ["-threads", str(options.threads)]
    command += ["-allow", str(_UNIT_GAP), "-randomCbcSeed", str(options.seed % 10**6)]
    command += ["-solve", "-solution", _ANSWER]
    log = _run_silently(command, folder, options.time_limit)
    return _read_cbc(model, log, folder / _ANSWER)


def _run_silently(command: list[str], folder: Path, seconds: float | None) -> str:
    """What the command prints. It gets no input, and does not outlive this call."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for us, and we pass it on
        preexec_fn=_die_with_parent(),  # noqa: PLW1509 - system calls, no locks
    )
    try:
        patience = None if seconds is None else 2 * seconds + _GRACE_SECONDS
        log, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        log, _ = process.communicate()
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return log


def _die_with_parent() -> Callable[[], object] | None:
    """What a child does so as not to outlive us even when we are killed: on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    set_death_signal = ctypes.CDLL(None).prctl  # looked up before the fork
    parent = os.getpid()

    def prepare() -> None:
        set_death_signal(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # too late: it is dead already
            os._exit(1)

    return prepare


def _read_cbc(model: Model, log: str, answer: Path) -> Found:
    """From CBC's log and the file with its answer, whose first line tells the end."""
    text = answer.read_text() if answer.exists() else ""
    header, *rows = text.splitlines() or [""]
    state, _, objective = header.partition(" - objective value ")
    if "infeasible" in (header or log).lower():
        return Found("proved that nothing is lower", infeasible=True)
    if not objective:
        last = (log.strip().splitlines() or ["nothing"])[-1]
        raise EnvironmentUnfitError(
            f"CBC ended without an answer; the last it said was {last!r}; take "
            "--mip-solver highs, or --method exact"
        )
    finished = state.startswith("Optimal")
    # A gap is reported where there is one; what is solved outright has none.
    reported = _BOUND.search(log)
    bound = float(reported[1]) if reported else float(objective) if finished else None
    offsets = None
    if "no integer solution" not in header:
        # Two stars mark what is a little outside its limits.
        words = [row.replace("**", " ").split() for row in rows]
        values = {word[1]: float(word[2]) for word in words}
        offsets = _offsets_from(model, values)
    return Found("solved" if finished else state.lower(), offsets, bound)


def _highs(model: Model, options: Options, folder: Path, names: list[str]) -> Found:
    try:
        highspy = import_module("highspy")
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"HiGHS cannot be loaded ({error}); pip install highspy, do not load "
            "OR-tools in the same process, or take --mip-solver cbc"
        ) from None

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_abs_gap", _UNIT_GAP)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("random_seed", options.seed % 2**31)
    solver.setOptionValue("threads", options.threads or 1)
    if options.time_limit is not None:
        solver.setOptionValue("time_limit", options.time_limit)
    solver.HandleUserInterrupt = True
    solver.readModel(str(folder / _MODEL))
    start = _start_values(model, names)
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start
        solver.setSolution(solution)
    worker = solver.startSolve()
    try:
        while worker.is_alive():
            worker.join(0.05)
    except KeyboardInterrupt:
        solver.cancelSolve()
        worker.join(_GRACE_SECONDS)
        raise
    return _read_highs(model, solver, names)


def _read_highs(model: Model, solver: Any, names: list[str]) -> Found:
    highspy = import_module("highspy")
    status, info = solver.getModelStatus(), solver.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Found("proved that nothing is lower", infeasible=True)
    offsets = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        values = dict(zip(names, solver.getSolution().col_value, strict=True))
        offsets = _offsets_from(model, values)
    finished = status == highspy.HighsModelStatus.kOptimal
    # A model without choices to make is no integer program to HiGHS, and has no bound.
    bound = info.mip_dual_bound
    if finished and info.mip_node_count < 0:
        bound = info.objective_function_value
    text = "solved" if finished else solver.modelStatusToString(status).lower()
    return Found(text, offsets, float(bound) if np.isfinite(bound) else None)
