"""Each benchmark suite runs end to end on its smallest case."""

from __future__ import annotations

import importlib
import json
import shlex
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

# The smallest case of each suite, with options that make it smaller still.
SMALLEST = {
    "apply": "--cases gan --tiny",
    "record": "--cases perceptron --divide 100",
    "solve": "--cases infer_resnet50 --limit 1 --contenders none",
    "emitted": "--cases 300,20,9,9 --contenders conv2d",
    "budget": "--cases gpt2 --steps 8 --ways block:1",
    "fuse": "--cases stack:1 --batch 1 --contenders memplan",
    "order": "--cases 'random 50'",
    "compile": "--cases squeezenet1_1 --contenders 'one arena'",
}
LONG = ("apply", "budget", "compile", "fuse", "order")
# Whose programs or machines are not there: only that their cases are well formed.
ELSEWHERE = ("gpu", "zigzag")


def test_every_suite_is_tried_here() -> None:
    from benchmark import suites

    assert {*suites()} == {*SMALLEST, *ELSEWHERE, "chunk"}
    for name in ELSEWHERE:
        assert importlib.import_module(f"bench.{name}").SUITE.cases


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.soak] if name in LONG else [])
        for name in SMALLEST
    ],
)
def test_a_suite_prints_a_table_and_keeps_its_records(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.runner import run_suite

    file = tmp_path / "runs.jsonl"
    words = [*shlex.split(SMALLEST[name]), "--repeats", "1", "--warmups", "0"]
    suite = importlib.import_module(f"bench.{name}").SUITE
    assert run_suite(suite, [*words, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    record = json.loads(file.read_text())
    assert f"| {record['base']} |" in shown
    assert f"torch {torch.__version__}" in shown or name == "solve"
    for metric in suite.metrics:
        assert metric.title in shown
    assert record["failed"] == {}
    assert all(len(runs) == 1 for runs in record["figures"].values())
    # What the file has is not measured again.
    assert run_suite(suite, [*words, "--json", str(file)]) == 0
    assert f"| {record['base']} |" in capsys.readouterr().out
