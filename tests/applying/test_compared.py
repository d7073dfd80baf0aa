"""A second call that computes something else is refused in the first step."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

from memplan.applying.compared import MOST_VALUES, _values_of, compared  # noqa: E402
from tests.applying.test_second_call import plan_for, recomputed  # noqa: E402

GENERATOR = torch.Generator().manual_seed(5)
DRAWS = np.random.default_rng(3)
SEEN: list[Tensor] = []


class Calls:
    count = 0


def by_generator(value: Tensor) -> Tensor:
    return value * torch.rand(value.shape, generator=GENERATOR)


def by_numbers(value: Tensor) -> Tensor:
    return value * DRAWS.random()


def by_count(value: Tensor) -> Tensor:
    Calls.count += 1
    return value * Calls.count


def by_order(value: Tensor) -> Tensor:
    return value[torch.randperm(len(value), generator=GENERATOR)]


def by_what_was_seen(value: Tensor) -> Tensor:
    SEEN.append(value.detach())
    return value + sum(SEEN)


class Part(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)
        self.change = change

    def forward(self, value: Tensor) -> Tensor:
        return self.last(torch.tanh(self.change(self.first(value))))


CHANGES = [by_generator, by_numbers, by_count, by_order, by_what_was_seen]


@pytest.mark.parametrize("change", CHANGES)
def test_what_comes_from_elsewhere_raises(change: Callable[[Tensor], Tensor]) -> None:
    SEEN.clear()
    model = nn.Sequential(Part(torch.relu), Part(change))
    before = copy.deepcopy(model.state_dict())
    with recomputed(plan_for(model, "0", "1")):
        loss = model(torch.randn(8, 8)).sum()
        with pytest.raises(RuntimeError, match="1 computed something else") as caught:
            loss.backward()
    assert "--keep 1 (keep=['1'])" in str(caught.value)
    assert all(torch.equal(model.state_dict()[n], v) for n, v in before.items())


def test_only_the_first_calls_are_compared() -> None:
    counts: Iterator[int] = iter([1, 1, 2, 2, 3, 4])

    def change(value: Tensor) -> Tensor:
        return value * next(counts)

    model = nn.Sequential(Part(change))
    with recomputed(plan_for(model, "0")):
        for _ in range(3):
            model(torch.randn(8, 8)).sum().backward()


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.complex64])
def test_kinds_of_numbers(kind: torch.dtype) -> None:
    value = torch.randn(64, 33, 5).to(kind)
    assert _values_of(value) == _values_of(value.clone())
    assert _values_of(value) != _values_of(value.flip(0))
    assert _values_of(value.transpose(0, 2)) is not None
    assert _values_of(torch.zeros(())) is not None
    assert _values_of(torch.zeros(0, 3)) is not None
    nothing = torch.full((3,), torch.nan)
    assert _values_of(nothing) == _values_of(nothing.clone())


def test_what_is_not_compared() -> None:
    assert _values_of(torch.zeros(3, dtype=torch.int64)) is None
    assert _values_of(torch.zeros(3, device="meta")) is None
    assert _values_of(torch.zeros(3, 3).to_sparse()) is None
    assert _values_of(torch.zeros(3, dtype=torch.complex64).conj()) is None


@pytest.mark.parametrize(
    "shape", [(1 << 20,), (3, 1 << 14), (1, 7, 999, 31), (65,) * 3]
)
def test_few_values_are_read(shape: tuple[int, ...]) -> None:
    value = torch.zeros(shape)
    places = itertools.product(*(range(0, n, max(n // 7, 1)) for n in shape))
    seen = set()
    for place in places:
        value.zero_()[place] = 1.0
        seen.add(_values_of(value))
    assert len(seen) <= MOST_VALUES + 1
    assert _values_of(torch.rand(shape)) != _values_of(torch.rand(shape))


def test_a_tensor_that_is_changed_after_it_was_saved() -> None:
    """No backward pass needs it, so PyTorch raises nothing, and neither is memplan to:
    its value differs from that of the moment at which it was saved."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
            value = torch.tanh(self.linear(value))
            inside = value * 2
            unused = inside.square()
            inside.add_(1.0)
            return value.square(), unused

    torch.manual_seed(0)
    plain = Late()
    model = nn.Sequential(copy.deepcopy(plain))
    value = torch.randn(4, 8)
    plain(value)[0].sum().backward()
    with recomputed(plan_for(model, "0")) as again:
        model(value)[0].sum().backward()
    assert again.report().recomputations == 1
    assert torch.equal(model[0].linear.weight.grad, plain.linear.weight.grad)


def test_units_within_units_are_compared() -> None:
    inner = Part(by_count)
    model = nn.Sequential(nn.Sequential(Part(torch.relu), inner), Part(torch.tanh))
    with recomputed(plan_for(model, "0", "0.1")):
        loss = model(torch.randn(8, 8)).sum()
        with pytest.raises(RuntimeError, match="computed something else"):
            loss.backward()


def test_nothing_stays_in_torch() -> None:
    from torch.utils import checkpoint

    before = dict(checkpoint._allowed_determinism_checks_to_fns)
    with compared(RuntimeError) as keys:
        assert keys["determinism_check"] not in before
    assert before == checkpoint._allowed_determinism_checks_to_fns


def test_a_torch_without_such_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import checkpoint

    monkeypatch.delattr(checkpoint, "_allowed_determinism_checks_to_fns")
    with compared(RuntimeError) as keys:
        assert keys == {}


def test_python_generators_are_no_difference() -> None:
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, value: Tensor) -> Tensor:
            return torch.tanh(self.linear(value) * random.random()).square()

    model = nn.Sequential(Drawing())
    with recomputed(plan_for(model, "0")) as again:
        model(torch.randn(4, 8)).sum().backward()
    assert again.report().recomputations == 1
