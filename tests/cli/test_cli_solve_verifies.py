"""A plan that does not verify does not leave the house."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from memplan import cli
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.solving import bestfit


def test_an_unsound_plan_is_a_failure_of_ours_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unsound(problem: Problem, *_: object) -> Plan:
        return Plan.of(problem, np.zeros(len(problem), dtype=np.int64), "bestfit")

    (tmp_path / "p.csv").write_text("id,lower,upper,size\na,0,9,64\nb,0,9,64\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bestfit, "solve", unsound)
    monkeypatch.setattr(
        sys, "argv", ["memplan", *["solve", "p.csv", "--method"], "bestfit"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 70
    assert "does not verify: buffers a and b are both alive" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]
