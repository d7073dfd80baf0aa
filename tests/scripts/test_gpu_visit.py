"""The runs for a GPU that is there for a while, with steps that need none."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "gpu"))

from visit import ROOT, RUNS, SECONDS, Step, Visit


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def begin(output: Path, seconds: float = 600) -> Visit:
    folder = output.parent / "run"
    folder.mkdir()
    return Visit("tests", output, seconds, folder)


def outcomes(output: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((output / "tests.json").read_text())[
        "steps"
    ]
    return found


def test_each_step_leaves_its_command_code_and_lines(output: Path) -> None:
    made = begin(output)
    made.do(Step("good", "python -c 'print(1); print(2)'", to="kept.txt"))
    made.do(Step("same", "diff kept.txt kept.txt"))
    assert made.well
    made.do(Step("bad", "python -c 'import sys; sys.exit(\"no\")'"))
    assert not made.well
    good, same, bad = outcomes(output)
    assert good["command"] == [sys.executable, "-c", "print(1); print(2)"]
    assert (good["code"], good["said"]) == (0, ["1", "2"])
    assert (same["code"], same["said"]) == (0, [])
    assert (bad["code"], bad["said"]) == (1, ["no"])
    log = (output / "tests.log").read_text()
    assert "---- good: ended with 0 after" in log
    assert "\nno\n---- bad: ended with 1 after" in log


@pytest.mark.soak
def test_what_a_step_printed_is_kept_when_its_time_is_over(output: Path) -> None:
    made = begin(output)
    made.do(Step("long", "python -c 'print(7); import time; time.sleep(999)'", 20))
    made.do(Step("next", "python -c 'print(8)'"))
    long, following = outcomes(output)
    assert (long["code"], long["said"]) == (None, ["7"])
    assert following["code"] == 0
    assert "---- long: not done after" in (output / "tests.log").read_text()
    assert not made.well


@pytest.mark.soak
def test_what_a_step_began_ends_with_it(output: Path) -> None:
    made = begin(output)
    program = "import os; made = os.fork(); made and print(made, flush=True); "
    made.do(Step("forks", f'python -c "{program} import time; time.sleep(999)"', 20))
    (forks,) = outcomes(output)
    with contextlib.suppress(ProcessLookupError):
        while True:  # until the system has removed it
            os.kill(int(forks["said"][0]), 0)
            time.sleep(0.01)


def test_nothing_is_begun_without_time(output: Path) -> None:
    made = begin(output, 0.5)
    made.do(Step("late", "python -c 'print(7)'"))
    (late,) = outcomes(output)
    assert (late["code"], late["said"]) == (None, ["there is no time for it"])
    assert not made.well


def test_what_is_not_on_the_machine_is_left_out_and_told(output: Path) -> None:
    made = begin(output)
    made.do(Step("check", "no-such-program x", needs="no-such-program"))
    (check,) = outcomes(output)
    assert (check["code"], check["said"]) == (None, ["there is no no-such-program"])
    assert "---- check: left out after" in (output / "tests.log").read_text()
    assert made.well


def test_a_step_is_told_where_its_figures_go_and_how_long_it_has(output: Path) -> None:
    made = begin(output, 1000)
    made.do(Step("says", "python -c 'import sys; print(sys.argv[1:])' {left} {out}/f"))
    (says,) = outcomes(output)
    seconds, path = says["command"][-2:]
    assert 500 < int(seconds) <= 985
    assert path == f"{output}/f"


def test_all_runs_are_there_within_half_an_hour() -> None:
    assert SECONDS.keys() == RUNS.keys()
    assert max(SECONDS.values()) <= 600
    assert sum(SECONDS.values()) <= 27 * 60  # and some to start a machine
    for steps in RUNS.values():
        assert len({step.name for step in steps}) == len(steps)
        for step in steps:
            for word in step.command.split():
                if word.startswith(("scripts/", "tests/")):
                    assert (ROOT / word).exists()


def test_a_run_without_a_gpu_leaves_its_log(output: Path) -> None:
    """As a whole program: its steps fail or are skipped, and all are in the files."""
    script = ROOT / "scripts" / "gpu" / "visit.py"
    words = ["tests", "--built", "--output", str(output), "--seconds", "4"]
    done = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True
    )
    names = [one["name"] for one in outcomes(output)]
    assert names == ["built", *(step.name for step in RUNS["tests"])] or (
        names == ["built"] and done.returncode == 1
    )
    assert "==== built" in done.stdout
