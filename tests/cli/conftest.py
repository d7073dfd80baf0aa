"""The command line, run where its tests run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Command, Said

Blocking = Callable[..., Said]


@pytest.fixture
def blocking(command: Command) -> Blocking:
    """Runs `memplan blocking ARGS`, likewise."""
    return lambda *arguments: command("blocking", *arguments)
