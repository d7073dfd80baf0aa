"""Files that cannot be read end every command with 3, and one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command, Said
from tests.cli.samples import LAYER, STRING, write_all

EVALUATE = ["blocking", "evaluate", "--layer", LAYER, "--string", STRING]
SIMULATE = ["blocking", "simulate", "--layer", LAYER, "--string", STRING]
# What each reads; X stands for the file.
READING = [
    ["solve", "X.csv"],
    ["solve", "X.parquet"],
    ["solve", "X.json"],
    ["verify", "X.json"],
    ["verify", "p.json", "X.csv"],
    ["convert", "X.csv", "x.csv"],
    ["plot", "X.json", "-o", "x.png"],
    ["recover", "X.journal", "-o", "x.json"],
    ["apply", "X.json", "s.py"],
    [*EVALUATE, "--memory", "X.toml"],
    ["blocking", "optimize", "--layer", LAYER, "--memory", "X.toml"],
    ["blocking", "network", "alexnet", "--memory", "X.toml"],
    [*SIMULATE, "--cache", "X.toml"],
    ["chunk", "m.py:factory", "--plan", "X.json"],
]
RUNNING = [
    ["record", "X.py"],
    ["apply", "p.json", "X.py"],
    ["blocking", "optimize", "--layer", "X.py:factory"],
    ["chunk", "X.py:factory", "--budget", "20%"],
]
IDS = " ".join


@pytest.fixture(autouse=True)
def samples(tmp_path: Path) -> None:
    write_all(tmp_path)


def file_in(arguments: list[str]) -> str:
    return next(word for word in arguments if word[:2] == "X.").split(":")[0]


@pytest.mark.parametrize("arguments", [*READING, *RUNNING], ids=IDS)
def test_what_is_missing(command: Command, arguments: list[str]) -> None:
    if "factory" in str(arguments):
        pytest.importorskip("torch")
    refused(command(*arguments), file_in(arguments))


def refused(said: Said, name: str) -> None:
    assert said.code == 3
    assert said.err.startswith(f"memplan: {name}")
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (MemoryError, 3, "memplan: not enough memory"),
        (RecursionError, 70, "memplan: internal error: RecursionError"),
    ],
)
def test_what_goes_wrong_later_is_told_in_one_line(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    raised: type[Exception],
    code: int,
    message: str,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("memplan.cli.solve.solve", failing)
    said = command("solve", "p.csv", "-o", "x.json")
    assert said.code == code
    assert said.err.startswith(message)
    assert said.err.count("\n") == 1
