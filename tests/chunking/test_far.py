"""Regions that reach further than the search looks around a peak."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn = torch.nn

import memplan  # noqa: E402
from memplan.chunking.candidates import Landscape  # noqa: E402
from memplan.chunking.curve import live_at  # noqa: E402
from memplan.chunking.far import far  # noqa: E402
from memplan.chunking.options import ChunkOptions, Effort  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.program import Op  # noqa: E402
from tests.chunking.test_windows import lowered  # noqa: E402

pytestmark = pytest.mark.torch
# No test depends on time.
FIRST = ChunkOptions(max_slowdown=None, effort=Effort(wanted=1))


class Deep(nn.Module):
    """Blocks that no loop but one over the batch goes through; then few bytes."""

    def __init__(self, blocks: int, mixes: bool = False) -> None:
        super().__init__()
        layers = (nn.Linear(32, 32) for _ in range(blocks))
        self.blocks, self.mixes = nn.ModuleList(layers), mixes

    def forward(self, x: Any) -> Any:
        x = x * 2
        for block in self.blocks:
            x = x + block(torch.cumsum(torch.tanh(x), 1))
        if self.mixes:  # no loop over the batch goes past it
            x = x - x.mean(0, keepdim=True)
        for block in self.blocks:
            x = x + block(torch.cumsum(torch.tanh(x), 1))
        return x.mean(1)[None]


def test_most_of_a_deep_network_loops_over_the_batch() -> None:
    model, x = Deep(16).eval(), torch.randn(8, 64, 32)
    module = memplan.chunk(model, (x,), "20%", options=FIRST)
    (region,) = module.memplan.regions
    assert (region["dimension"], region["extent"]) == (0, 8)
    assert region["operators"] > 2 * Effort().reach
    with torch.no_grad():
        assert relative_error(model(x), module(x)) <= 1e-5


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("reach", [0, 3, 20])
def test_they_go_past_the_reach_and_over_the_peak(reach: int, mixes: bool) -> None:
    program, _ = lowered(Deep(8, mixes), torch.randn(4, 8, 32))
    land = Landscape(program, Counter())
    names = [op.name for op in program.ops]
    mixed = next((i for i, op in enumerate(program.ops) if op.key == "aten.sub"), 0)
    found = 0
    for peak, op in enumerate(program.ops):
        for each, weight in far(land, peak, reach) if isinstance(op, Op) else ():
            found += 1
            assert op.name in each.slices
            assert each.first <= peak <= each.last
            assert each.first < peak - reach or each.last >= peak + reach
            assert weight.body > 0
            if mixes and each.last > mixed and each.slices[names[each.last]].dim == 0:
                own = each.slices.keys() - each.copied
                assert min(map(names.index, own)) >= mixed
    assert found


def test_what_waits_is_what_lives_across() -> None:
    program, _ = lowered(Deep(3), torch.randn(2, 8, 32))
    land = Landscape(program, Counter())
    for place in range(1, len(program.ops)):
        before, after = (
            live_at(program, at, overwriting=False) for at in (place - 1, place)
        )
        both = {name: size for name, size in before if (name, size) in after}
        assert land.waiting[place] == sum(both.values())
    assert land.waiting[0] == 0
    assert land.waiting[-1] == 2 * 32 * 4
