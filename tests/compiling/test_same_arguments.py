"""Models that ask whether two of their arguments are one tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn = torch.nn

import memplan  # noqa: E402
from memplan.graph.call import Form, Inputs, key_of, repeats  # noqa: E402
from memplan.graph.check import other_inputs, relative_error  # noqa: E402
from memplan.graph.standin import StandIn  # noqa: E402
from tests.compiling.modules import compiled  # noqa: E402

pytestmark = pytest.mark.torch


class Asking(nn.Module):
    """Computes other things where its arguments are one."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 256), nn.Linear(256, 16)

    def forward(self, x: Any, y: Any) -> Any:
        hidden = self.up(x).sin()
        if x is not y:
            hidden = hidden.cos() * self.up(y)
        return self.down(hidden)


def _chunk(model: Any, inputs: Any) -> Any:
    options = memplan.ChunkOptions(max_slowdown=None)
    return memplan.chunk(model, inputs, "40%", options=options)


def _fuse(model: Any, inputs: Any) -> Any:
    fused = memplan.fuse(model, memplan.FuseOptions(measure=False))
    fused(*inputs)
    return fused


VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "chunk": _chunk,
    "fuse": _fuse,
    "compile": compiled,
}


def runs(module: StandIn, *inputs: Any) -> bool:
    """Whether a program answers such a call, not the model."""
    return module._ready(inputs, {}) is not None


@pytest.mark.filterwarnings("ignore:memplan.chunk. the model runs")
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_a_program_answers_only_calls_like_its_own(verb: str, twice: bool) -> None:
    torch.manual_seed(0)
    model = Asking().eval()
    x, y = torch.randn(2, 64, 16), torch.randn(2, 64, 16)
    with torch.no_grad():
        module = VERBS[verb](model, (x, x) if twice else (x, y))
        assert runs(module, x, x) or not twice
        assert runs(module, x, y) or twice
        for pair in ((x, x), (x, y), (y, y), (x, x.clone())):
            for each in (module, copy.deepcopy(module)):
                assert relative_error(model(*pair), each(*pair)) <= 1e-5


def test_what_is_given_twice() -> None:
    x, y = torch.ones(2), torch.ones(2)
    assert repeats([x]) == repeats([x, y]) == repeats([]) == ()
    assert repeats([x, y, x, y, y]) == (0, 1, 0, 1, 1)
    once, twice = Inputs((x, y), {}), Inputs((x,), {"other": [x]})
    assert Form.of(once).same == () and Form.of(twice).same == (0, 0)
    again = Inputs((y,), {"other": [x]})
    assert not Form.of(again).alike(Form.of(twice))
    assert key_of(again)[0] != key_of(twice)[0]
    assert "are one tensor" in Form.of(again).difference(Form.of(twice))


def test_what_replaces_it_is_given_twice() -> None:
    x, y = torch.ones(2), torch.ones(2)
    inputs = Inputs((x, y, x), {})
    one, other, again = inputs.with_tensors([1, 2, 3]).args
    assert (one, other, again) == (1, 2, 1)
    first, second, third = other_inputs([x, y, x], 0)
    assert first is third and first is not second
    assert not torch.equal(first, second)
