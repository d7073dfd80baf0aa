"""`memplan.fuse` and `memplan.chunk`, one around the other."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_alike import FORCED, noise, same  # noqa: E402
from torch import nn  # noqa: E402

from memplan.chunking.chunk import chunk  # noqa: E402
from memplan.chunking.options import ChunkOptions  # noqa: E402
from memplan.compiling import bench  # noqa: E402
from memplan.compiling.fuse import fuse  # noqa: E402
from memplan.compiling.module import Compiled  # noqa: E402
from memplan.graph.program import Loop  # noqa: E402
from memplan.graph.standin import original  # noqa: E402

SLOW = ChunkOptions(max_slowdown=None)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.wide = nn.Sequential(nn.Conv2d(8, 64, 1), nn.GELU(), nn.Conv2d(64, 8, 1))
        self.tail = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 4, 3), nn.SiLU())

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        return self.tail(x + self.wide(x))


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any, Any]:
    """A model, its input, and the chunked model."""
    torch.manual_seed(0)
    model, x = Wide().eval(), noise(2, 3, 32, 32)
    return model, x, chunk(model, x, "60%", options=SLOW)


def kinds(ready: Any) -> list[str]:
    """What runs, in order."""
    return [
        f"{type(node).__name__} {node.layers}"
        for node in ready.programs()[0].runner.schedule.joined.nodes
    ]


def test_what_lies_between_loops_is_fused(pair: tuple[Any, Any, Any]) -> None:
    model, x, chunked = pair
    ready = fuse(chunked, FORCED)
    again = chunk(fuse(model, FORCED), x, plan=chunked.memplan, options=SLOW)
    with torch.no_grad():
        for each in (ready, again):
            assert original(each) is model
            assert each.memplan.status == "chunked"  # the plan is the chunked model's
            same(model(x), each(x))
            assert isinstance(each.programs()[0], Compiled)
        assert kinds(ready) == kinds(again)
        loops = [each.runner.program.ops for each in ready.programs()]
        assert any(isinstance(step, Loop) for step in loops[0])
        model.stem[0].weight.mul_(2)
        same(model(x), ready(x))
        copied = copy.deepcopy(ready)
        copied.model.model.stem[0].weight.zero_()
        same(copied.model.model(x), copied(x))
        same(model(x), ready(x))


def test_a_plan_that_is_kept_says_so(
    pair: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, chunked = pair
    ready = fuse(chunked)
    monkeypatch.setattr(bench, "seconds", lambda *_, **__: [1.0, 3.0])
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        same(model(x), ready(x))
    (line,) = [str(each.message) for each in said]
    assert line.startswith("memplan.fuse: the plan of memplan.chunk runs unchanged: ")


def test_other_sizes_are_fused_without_loops(pair: tuple[Any, Any, Any]) -> None:
    model, _, chunked = pair
    ready, x = fuse(chunked, FORCED), noise(1, 3, 32, 32)
    with torch.no_grad():
        same(model(x), ready(x))
    assert isinstance(ready.programs()[0], Compiled)


def test_fused_again(pair: tuple[Any, Any, Any]) -> None:
    model, x, chunked = pair
    assert fuse(fuse(model), FORCED).model is model
    assert chunk(chunked, x, plan=chunked.memplan, options=SLOW).model is model
