"""The command line, run where its tests run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from memplan import cli


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]
Blocking = Callable[..., Said]


@pytest.fixture
def command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Command:
    """Runs `memplan ARGS` in an empty folder, but in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["memplan", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        heard = capfd.readouterr()
        assert isinstance(stop.value.code, int)
        return Said(stop.value.code, heard.out, heard.err)

    return run


@pytest.fixture
def blocking(command: Command) -> Blocking:
    """Runs `memplan blocking ARGS`, likewise."""
    return lambda *arguments: command("blocking", *arguments)
