"""The main job as a user does it: record, solve, verify, plot, apply."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import memplan as package
from memplan.core.planfile import read_plan, write_plan
from tests.conftest import TRAINING, Run, environment
from tests.plans import changed
from tests.warm import WarmProcess

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, warm: WarmProcess) -> Path:
    """A folder with train.py, its trace and its plan."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(TRAINING)
    for line in ("record -q -o t.parquet train.py 6", "solve t.parquet -o p.json"):
        words = ["-m", "memplan", *line.split()]
        warm.run(words, folder, environment()).check_returncode()
    return folder


@pytest.fixture
def folder(recorded: Path, tmp_path: Path) -> Path:
    """A copy of `recorded` in the folder where commands run."""
    for file in recorded.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path


def test_solve_in_words_names_the_next_step(memplan: Run, folder: Path) -> None:
    done = memplan("solve", "t.parquet")
    assert done.returncode == 0
    for word in ("peak", "lower bound", "gap", "memplan apply t.plan.json train.py"):
        assert word in done.stdout
    assert read_plan(folder / "t.plan.json").provenance.source.name == "t.parquet"


def test_verify_refuses_another_programs_trace(memplan: Run, folder: Path) -> None:
    assert (
        memplan("record", "-q", "-o", "u.json", "train.py", "6", "72").returncode == 0
    )
    done = memplan("verify", "p.json", "u.json")
    assert done.returncode == 1
    assert "made for another trace" in done.stdout
    assert "Traceback" not in done.stderr


def test_verify_names_what_is_wrong(memplan: Run, folder: Path) -> None:
    spoil(folder / "p.json")
    done = memplan("verify", "p.json", "--json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert not said["valid"]
    assert {v["failure"] for v in said["violations"]} >= {"overlap"}
    assert "share the bytes" in said["violations"][0]["message"]


def spoil(path: Path) -> None:
    """Put every buffer at offset 0; the file itself stays sound."""
    plan = read_plan(path)
    write_plan(changed(plan, offsets=np.zeros_like(plan.offsets)), path, force=True)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
@pytest.mark.parametrize("source", ["t.parquet", "p.json"])
def test_plot_draws_traces_and_plans(
    memplan: Run, folder: Path, source: str, suffix: str
) -> None:
    done = memplan("plot", source, "-o", f"picture.{suffix}")
    assert done.returncode == 0, done.stderr
    magic = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert (folder / f"picture.{suffix}").read_bytes().startswith(magic)
    assert memplan("plot", source, "-o", f"picture.{suffix}").returncode == 2


def test_apply_computes_the_same_and_reports(memplan: Run, folder: Path) -> None:
    alone = memplan("record", "-q", "-o", "long.parquet", "train.py", "20")
    done = memplan("apply", "p.json", "--report", "r.json", "train.py", "20")
    assert done.returncode == 0, done.stderr
    assert done.stdout == alone.stdout
    report = json.loads((folder / "r.json").read_text())
    assert report["conflicts"] == report["fallback_requests"] == 0
    assert report["fallback_bytes"] == report["online_requests"] == 0
    assert (
        report["planned_requests"] + report["unplanned_requests"] == report["requests"]
    )
    assert report["unplanned_requests"] <= 20  # the history, one a step
    assert report["steps"] == 20
    assert report["arena_bytes"] >= report["lower_bound_bytes"] > 0
    for name in ("peak_rss_bytes", "step_seconds"):
        assert report[name] > 0
        assert report["recorded"][name] > 0
    assert report["page_faults_per_step"] >= 0
    assert "planned" in done.stderr


def test_apply_passes_the_exit_code_on(memplan: Run, folder: Path) -> None:
    (folder / "train.py").write_text("raise SystemExit(9)")
    assert memplan("apply", "-q", "p.json", "train.py").returncode == 9
    (folder / "train.py").write_text("1 / 0")
    done = memplan("apply", "p.json", "train.py")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_apply_refuses_another_program_before_it_starts(
    memplan: Run, folder: Path
) -> None:
    (folder / "other.py").write_text("print('started')")
    done = memplan("apply", "p.json", "other.py")
    assert done.returncode == 3
    assert "made for train.py, not for other.py" in done.stderr
    assert done.stdout == ""
    # The same program under another name is the same program.
    (folder / "moved.py").write_text(TRAINING)
    assert memplan("apply", "-q", "p.json", "moved.py", "3").returncode == 0


def test_apply_refuses_plans_that_cannot_be_followed(
    memplan: Run, folder: Path
) -> None:
    spoil(folder / "p.json")
    (folder / "problem.csv").write_text("id,lower,upper,size\na,0,1,64\n")
    assert memplan("solve", "problem.csv", "-o", "bare.json").returncode == 0
    tight = ("--alignment", "1", "-o", "tight.json")
    assert memplan("solve", "t.parquet", *tight).returncode == 0
    for plan, why in (
        ("p.json", "does not verify"),
        ("t.parquet", "memplan solve"),
        ("bare.json", "no requests to replay"),
        ("tight.json", "not multiples of 64 bytes"),
    ):
        done = memplan("apply", plan, "train.py")
        assert (done.returncode, done.stdout) == (3, "")
        assert why in done.stderr


def test_the_same_from_python(folder: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    trace = package.read_trace(folder / "t.parquet")
    plan = package.solve(trace)
    assert package.verify(plan) == []
    with package.apply(plan) as loader:
        before = torch.ones(1000)
        package.step()
        after = before * 2
    assert loader.report().steps == 0  # the plan follows the optimizer's steps
    assert float(after.sum()) == 2000.0


def test_an_empty_trace_gives_an_empty_plan_or_a_reason(
    memplan: Run, folder: Path
) -> None:
    (folder / "nothing.py").write_text("import torch")
    assert memplan("record", "-q", "-o", "e.parquet", "nothing.py").returncode == 0
    done = memplan("solve", "e.parquet", "-o", "e.json", "--json")
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert (said["buffers"], said["peak"], said["status"]) == (0, 0, "optimal")
    assert memplan("verify", "e.json", "e.parquet").returncode == 0
    drawn = memplan("plot", "e.json", "-o", "e.png")
    assert drawn.returncode == 3
    assert "nothing to draw" in drawn.stderr
    assert memplan("apply", "-q", "e.json", "nothing.py").returncode == 0


def test_a_program_that_goes_elsewhere_leaves_files_where_they_were_meant_to_be(
    memplan: Run, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (tmp_path / "goes.py").write_text(f"import os\nos.chdir('away')\n{TRAINING}")
    for name in ("t.parquet", "t.parquet.journal", "r.json"):
        (away / name).write_text("somebody else's")
    recorded = memplan("record", "-o", "t.parquet", "goes.py")
    assert recorded.returncode == 0, recorded.stderr
    assert "memplan: recorded t.parquet" in recorded.stderr
    assert memplan("solve", "t.parquet", "--method", "bestfit").returncode == 0
    applied = memplan("apply", "-q", "--report", "r.json", "t.plan.json", "goes.py")
    assert applied.returncode == 0, applied.stderr
    assert json.loads((tmp_path / "r.json").read_text())["planned_requests"]
    assert {path.read_text() for path in away.iterdir()} == {"somebody else's"}
    assert not (tmp_path / "t.parquet.journal").exists()
