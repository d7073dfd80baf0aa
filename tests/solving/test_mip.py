"""The integer program: equal to brute force, truthful about what it proved."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pulp
import pytest
from exact_oracle import brute_force, stacked
from puzzles import puzzle

from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import Gaps, Problem
from memplan.core.verify import verify, verify_offsets
from memplan.errors import InfeasibleError, NoPlanError, UsageError
from memplan.solving import mip, offsets_program
from memplan.solving.bestfit import best_of_six
from memplan.solving.methods import solve_problem
from memplan.solving.options import MIP_SOLVERS, Options
from tests.conftest import ROOT
from tests.gap_samples import gapped
from tests.strategies import examples, problems

needs_highs = pytest.mark.skipif(not find_spec("highspy"), reason="no highspy")
SOLVERS = [
    pytest.param(name, marks=needs_highs if name == "highs" else ())
    for name in MIP_SOLVERS
]
# Each meets each other, but never do all three: 10 bytes alive, and 15 needed.
TRIANGLE = Problem.of([0, 2, 4], [3, 5, 1], [5, 5, 5], length=6)
# Three bytes, but two of them must be four apart: that makes five.
ASKEW = Problem.of([0, 0, 0], [1, 1, 1], [1, 1, 1], alignment=[4, 4, 1])


def asked(problem: Problem, solver: str, **options: float) -> tuple[int, int]:
    """Peak and bound in bytes from the solver alone, begun from the worst plan."""
    program = mip.build(problem, stacked(problem), lower_bound(problem))
    found = offsets_program.run(program, Options(mip_solver=solver, **options))  # type: ignore[arg-type]
    assert found.offsets is not None
    offsets = mip.restack(problem, program, found.offsets)
    peak = int((offsets + problem.size).max())
    assert verify_offsets(problem, offsets, peak) == []
    return peak, mip.proved_bytes(program, found)


@pytest.mark.parametrize("solver", SOLVERS)
@examples(15, problem=problems(fixed=True, max_size=6), soak=500)
def test_equal_to_brute_force(solver: str, problem: Problem) -> None:
    if len(problem):
        least = brute_force(problem)
        assert asked(problem, solver) == (least, least)


@examples(40, problems(fixed=True, max_size=6))
def test_between_the_bound_and_best_fit(problem: Problem) -> None:
    plan = solve_problem(problem, "mip")
    assert verify(plan) == []
    assert plan.proved_optimal
    assert lower_bound(problem) <= plan.lower_bound == plan.peak == brute_force(problem)
    assert plan.peak <= solve_problem(problem, "bestfit").peak


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_bound_that_only_the_solver_knows(solver: str) -> None:
    plan = solve_problem(ASKEW, "mip", Options(mip_solver=solver, threads=2))
    assert lower_bound(ASKEW) == 3
    assert (plan.peak, plan.lower_bound, plan.status) == (5, 5, "optimal")
    assert plan.provenance.note == f"{solver}, 3 pairs: solved"


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_does_not_fit_is_proved(solver: str) -> None:
    with pytest.raises(InfeasibleError, match="every plan needs at least 5 bytes"):
        solve_problem(ASKEW, "mip", Options(mip_solver=solver, capacity=4))
    plan = solve_problem(ASKEW, "mip", Options(mip_solver=solver, capacity=5))
    assert plan.peak == 5


def test_heuristics_that_reach_the_bound_ask_no_solver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pulp", None)
    plan = solve_problem(Problem.of([0, 1], [2, 3], [4, 4]), "mip")
    assert plan.proved_optimal
    assert plan.provenance.note == "heuristics were enough, no solver was asked"
    assert len(solve_problem(Problem.of([], [], []), "mip").offsets) == 0


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_time_limit_is_no_proof(solver: str) -> None:
    """A known optimum, too hard to find: the bound stays below, the peak above."""
    problem = puzzle(60, height=100_000)
    program = mip.build(problem, stacked(problem), lower_bound(problem))
    found = offsets_program.run(program, Options(mip_solver=solver, time_limit=0.5))
    assert mip.proved_bytes(program, found) <= 100_000
    if found.offsets is not None:  # it may have had to be killed
        assert problem.peak(mip.restack(problem, program, found.offsets)) > 100_000


def test_no_time_at_all() -> None:
    plan = solve_problem(ASKEW, "mip", Options(time_limit=0.0))
    assert plan.provenance.note == "no time was left for a solver"
    assert plan.peak > plan.lower_bound == 3
    assert plan.status == "feasible"


def test_too_many_pairs_for_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mip, "most_pairs", lambda: 2)
    plan = solve_problem(ASKEW, "mip")
    assert (plan.peak, plan.lower_bound) == (5, 3)
    note = "heuristics alone: 3 buffers make 3 pairs, and the memory of this machine is"
    assert plan.provenance.note.startswith(note)
    with pytest.raises(UsageError, match=r"3 buffers make 3 pairs.*program of 2; take"):
        mip.pairs(ASKEW)


def test_the_memory_allows_some_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mip.most_pairs() > 1000
    monkeypatch.delattr(os, "sysconf")
    assert mip.most_pairs() > 1000


@examples(50, problems(fixed=True))
def test_pairs_by_definition(problem: Problem) -> None:
    length = problem.length or int(problem.upper.max(initial=0))
    alive = [
        {t % length for t in range(a, b if a < b else b + length)}
        for a, b in zip(problem.lower.tolist(), problem.upper.tolist(), strict=True)
    ]
    expected = [
        (i, j)
        for i in range(len(problem))
        for j in range(i + 1, len(problem))
        if alive[i] & alive[j] and min(problem.fixed[i], problem.fixed[j]) < 0
    ]
    first, second = mip.pairs(problem)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("module", "solver", "said"),
    [
        ("highspy", "highs", "HiGHS cannot be loaded"),
        ("pulp", "cbc", "PuLP cannot be loaded"),
    ],
)
def test_a_solver_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, module: str, solver: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    plan = solve_problem(ASKEW, "mip", Options(mip_solver=solver))
    assert_begun_with(plan, said, f"pip install {module}")


def test_cbc_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", "/nowhere/cbc")
    plan = solve_problem(ASKEW, "mip")
    assert_begun_with(plan, "PuLP's CBC is not to be found at /nowhere/cbc")


def assert_begun_with(plan: Plan, *said: str) -> None:
    """The heuristics' plan for ASKEW, and in the note why there is no better one."""
    assert verify(plan) == []
    assert (plan.peak, plan.lower_bound, plan.status) == (5, 3, "feasible")
    note = plan.provenance.note
    assert note.startswith("heuristics alone, for there is no solver: ")
    assert all(text in note for text in said), note


Fake = Callable[[str], None]


@pytest.fixture
def fake_cbc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    """Puts a shell script in the place of CBC."""

    def put(script: str) -> None:
        path = tmp_path / "cbc"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", str(path))

    return put


@pytest.mark.parametrize("says", ["out of memory", ""])
def test_cbc_that_fails(fake_cbc: Fake, says: str) -> None:
    fake_cbc(f"echo '{says}'\nexit 1")
    assert_begun_with(solve_problem(ASKEW, "mip"), repr(says or "nothing"))


def test_cbc_that_does_not_end_is_ended(fake_cbc: Fake, tmp_path: Path) -> None:
    running = tmp_path / "running"
    fake_cbc(f"echo $$ > {running}\nexec sleep 600")
    plan = solve_problem(ASKEW, "mip", Options(time_limit=1.0))
    assert plan.provenance.note == "cbc, 3 pairs: killed when its time was over"
    assert (plan.peak, plan.lower_bound) == (5, 3)
    if number := running.exists() and running.read_text():  # it had begun by then
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)


def test_writing_the_model_takes_of_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = mip.build(ASKEW, stacked(ASKEW), 3)
    path = tmp_path / "model.mps"
    assert offsets_program.write_mps(program, path, time.perf_counter()) is None
    assert not path.exists()
    names = offsets_program.write_mps(program, path, math.inf)
    assert names == ["u", "x0", "x1", "x2", "z0_2", "z1_2"]
    monkeypatch.setattr(offsets_program, "write_mps", lambda *_: None)
    found = offsets_program.run(program, Options(time_limit=9.0))
    assert (found.status, found.offsets) == (
        "no time was left to write the model",
        None,
    )


def test_nothing_is_left_behind_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.chdir(folder)
    assert solve_problem(ASKEW, "mip").peak == 5
    assert list(folder.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_no_solver_outlives_its_caller(tmp_path: Path, number: signal.Signals) -> None:
    """Not even when that is killed; told to end, it puts its folder away, too."""
    code = (
        "import signal\n"
        # A test run under nohup has its children ignore it.
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "from puzzles import puzzle\n"
        "from exact_oracle import stacked\n"
        "from memplan.solving import mip, offsets_program\n"
        "from memplan.solving.options import Options\n"
        "problem = puzzle(60, height=100_000)\n"
        "program = mip.build(problem, stacked(problem), 0)\n"
        "print('ready', flush=True)\n"
        "offsets_program.run(program, Options(time_limit=600.0))\n"
    )
    paths = os.pathsep.join(map(str, (Path(__file__).parent, ROOT)))
    caller = subprocess.Popen(
        [sys.executable, "-c", code],
        # What is killed puts nothing away.
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert caller.stdout is not None
    assert caller.stdout.readline() == b"ready\n"
    children = Path(f"/proc/{caller.pid}/task/{caller.pid}/children")
    if not children.exists():
        caller.kill()
        caller.communicate()
        pytest.skip("needs Linux's /proc")
    while not (found := children.read_text().split()):
        time.sleep(0.02)
    caller.send_signal(number)
    caller.communicate()
    assert caller.returncode == -number
    assert number == signal.SIGKILL or list(tmp_path.iterdir()) == []
    solver = Path(f"/proc/{found[0]}/stat")
    while solver.exists() and solver.read_text().split()[2] not in "ZX":
        time.sleep(0.02)


def test_a_set_that_all_meet_on_a_circle() -> None:
    """No solver is needed to see that these lie one above the other."""
    program = mip.build(TRIANGLE, stacked(TRIANGLE), 10)
    assert program.floor == 15
    plan = solve_problem(TRIANGLE, "mip")
    assert (plan.peak, plan.lower_bound, plan.status) == (15, 15, "optimal")
    with pytest.raises(InfeasibleError, match="at least 15 bytes"):
        solve_problem(TRIANGLE, "mip", Options(capacity=14))


@examples(40, gapped(fixed=True, max_size=6))
def test_gaps_are_used_by_the_heuristics_and_never_make_a_proof(
    problem: Problem,
) -> None:
    plan = solve_problem(problem, "mip", Options(time_limit=10.0))
    assert verify(plan) == []
    assert plan.problem is problem
    if problem.gaps is not None:
        assert plan.lower_bound == lower_bound(problem)
    assert plan.peak <= problem.peak(best_of_six(problem)[0])


def test_a_gap_that_only_heuristics_know_of() -> None:
    """ASKEW, and two buffers of which one lies in the other's gap."""
    problem = Problem.of(
        [0, 0, 0, 3, 4],
        [1, 1, 1, 9, 6],
        [1, 1, 1, 3, 3],
        alignment=[4, 4, 1, 1, 1],
        gaps=Gaps.of([3], [4], [6]),
    )
    plan = solve_problem(problem, "mip")
    assert (plan.peak, plan.lower_bound, plan.status) == (5, 3, "feasible")
    note = "as if there were no gaps: heuristics were enough, no solver was asked"
    assert plan.provenance.note == note
    with pytest.raises(NoPlanError, match="unknown: mip found no plan"):
        solve_problem(problem, "mip", Options(capacity=4))
