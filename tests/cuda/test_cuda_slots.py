"""Finding the functions of torch's CUDA allocator, and standing in for some of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from memplan.applying.cuda_library import Library
from memplan.errors import EnvironmentUnfitError
from memplan.recording import cuda_library
from memplan.recording.cuda_library import is_known, library_path, take_slots
from tests.cuda.cuda_world import FakeTorch, World


@pytest.mark.parametrize("layout", [1, 2])
def test_functions_are_found_wherever_they_lie(
    world_of: Callable[..., World], layout: int
) -> None:
    world = world_of(f"-DLAYOUT={layout}")
    world.plan([(512, 0)], 4096)
    planned = world.take(512)
    side = world.stream()
    world.record_stream(planned, side)
    world.check(side, planned, 512, 0)
    world.release(planned)
    assert world.stats()["pending_blocks"] == 1  # so it was told of the other stream
    assert world.begin_pool()
    outside = world.take(512)
    assert world.stats()["in_pools"] == 1
    world.end_pool()
    world.release(outside)
    world.assert_no_leak()


def test_until_then_torch_is_asked_as_ever(world_of: Callable[..., World]) -> None:
    world = world_of(taken=False)
    before = world.native.check(world.torchs)
    assert (before, world.native.slots()) == ("", 0)
    assert world.native.install() == "its allocator was not looked for yet"
    assert world.native.prepare(world.torchs) == ""
    assert world.native.slots() > 20
    assert "recordStream was not found" in world.native.install()
    assert not world.native.installed()
    world.native.watch(2)
    world.release(world.take(1000))
    assert world.native.stop_watching() == 1
    world.release(world.take(1000))
    assert world.torch_counts()["requests"] == 2
    assert world.torch_counts()["same_type"] == 1  # C++ can still tell its class
    assert world.stats() == {}


def test_another_allocator_is_refused_by_its_name(
    world_of: Callable[..., World],
) -> None:
    world = world_of("-DANOTHER", taken=False)
    fault = world.native.check(world.torchs)
    assert "not the native one but N3c10" in fault
    assert "AnotherAllocator" in fault
    with pytest.raises(EnvironmentUnfitError, match=r"does not know: .*AnotherAlloc"):
        take_slots(world.native, FakeTorch(world))
    world.release(world.take(100))


def test_a_library_that_is_not_torchs_is_refused(world: World, tmp_path: Path) -> None:
    library = Library(library_path())
    assert "is not loaded" in library.check(tmp_path / "libc10_cuda.so")
    assert "CUDACachingAllocator::allocator is missing" in library.check(library.path)


def test_functions_that_are_not_called_are_missed(
    world_of: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(taken=False)
    torch = FakeTorch(world)
    monkeypatch.setattr(FakeTorch, "_cuda_endAllocateToPool", lambda *_: None)
    monkeypatch.setattr(FakeTorch, "_cuda_beginAllocateToPool", lambda *_: None)
    with pytest.raises(EnvironmentUnfitError, match="its beginAllocateToPool was not"):
        take_slots(world.native, torch)
    world.release(world.take(100))
    assert world.torch_counts()["live"] == 0


def test_functions_that_do_the_same_are_not_told_apart(
    world_of: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(taken=False)
    torch = FakeTorch(world)
    monkeypatch.setattr(
        torch, "_cuda_endAllocateToPool", torch._cuda_beginAllocateToPool
    )
    with pytest.raises(EnvironmentUnfitError, match="through the same function"):
        take_slots(world.native, torch)


@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        (3, "a request does not pass through the first function"),
        (4, "what its allocate returns is larger than a c10::DataPtr"),
        (5, "what its allocate returns is no c10::DataPtr of CUDA's"),
    ],
)
def test_an_unknown_binary_interface_is_refused(
    world_of: Callable[..., World], layout: int, fault: str
) -> None:
    world = world_of(f"-DLAYOUT={layout}", taken=False)
    with pytest.raises(EnvironmentUnfitError, match=rf"does not know: {fault}; nothin"):
        take_slots(world.native, FakeTorch(world))
    assert not world.native.installed()
    block = world.take(512)  # and torch goes on
    assert not world.native.holds(block)
    world.release(block)


def test_a_torch_without_pools_is_refused(world_of: Callable[..., World]) -> None:
    world = world_of(taken=False)
    torch = FakeTorch(world)
    torch._C = SimpleNamespace()
    with pytest.raises(EnvironmentUnfitError, match="no functions for memory pools"):
        take_slots(world.native, torch)


def test_releases_that_were_looked_at_are_known() -> None:
    assert is_known("2.14.1+cu130")
    assert is_known("2.11.0")
    assert not is_known("2.1.0")
    assert not is_known("3.0")


def test_another_release_is_tried_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.delenv("LD_PRELOAD", raising=False)  # a sanitizer's, which ends sh
    assert "could not start" in cuda_library.try_elsewhere()
    for text, fault in (
        ("exit 0", ""),
        ("echo no such slot >&2; exit 3", "ended with 3 (no such slot)"),
        ("kill -KILL $$", "ended with -9 (no output)"),
    ):
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        found = cuda_library.try_elsewhere()
        assert found == (fault and f"a trial run {fault}")
