"""The command line, run where its tests run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memplan.blocking.design.network import NETWORKS
from memplan.blocking.nest.layer import Layer, fully_connected
from tests.conftest import ROOT, Command, Run, Said

Blocking = Callable[..., Said]
OnModel = Callable[[str, str], Command]


@pytest.fixture
def blocking(command: Command) -> Blocking:
    """Runs `memplan blocking ARGS`, likewise."""
    return lambda *arguments: command("blocking", *arguments)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a network of two small layers."""
    layers = (Layer("one", 4, 4, 3, 8, 3, 3), fully_connected("two", 24, 10, 4))
    monkeypatch.setitem(NETWORKS, "tiny", layers)  # type: ignore[arg-type]
    return "tiny"


@pytest.fixture
def memplan(memplan: Run, command: Command) -> Run:
    """Runs `memplan ARGS` in an empty folder: in this process, unless it runs a
    program of the user's."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        if {"record", "apply"} & {*arguments}:
            return memplan(*arguments)
        said = command(*arguments)
        return subprocess.CompletedProcess(arguments, said.code, said.out, said.err)

    return run


@pytest.fixture
def on_model(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OnModel]:
    """Of a command and a program: runs the command in a folder with it as m.py."""
    import torch

    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delitem(sys.modules, "m", raising=False)

    def make(name: str, program: str) -> Command:
        (tmp_path / "m.py").write_text(program)
        return lambda *arguments: command(name, *arguments)

    threads = torch.get_num_threads()
    yield make
    torch.set_num_threads(threads)
