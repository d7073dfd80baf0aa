"""The fake torch on the fake runtime, compiled once, and a world for each test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memplan.recording.cuda_library import library_path, take_slots
from tests.compiled import compiled, session_folder
from tests.cuda.cuda_world import FakeTorch, World

HERE = Path(__file__).parent
SOURCES = [HERE / name for name in ("fake_torch.cpp", "fake_cudart.cpp", "soak.cpp")]


@pytest.fixture(scope="session")
def fake_torchs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The library that stands for libc10_cuda, by its flags; skips where there is no
    compiler."""
    made: dict[tuple[str, ...], Path] = {}
    objects = session_folder(tmp_path_factory)

    def library_of(*flags: str) -> Path:
        if flags not in made:
            folder = tmp_path_factory.mktemp("torch")
            library = folder / "libc10_cuda.so"
            made[flags] = compiled(library, objects, SOURCES, flags)
        return made[flags]

    return library_of


@pytest.fixture
def world_of(fake_torchs: Callable[..., Path], tmp_path: Path) -> Callable[..., World]:
    """Makes a World; copies of the libraries have a state of their own each."""

    def make(*flags: str, taken: bool = True) -> World:
        folder = Path(tempfile.mkdtemp(dir=tmp_path)) / "lib"
        folder.mkdir()
        own = shutil.copy(library_path(), folder / "libmemplan_cuda.so")
        torchs = shutil.copy(fake_torchs(*flags), folder / "libc10_cuda.so")
        # Where torch has the allocator whose functions have names.
        (folder / "libtorch_cuda.so").symlink_to(torchs)
        world = World(Path(own), Path(torchs))
        if taken:
            take_slots(world.native, FakeTorch(world))
        return world

    return make


@pytest.fixture
def world(world_of: Callable[..., World]) -> Iterator[World]:
    """A fake torch in which memplan's library stands, and leaks nothing."""
    made = world_of()
    yield made
    made.assert_no_leak()
