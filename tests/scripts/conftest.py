"""The scripts folder is where scripts find what they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module", autouse=True)
def scripts_on_path() -> Iterator[Path]:
    """As if a script were running: its folder is on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield SCRIPTS
