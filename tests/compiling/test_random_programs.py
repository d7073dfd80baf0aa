"""Programs made at random: the same results in an arena as without one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memplan.compiling.schedule import scheduled  # noqa: E402
from memplan.core.verify import verify  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.program import mapped  # noqa: E402

pytestmark = pytest.mark.torch

# Of values of shape (4, 6), each gives one of the same shape.
ONE: dict[str, Any] = {
    "relu": lambda x: x.relu(),
    "exp": lambda x: x.tanh(),
    "scaled": lambda x: x * 0.5 + 1,
    "softmax": lambda x: x.softmax(-1),
    "columns": lambda x: x.log_softmax(0),
    "turned": lambda x: x.t().contiguous().t(),
    "reshaped": lambda x: x.t().reshape(4, 6),
    "halves": lambda x: torch.cat(x.split(3, 1)[::-1], 1),
    "normal": lambda x: nn.functional.layer_norm(x, (6,)),
    "centred": lambda x: x - x.mean(-1, keepdim=True),
    "largest": lambda x: x.max(1, keepdim=True).values.expand(4, 6) + x,
    "masked": lambda x: x.masked_fill(x > 0, 0.25),
    "whole": lambda x: (x * 3).to(torch.int64).to(torch.float32) / 3,
    "added": lambda x: x.clone().add_(1),
}
TWO: dict[str, Any] = {
    "sum": lambda x, y: x + y,
    "product": lambda x, y: x * y,
    "where": lambda x, y: torch.where(x > y, x, y),
    "mixed": lambda x, y: x @ y.t() @ y,
    "batched": lambda x, y: (
        (x.reshape(2, 2, 6) @ y.reshape(2, 6, 2)).repeat(1, 1, 3).reshape(4, 6)
    ),
    "stacked": lambda x, y: torch.stack((x, y)).sum(0),
}


class Made(nn.Module):
    """Values in a list: each step appends one, made of earlier ones."""

    def __init__(self, steps: list[tuple[str, int, int]], outputs: list[int]) -> None:
        super().__init__()
        self.steps, self.outputs = steps, outputs
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        values = [x, self.linear(x)]
        for name, i, j in self.steps:
            one, other = values[i % len(values)], values[j % len(values)]
            values.append(ONE[name](one) if name in ONE else TWO[name](one, other))
        return [values[i % len(values)] for i in self.outputs]


STEPS = st.tuples(st.sampled_from([*ONE, *TWO]), st.integers(0, 30), st.integers(0, 30))


def check(steps: list[tuple[str, int, int]], outputs: list[int]) -> None:
    torch.manual_seed(0)
    model, x = Made(steps, outputs).eval(), torch.randn(4, 6)
    program = lower(export(model, (x,), {}), Inference())
    places = dict(model.named_parameters())
    constants = {name: places[at].detach() for name, at in program.constants.items()}
    found = scheduled(program, constants, [x])
    assert not verify(found.plan)
    tape = found.tape(torch.empty(found.bytes, dtype=torch.uint8))
    for values in (x, torch.randn(4, 6)):
        before = values.clone()
        with torch.no_grad():
            expected = model(values)
            named = dict(zip(tape.results, tape([values]), strict=True))
        results = mapped(found.flat.program.outputs, lambda at, by=named: by[at.name])
        for one, other in zip(results, expected, strict=True):
            assert torch.allclose(one, other, atol=1e-5, equal_nan=True)
        assert torch.equal(values, before)


@given(
    st.lists(STEPS, max_size=10), st.lists(st.integers(0, 30), min_size=1, max_size=3)
)
@settings(max_examples=15)
def test_random_programs(steps: list[tuple[str, int, int]], outputs: list[int]) -> None:
    check(steps, outputs)


@pytest.mark.soak
@given(
    st.lists(STEPS, max_size=25), st.lists(st.integers(0, 30), min_size=1, max_size=4)
)
@settings(max_examples=500)
def test_many_random_programs(
    steps: list[tuple[str, int, int]], outputs: list[int]
) -> None:
    check(steps, outputs)
