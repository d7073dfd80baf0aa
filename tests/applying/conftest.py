"""Programs that several tests apply plans to, recorded and planned once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TRAINING, environment
from tests.warm import WarmProcess


@pytest.fixture(scope="session")
def plan_of(
    tmp_path_factory: pytest.TempPathFactory, warm: WarmProcess
) -> Callable[..., Path]:
    """The plan file of a program, run with these arguments; made once for each."""
    made: dict[tuple[str, ...], Path] = {}

    def plan(source: str, *arguments: str) -> Path:
        key = (source, *arguments)
        if key not in made:
            folder = tmp_path_factory.mktemp("planned")
            (folder / "program.py").write_text(source)
            record = ["record", "-q", "-o", "t.parquet", "program.py", *arguments]
            solve = ["solve", "t.parquet", "-o", "p.json"]
            for command in (record, solve):
                words = ["-m", "memplan", *command]
                warm.run(words, folder, environment()).check_returncode()
            made[key] = folder / "p.json"
        return made[key]

    return plan


@pytest.fixture
def planned(training: Path, plan_of: Callable[..., Path]) -> Path:
    """The training script, as program.py beside its plan, p.json."""
    shutil.copy(plan_of(TRAINING), training.parent)
    return training.rename(training.parent / "program.py")
