"""Categories, against what torch's own MemTracker finds of the same step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tracking = pytest.importorskip("torch.distributed._tools.mem_tracker")
pytestmark = pytest.mark.torch

import memplan  # noqa: E402
from memplan.reporting.live import Live, live_at  # noqa: E402
from memplan.trace.category import Category  # noqa: E402
from memplan.trace.lives import lives_of  # noqa: E402

Made = tuple[Any, Any, Any]  # a model, its optimizer, its input


def encoder() -> Made:
    """Two layers of attention, and AdamW."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    return model, optimizer, torch.randn(4, 32, 64)


def normalized() -> Made:
    """Layers with buffers, and SGD with momentum."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.BatchNorm1d(256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 64),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    return model, optimizer, torch.randn(512, 64)


def step(model: Any, optimizer: Any, given: Any) -> None:
    """One of training."""
    model(given).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def tracked(make: Callable[[], Made]) -> dict[str, int]:
    """Bytes by kind at the peak of the second step, as MemTracker has them."""
    made = make()
    step(*made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracker = tracking.MemTracker()
        tracker.track_external(*made)
        with tracker:
            step(*made)
    (found,) = tracker.get_tracker_snapshot("peak").values()
    return {str(kind).rpartition(".")[2]: size for kind, size in found.items()}


def recorded(make: Callable[[], Made], path: Path) -> Live:
    """What is live at the peak of the second step, as memplan has it."""
    with memplan.record(path, device="cpu", steps="all"):
        made = make()
        for _ in range(3):
            step(*made)
    return live_at(lives_of(memplan.read_trace(path)), "1")


@pytest.mark.parametrize("make", [encoder, normalized])
def test_mem_tracker_finds_the_same(make: Callable[[], Made], tmp_path: Path) -> None:
    theirs = tracked(make)
    ours = recorded(make, tmp_path / "t.parquet")
    kinds = ours.categories
    assert ours.bytes == theirs["Total"]
    held = theirs["PARAM"] + theirs.get("BUFFER", 0)
    assert kinds[Category.PARAMETERS] == held
    assert kinds[Category.OPTIMIZER_STATE] == theirs["OPT"]
    assert kinds[Category.INPUTS] == theirs["OTH"]
    # A block that becomes a gradient is one from its start here, and there temporary
    # until it has; a gradient of the loss is activation there, and temporary here.
    passing = (Category.GRADIENTS, Category.ACTIVATIONS, Category.TEMPORARIES)
    rest = sum(theirs.get(name, 0) for name in ("GRAD", "ACT", "TEMP"))
    assert sum(kinds[category] for category in passing) == rest
    assert kinds[Category.GRADIENTS] >= theirs.get("GRAD", 0)
    assert kinds[Category.ACTIVATIONS] <= theirs["ACT"]
