"""The fake CUDA runtime, compiled once, and an allocator on it for each test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from memplan.applying.cuda import library_path
from tests.compiled import compiled
from tests.cuda.cuda_world import World

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def fake_runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that stands for libcudart; skips where there is no compiler."""
    library = tmp_path_factory.mktemp("cudart") / "libcudart.so"
    return compiled(library, HERE / "fake_cudart.cpp", HERE / "soak.cpp")


@pytest.fixture
def world_of(fake_runtime: Path, tmp_path: Path) -> Callable[..., World]:
    """Makes a World; copies of the libraries have a state of their own each."""

    def make(load: bool = True) -> World:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        allocator = shutil.copy(library_path(), folder / "libmemplan_cuda.so")
        runtime = shutil.copy(fake_runtime, folder / "libcudart.so.12")
        return World(Path(allocator), Path(runtime), load)

    return make


@pytest.fixture
def world(world_of: Callable[..., World]) -> World:
    """An allocator on a fake runtime that it has found."""
    return world_of()
