"""Launchers: memplan runs in the processes that they start."""

from __future__ import annotations

from pathlib import Path

import pytest

from memplan.recording.target import Target, through_launcher
from tests.conftest import Run

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RUN = "torch.distributed.run"
WORDS = ("record", "--steps", "auto")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "--nproc-per-node 2 s.py --x 1",
            "--nproc-per-node 2 -m memplan {} s.py --x 1",
        ),
        ("--standalone -m pkg.train -m", "--standalone -m memplan {} -m pkg.train -m"),
        ("s.py s.py s.py", "-m memplan {} s.py s.py s.py"),
    ],
)
def test_the_launcher_starts_memplan(given: str, told: str) -> None:
    found = through_launcher(Target(RUN, tuple(given.split()), True), WORDS)
    assert found is not None
    assert (found.name, found.is_module) == (RUN, True)
    assert " ".join(found.arguments) == told.format(" ".join(WORDS))


@pytest.mark.parametrize(
    "target",
    [
        Target("train.py", ("--nproc-per-node", "2", "s.py")),
        Target("pkg.train", ("s.py",), True),
        Target(RUN, (), True),
        Target(RUN, ("--no-such-option", "s.py"), True),
        Target(RUN, ("--no-python", "s.sh"), True),
        Target("accelerate", ("config",)),
    ],
)
def test_what_starts_no_script_is_left_as_it_is(target: Target) -> None:
    assert through_launcher(target, WORDS) is None


def test_a_process_that_only_starts_others_is_told_of(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "start.py").write_text(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import torch; torch.ones(9)'])\n"
    )
    done = memplan("record", "-o", "t.parquet", "start.py")
    assert done.returncode == 0
    assert "t.parquet is empty" in done.stderr
    assert "python -m memplan record -o FILE SCRIPT" in done.stderr
