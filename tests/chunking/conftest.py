"""Models are small: on one thread they are run fastest, and always alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors are too small to share out."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search goes by constants that are the same everywhere."""
    from memplan.chunking.timing import Machine

    monkeypatch.setattr("memplan.chunking.chunk.calibrated", lambda device: Machine())
