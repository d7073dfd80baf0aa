"""Files that cannot be read end every command with 3, and one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memplan import files
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


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name)],
    ids=["folder", "pipe", "link in a circle"],
)
@pytest.mark.parametrize("arguments", [*READING[:4], *RUNNING[:1]], ids=IDS)
def test_what_is_no_file(
    command: Command,
    tmp_path: Path,
    arguments: list[str],
    make: Callable[[Path], None],
) -> None:
    make(tmp_path / file_in(arguments))
    refused(command(*arguments), file_in(arguments))


def refused(said: Said, name: str) -> None:
    assert said.code == 3
    assert said.err.startswith(f"memplan: {name}")
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (PermissionError(13, "no"), "cannot be read (no); check the file"),
        (MemoryError(), "not enough memory to read it; use a smaller file"),
        (RecursionError(), "nested too deeply"),
    ],
)
@pytest.mark.parametrize("arguments", READING[1:13:3], ids=IDS)
def test_what_cannot_be_read(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    raised: Exception,
    message: str,
) -> None:
    name = file_in(arguments)
    (tmp_path / name).write_bytes(b"{}")
    real = open

    def bursting(file: Any, *rest: Any, **options: Any) -> Any:
        if str(file).endswith(name):
            raise raised
        return real(file, *rest, **options)

    monkeypatch.setattr(files, "open", bursting, raising=False)
    said = command(*arguments)
    assert said.code == 3
    assert said.err == f"memplan: {name}: {message}\n"


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
