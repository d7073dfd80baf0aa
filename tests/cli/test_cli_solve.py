"""`memplan solve` and `memplan convert`: every option, every answer, every mistake."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memplan.blocking.search.result import SearchProgress
from memplan.cli import progress as progress_module
from memplan.cli.blocking.meanings import searching
from memplan.cli.progress import describe, progress_line
from memplan.core.plan import Plan
from memplan.core.planfile import read_plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.solving import bestfit
from memplan.solving.options import Progress
from memplan.trace.importers.minimalloc import read_minimalloc
from tests.conftest import ROOT, Run

# Never more than 8 bytes are alive.
SMALL = "id,lower,upper,size\na,0,4,3\nb,2,6,3\nc,4,8,4\nd,0,2,4\ne,6,9,4\n"


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """A small problem in the folder where commands run."""
    path = tmp_path / "p.csv"
    path.write_text(SMALL)
    return path


@pytest.fixture
def hard(tmp_path: Path) -> Path:
    """A problem that keeps every method busy for a while."""
    rng = random.Random(1)
    lines = ["id,lower,upper,size"]
    for i in range(700):
        lower = rng.randrange(2000)
        lines.append(
            f"{i},{lower},{lower + rng.randrange(1, 500)},{rng.randrange(1, 9999)}"
        )
    path = tmp_path / "hard.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "method", ["auto", "bestfit", "search", "ejection", "exact", "mip"]
)
def test_every_method_writes_a_plan(memplan: Run, csv: Path, method: str) -> None:
    done = memplan("solve", "p.csv", "--method", method, "-o", "x.json", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["method"] == method
    assert said["seed"] == 0
    assert said["seconds"] > 0
    assert said["status"] in ("optimal", "feasible")
    plan = read_plan(csv.with_name("x.json"))
    assert verify(plan) == []
    assert plan.peak == said["peak"] >= said["lower_bound"]
    assert done.stderr.count("\n") <= 1


def test_options_reach_the_method(memplan: Run, csv: Path) -> None:
    done = memplan(
        *("solve", "p.csv", "--method", "search", "--seed", "9", "--threads", "2"),
        *("--time-limit", "0.1", "--alignment", "8", "-o", "x.json", "--json"),
    )
    assert done.returncode == 0, done.stderr
    plan = read_plan(csv.with_name("x.json"))
    assert (plan.provenance.seed, json.loads(done.stdout)["seed"]) == (9, 9)
    assert set(plan.problem.alignment.tolist()) == {8}


def test_it_fits(memplan: Run, csv: Path) -> None:
    done = memplan("solve", "p.csv", "--capacity", "1KiB", "--json")
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert said["peak"] <= 1024
    assert (said["plan"], said["capacity_of"], said["outside_bytes"]) == (
        *(None, "arena"),
        0,
    )
    assert not csv.with_name("p.plan.json").exists()
    done = memplan("solve", "p.csv", "--capacity", "1KiB")
    assert "no plan was written; -o FILE writes it" in done.stdout
    assert not csv.with_name("p.plan.json").exists()
    done = memplan("solve", "p.csv", "--capacity", "1KiB", "-o", "p.plan.json")
    assert "not written" not in done.stdout
    assert read_plan(csv.with_name("p.plan.json")).peak <= 1024


def test_it_does_not_fit_and_that_is_proved(memplan: Run, csv: Path) -> None:
    done = memplan("solve", "p.csv", "--capacity", "6", "--json")
    assert done.returncode == 4
    said = json.loads(done.stdout)
    assert said["status"] == "infeasible"
    assert (said["plan"], said["peak"], said["capacity"]) == (None, None, 6)
    assert said["lower_bound"] == 8
    assert "memplan: does not fit: it is proved that every plan" in done.stderr
    assert not csv.with_name("p.plan.json").exists()


def test_it_is_unknown_whether_it_fits(memplan: Run, hard: Path) -> None:
    bound = json.loads(
        memplan("solve", "hard.csv", "--method", "bestfit", "--json").stdout
    )
    tight = str(bound["lower_bound"])
    done = memplan(
        *("solve", "hard.csv", "--method", "bestfit", "--capacity", tight),
        *("--json", "--force"),
    )
    assert done.returncode == 4
    said = json.loads(done.stdout)
    assert said["status"] == "unknown"
    assert said["peak"] > said["capacity"] == said["lower_bound"]
    assert "memplan: unknown: bestfit found no plan within" in done.stderr
    quiet = memplan(
        *("solve", "hard.csv", "--method", "bestfit", "--capacity", tight),
        "--force",
    )
    assert (quiet.returncode, quiet.stdout) == (4, "")


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`memplan solve hard.csv ARGUMENTS`, under way."""
    return subprocess.Popen(
        [sys.executable, "-m", "memplan", "solve", "hard.csv", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupt(folder: Path, method: str, after: float, number: int) -> None:
    """A solve that is interrupted leaves a plan that verifies, or none."""
    plan = folder / "x.json"
    plan.unlink(missing_ok=True)
    process = started(folder, "--method", method, "-o", "x.json")
    time.sleep(after)
    process.send_signal(number)
    _, said = process.communicate(timeout=600)
    if number == signal.SIGINT:
        # Before main() begins and after it ends, Python itself dies of the signal.
        begins = ("Fatal Python error: init_import_site", "Could not import runpy")
        not_begun = any(text in said for text in begins)
        assert process.returncode in (0, 130, -signal.SIGINT) or not_begun, said
        assert "internal error" not in said
        assert process.returncode != 0 or plan.exists()
    if plan.exists():
        assert verify(read_plan(plan)) == []
    if number == signal.SIGINT and process.returncode != -signal.SIGINT:
        assert list(folder.glob(".x.json.*")) == []


METHODS = ("auto", "search", "exact", "bestfit", "mip")


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("method", METHODS)
def test_interrupted_at_many_moments(
    hard: Path, method: str, number: signal.Signals
) -> None:
    moments = random.Random(f"{method} {number}")
    for _ in range(20):
        interrupt(hard.parent, method, moments.uniform(0.02, 1.5), number)


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has had, its threads' together."""
    fields = (
        Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")")[1].split()
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_interrupt_is_told(hard: Path) -> None:
    process = started(
        hard.parent, "--method", "search", "--time-limit", "3600", "--json"
    )
    # Seconds of its own, however busy the machine is: it is searching by then.
    while process.poll() is None and cpu_seconds(process.pid) < 2.0:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert json.loads(out)["status"] == "feasible"
    assert said.strip().endswith("interrupted")


@pytest.mark.parametrize(
    ("line", "progress", "shown"),
    [
        (progress_line, Progress(2048, 1024, 77, 1.5), "77 tried"),
        (searching, SearchProgress(2.5e9, 77, 1.5), "2.5 mJ, 77 tried, 1.5 s"),
    ],
)
def test_progress_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, line: Any, progress: Any, shown: str
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(progress_module.sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with line("search") as report:
        report(progress)
        while shown not in terminal.getvalue():
            time.sleep(0.01)


def test_progress_in_words() -> None:
    found = describe(Progress(2048, 1024, 7777, 1.25))
    assert found == (
        "peak 2.0 KiB, lower bound 1.0 KiB, gap 100.00 %, 7,777 tried, 1.2 s; "
        "Ctrl-C keeps the best"
    )
    assert describe(Progress(None, 0, 0, 0.0)).startswith("lower bound 0 B, 0 tried")


def test_convert_a_plan_and_read_it_back(memplan: Run, csv: Path) -> None:
    assert memplan("solve", "p.csv", "-o", "x.json").returncode == 0
    done = memplan("convert", "x.json", "back.csv")
    assert done.returncode == 0, done.stderr
    assert "wrote 5 buffers to back.csv" in done.stderr
    back = read_minimalloc(csv.with_name("back.csv"))
    plan = read_plan(csv.with_name("x.json"))
    assert back.fixed.tolist() == plan.offsets.tolist()
    assert back.labels == ("a", "b", "c", "d", "e")


def test_convert_a_trace(memplan: Run, training: Path) -> None:
    pytest.importorskip("torch")
    done = memplan("record", "-q", "-o", "t.parquet", "train.py", "6")
    assert done.returncode == 0
    done = memplan("convert", "t.parquet", "t.csv", "--step", "all")
    assert done.returncode == 0, done.stderr
    assert len(read_minimalloc(training.with_name("t.csv"))) > 50
    done = memplan("convert", "t.parquet", "hot.csv")
    assert done.returncode == 3
    assert "wraps around the end of the step" in done.stderr


def test_a_plan_that_does_not_verify_is_not_written(
    memplan: Run, csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsound(problem: Problem, *_: object) -> Plan:
        return Plan.of(problem, np.zeros(len(problem), dtype=np.int64), "bestfit")

    monkeypatch.setattr(bestfit, "solve", unsound)
    done = memplan("solve", "p.csv", "--method", "bestfit")
    assert done.returncode == 70
    assert "does not verify: buffers a and d are both alive" in done.stderr
    assert not csv.with_name("p.plan.json").exists()
