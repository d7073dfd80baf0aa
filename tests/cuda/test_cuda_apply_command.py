"""`memplan apply` for CUDA: which GPU a plan is for, and what is said of arenas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from memplan.applying.cuda_library import COUNTERS
from memplan.applying.report import make_report
from memplan.cli import cli
from memplan.cli.apply_report import show_report
from memplan.core.plan import Plan, Requests
from memplan.core.planfile import write_plan
from memplan.core.problem import Problem
from memplan.recording.usage import StepClock

pytest.importorskip("torch")


def small_plan(device: str) -> Plan:
    """Of one buffer, for a program of one request."""
    problem = Problem.of([0], [1], [1024], alignment=512, length=2, rounding=512)
    plan = Plan.of(problem, np.zeros(1, dtype=np.int64), "best-fit")
    plan = plan.coming_from(device=device)
    requests = Requests((0,), np.array([1024]), np.array([0]))
    return replace(plan, hot=replace(plan.hot, requests=requests))


@pytest.mark.parametrize(
    ("device", "options", "message"),
    [
        ("cpu", ["1"], "p.json is for the CPU: leave out --device"),
        ("cuda", ["one"], "--device one: give the index of PLAN's GPU once, or"),
        ("cuda", ["0", "1"], "--device 1: give the index"),
        ("cuda", ["1:"], "--device 1:: give the index"),
        ("cuda", ["1:none.json"], "none.json"),
        ("cuda", ["1:q.json", "1"], "2 plans are for device 1, stream 0: give one"),
        ("cuda", ["0:q.json", "1:q.json"], "2 plans are for device 0, stream 0"),
    ],
)
def test_which_gpu_a_plan_is_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(small_plan(device), tmp_path / "p.json")
    write_plan(small_plan("cuda"), tmp_path / "q.json")
    (tmp_path / "train.py").write_text("raise SystemExit(0)")
    words = [word for option in options for word in ("--device", option)]
    done = CliRunner().invoke(cli, ["apply", *words, "p.json", "train.py"])
    assert done.exit_code != 0
    assert message in str(done.exception) + done.output


@pytest.mark.parametrize(
    ("stats", "said"),
    [
        ({"requests": 5}, "no arena the program never made the planned requests"),
        (
            {"requests": 5, "arenas_refused": 1},
            "no arena torch had no memory for it, once",
        ),
        (
            {"requests": 5, "arenas_deferred": 2},
            "no arena torch would have reserved more with it",
        ),
        (
            {"requests": 5, "arenas_deferred": 2, "arena_bytes_peak": 512},
            "deferred 2 times: torch would have reserved more with it then",
        ),
        (
            {"requests": 5, "arenas_refused": 3, "arena_bytes_peak": 512},
            "torch had no memory for it, 3 times",
        ),
        (
            {"requests": 5, "arena_bytes_peak": 512, "arenas_given_back": 3},
            "released 3 times: no memory, empty_cache(), or torch needed it",
        ),
    ],
)
def test_what_became_of_the_arena_is_said(
    capsys: pytest.CaptureFixture[str], stats: dict[str, int], said: str
) -> None:
    none = dict.fromkeys(COUNTERS, 0)
    plan = small_plan("cuda")
    show_report(make_report(plan, none, none, 0, StepClock(), devices={0: stats}))
    assert said in " ".join(capsys.readouterr().err.split())
