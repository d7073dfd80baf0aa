"""Models are small: on one thread they are run fastest, and always alike."""

from __future__ import annotations

import pytest

from tests.chunking.conftest import one_thread

__all__ = ["faster", "one_thread"]


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is compiled counts as faster than the model, also on a busy machine."""
    pytest.importorskip("torch")
    name = "memplan.compiling.bench.seconds"
    monkeypatch.setattr(name, lambda runs, **_: [1.0, 0.5])
