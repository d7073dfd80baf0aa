"""Models are small: on one thread they are run fastest, and always alike."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """The tensors are too small to share out, and the search goes by constants that are
    the same everywhere."""
    torch = pytest.importorskip("torch")
    from torch.export import exported_program

    from memplan.chunking.timing import Machine

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memplan.chunking.chunk.calibrated", lambda device: Machine())
        # Every export lists torch's operators, which takes longer than a small model.
        listed = functools.cache(exported_program._collect_all_valid_cia_ops)
        patch.setattr(exported_program, "_collect_all_valid_cia_ops", listed)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def seeded(one_thread: None) -> None:
    """Random numbers are the same in each test."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="package")
def attention(one_thread: None) -> tuple[Any, Any, Any]:
    """A model, its input, and the model in chunks at 30 %; change none of them."""
    import memplan
    from tests.chunking import models

    model, x = models.attention()
    options = memplan.ChunkOptions(max_slowdown=None)
    return model, x, memplan.chunk(model, x, "30%", options=options)
