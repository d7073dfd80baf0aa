"""What is compiled for these tests is kept for all of them, away from the user's, and
kernels are not chosen by time."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="module")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for the session, shared by its worker processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "kernels"
    folder.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMPLAN_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="module")
def first_kernel() -> Iterator[None]:
    """Of the kernels that can run a layer, the first by name, which is not oneDNN's if
    there is another."""
    torch = importlib.util.find_spec("torch")
    with pytest.MonkeyPatch.context() as patch:
        if torch is not None:
            patch.setattr("memplan.fusing.decide.fastest", min)
        yield
