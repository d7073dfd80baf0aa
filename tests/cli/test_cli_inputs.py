"""Files that cannot be read end every command with 3, and one line."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memplan import files
from tests.cli.conftest import Command
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


def nothing(path: Path) -> None:
    pass


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_in_a_circle(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [nothing, folder, pipe, link_in_a_circle])
@pytest.mark.parametrize("arguments", [*READING, *RUNNING], ids=IDS)
def test_what_is_no_file(
    command: Command,
    tmp_path: Path,
    arguments: list[str],
    make: Callable[[Path], None],
) -> None:
    if "factory" in str(arguments):
        pytest.importorskip("torch")
    name = file_in(arguments)
    make(tmp_path / name)
    said = command(*arguments)
    assert said.code == 3
    assert said.err.startswith(f"memplan: {name}")
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.fixture
def shut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a file that must not be read, even where root runs the tests."""

    def make(name: str) -> None:
        path = tmp_path / name
        path.write_bytes(b"{}")
        path.chmod(0)
        real, may = open, os.access

        def refuse(file: Any, *rest: Any, **options: Any) -> Any:
            if str(file).endswith(name):
                raise PermissionError(errno.EACCES, "Permission denied", file)
            return real(file, *rest, **options)

        monkeypatch.setattr(files, "open", refuse, raising=False)
        monkeypatch.setattr(
            os, "access", lambda p, m: not str(p).endswith(name) and may(p, m)
        )

    return make


@pytest.mark.parametrize("arguments", [*READING, *RUNNING[:2]], ids=IDS)
def test_what_may_not_be_read(
    command: Command, shut: Callable[[str], None], arguments: list[str]
) -> None:
    name = file_in(arguments)
    shut(name)
    said = command(*arguments)
    assert said.code == 3
    assert said.err.startswith(f"memplan: {name}: cannot be read")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (MemoryError, "not enough memory to read it; use a smaller file"),
        (RecursionError, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("arguments", READING, ids=IDS)
def test_what_is_too_much_to_read(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    raised: type[Exception],
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


def test_memory_that_runs_out_later_is_told_in_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("memplan.cli.solve.solve", greedy)
    said = command("solve", "p.csv", "-o", "x.json")
    assert said.code == 3
    assert said.err.startswith("memplan: not enough memory")
    assert said.err.count("\n") == 1


def test_a_recursion_of_our_own_is_an_internal_error(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_: object, **__: object) -> None:
        raise RecursionError

    monkeypatch.setattr("memplan.cli.solve.solve", endless)
    said = command("solve", "p.csv", "-o", "x.json")
    assert said.code == 70
    assert "internal error: RecursionError" in said.err
