"""The command line, run where its tests run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from memplan.blocking.design.network import NETWORKS
from memplan.blocking.nest.layer import Layer, fully_connected
from tests.conftest import Command, Run, Said

Blocking = Callable[..., Said]


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
