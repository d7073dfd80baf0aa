"""Modules that compute their activations again: the same bits, whatever they do."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from memplan.applying.recompute import Recompute  # noqa: E402
from memplan.core.recompute import Recomputation, Unit  # noqa: E402
from memplan.errors import InputError  # noqa: E402
from memplan.recording.activations import root_of  # noqa: E402


def plan_for(root: nn.Module, *paths: str, **more: Any) -> Recomputation:
    """A plan that computes the modules at `paths` again; "a@0:2" is a run of children.

    more: other fields of each unit."""
    named = dict(root.named_modules())
    units = []
    for text in paths:
        path, _, run = text.partition("@")
        first, last = map(int, run.split(":")) if run else (0, 0)
        kind = type(named[path]).__qualname__
        fields = {"written": ()} | more
        units.append(Unit(0, path, first, last, kind, **fields))
    return Recomputation(0, 0, 0, 0, False, (root_of(root),), tuple(units))


@contextmanager
def recomputed(part: Recomputation) -> Iterator[Recompute]:
    """Within: the plan's units are computed again."""
    again = Recompute(part, "the plan")
    again.start()
    try:
        yield again
    finally:
        again.stop()


Train = Callable[[nn.Module], Tensor]


def state_after(model: nn.Module, train: Train) -> dict[str, Tensor]:
    """All that a step leaves: loss, gradients, buffers, the generator's state."""
    torch.manual_seed(3)
    found = {"loss": train(model).detach().clone()}
    found |= {
        f"grad {name}": each.grad.clone()
        for name, each in model.named_parameters()
        if each.grad is not None
    }
    found |= {f"buffer {name}": each.clone() for name, each in model.named_buffers()}
    return found | {"generator": torch.get_rng_state()}


def assert_same(
    make: Callable[[], nn.Module],
    train: Train,
    *paths: str,
    calls: int | None = None,
    **more: Any,
) -> Recompute:
    """Training is the same to the bit with `paths` computed again, `calls` times."""
    torch.manual_seed(0)
    plain = make()
    other = copy.deepcopy(plain)
    expected = state_after(plain, train)
    with recomputed(plan_for(other, *paths, **more)) as again:
        found = state_after(other, train)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    report = again.report()
    assert report.bound == len(paths)
    assert report.recomputations == (len(paths) if calls is None else calls)
    return again


def twice(make_input: Callable[[], Tensor]) -> Train:
    """Two backward passes whose gradients add up."""

    def train(model: nn.Module) -> Tensor:
        total = torch.zeros(())
        for _ in range(2):
            loss = model(make_input()).square().mean()
            loss.backward()
            total = total + loss.detach()
        return total

    return train


def rows(count: int = 8) -> Callable[[], Tensor]:
    return lambda: torch.randn(4, count)


class Block(nn.Module):
    """A block with a residual connection."""

    def __init__(self, width: int = 8, dropout: float = 0.3) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(2 * width, width),
        )

    def forward(self, value: Tensor) -> Tensor:
        return value + self.inner(self.norm(value))


def blocks() -> nn.Module:
    return nn.Sequential(Block(), Block(), Block())


def test_blocks_with_dropout() -> None:
    assert_same(blocks, twice(rows()), "0", "2", calls=4)


def test_a_run_of_children_is_one_unit() -> None:
    assert_same(blocks, twice(rows()), "0.inner@0:3", "1.inner@1:4", calls=4)
    assert_same(blocks, twice(rows()), "@0:2", calls=2)


def test_a_run_and_a_unit_in_the_same_sequential() -> None:
    assert_same(blocks, twice(rows()), "@0:2", "2.inner", calls=4)


def norms() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 1),
        ),
        nn.Sequential(nn.BatchNorm2d(4), nn.RReLU(), nn.Flatten()),
    )


NORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def encoders() -> nn.Module:
    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)

    return nn.Sequential(layer(), layer())


def test_units_within_units() -> None:
    assert_same(blocks, twice(rows()), "0", "0.inner", "1", "1.inner@0:3", calls=8)
    sentences = twice(lambda: torch.randn(2, 5, 8))
    inner = ("0.self_attn", "1.self_attn", "1.dropout1")
    assert_same(encoders, sentences, *inner, "0", "1", calls=10)


def test_runs_within_runs() -> None:
    runs = ("0.inner@0:4", "0.inner@0:2", "0.inner@2:4")
    assert_same(blocks, twice(rows()), *runs, calls=6)
    assert_same(blocks, twice(rows()), "0.inner", *runs[1:], "0", calls=8)
    runs = ("@0:3", "@0:2", "@1:3", "1.inner@1:3", "0")
    with pytest.raises(AssertionError):  # two that overlap are no choice
        assert_same(blocks, twice(rows()), *runs, calls=10)
    assert_same(blocks, twice(rows()), "@0:3", "@0:2", "1.inner@1:3", "0", calls=8)


def test_statistics_of_batch_norm_count_once() -> None:
    written = tuple(f"1.{name}" for name in NORM_BUFFERS)
    images = twice(lambda: torch.randn(2, 3, 8, 8))
    assert_same(norms, images, "0", calls=2, written=written)


def test_a_buffer_that_was_not_recorded_raises() -> None:
    model = norms()
    with (
        recomputed(plan_for(model, "0")),
        pytest.raises(RuntimeError, match="changed a buffer"),
    ):
        model(torch.randn(2, 3, 8, 8)).sum().backward()


class Counting(nn.Module):
    """Counts its calls in a buffer that its result depends on."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, value: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(self.linear(value) * self.calls)


class Replacing(Counting):
    """The same, but puts a new tensor in the buffer's place."""

    def forward(self, value: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return torch.tanh(self.linear(value) * self.calls)


@pytest.mark.parametrize("kind", [Counting, Replacing])
def test_a_counter_in_a_buffer(kind: type[nn.Module]) -> None:
    assert_same(
        lambda: nn.Sequential(nn.Linear(8, 8), kind()),
        twice(rows()),
        "1",
        calls=2,
        written=("calls",),
    )


class Tally:
    """What a module counts, in an object of its own."""

    def __init__(self) -> None:
        self.total = 0


class Counted(nn.Module):
    """Counts what it saw in attributes of its own, and its result depends on them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.rows, self.loads, self.seen = 0, [0, 0], {"calls": 0}
        self.recent: deque[int] = deque(maxlen=3)
        self.tally = Tally()
        self.generator = torch.Generator().manual_seed(5)
        self.scale: Tensor | None = None

    def forward(self, value: Tensor) -> Tensor:
        self.rows += len(value)
        self.loads[self.rows // 4 % 2] += 1
        self.seen["calls"] += 1
        if self.scale is None:
            self.scale = torch.full((8,), 0.5)
        self.scale = self.scale * 0.9 + 0.1 * value.detach().mean(0)
        self.recent.append(self.rows)
        self.tally.total += sum(self.recent)
        noise = torch.rand(8, generator=self.generator) + self.tally.total
        value = torch.tanh(self.linear(value) * self.scale + noise)
        return value * (self.rows + self.loads[0]) / self.seen["calls"]


def test_attributes_that_a_call_changes() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), Counted(), Counted())

    torch.manual_seed(0)
    plain = make()
    other = copy.deepcopy(plain)
    expected = state_after(plain, twice(rows()))
    with recomputed(plan_for(other, "1", "2")):
        found = state_after(other, twice(rows()))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    for one, two in zip(plain[1:], other[1:], strict=True):
        assert (one.rows, one.loads, one.seen) == (two.rows, two.loads, two.seen)
        assert (one.recent, one.tally.total) == (two.recent, two.tally.total)
        assert torch.equal(one.generator.get_state(), two.generator.get_state())
        assert torch.equal(one.scale, two.scale)


class Drawing(nn.Module):
    """Draws from Python's and numpy's generators."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, value: Tensor) -> Tensor:
        scale = random.random() + float(np.random.rand())
        return torch.tanh(self.linear(value) * scale)


def test_other_generators() -> None:
    def train(model: nn.Module) -> Tensor:
        random.seed(1)
        np.random.seed(1)
        loss = twice(rows())(model)
        drawn = random.random() + float(np.random.rand())
        return loss + drawn

    assert_same(lambda: nn.Sequential(Drawing(), Drawing()), train, "0", "1", calls=4)


class Feeding(nn.Module):
    """Puts its result into the dictionary and the list that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, values: dict[str, Tensor], seen: list[Tensor]) -> None:
        values["hidden"] = torch.tanh(self.linear(values["hidden"]))
        seen.append(values["hidden"])


def test_containers_that_a_call_fills() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Feeding() for _ in range(3))

        def forward(self, value: Tensor) -> Tensor:
            values, seen = {"hidden": value}, [value]
            for part in self.parts:
                part(values, seen)
            assert len(seen) == 4
            return sum(seen[1:], values["hidden"])

    assert_same(Net, twice(rows()), "parts.0", "parts.1", "parts.2", calls=6)


def test_hooks_that_come_later_run_once() -> None:
    seen: list[int] = []
    model = blocks()
    with recomputed(plan_for(model, "0", "1")) as again:
        model(torch.randn(4, 8)).sum().backward()
        model[0].norm.register_forward_hook(lambda *_: seen.append(1))
        model(torch.randn(4, 8)).sum().backward()
    report = again.report()
    assert (len(seen), report.left_out, report.recomputations) == (1, 1, 3)


def test_spectral_norm() -> None:
    def make() -> nn.Module:
        linear = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        return nn.Sequential(nn.Linear(8, 8), nn.Sequential(linear, nn.Tanh()))

    written = tuple(f"0.parametrizations.weight.0.{name}" for name in ("_u", "_v"))
    assert_same(make, twice(rows()), "1", calls=2, written=written)


class Shared(nn.Module):
    """One block called three times, and weights that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.first, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight

    def forward(self, value: Tensor) -> Tensor:
        value = self.first(value)
        for _ in range(3):
            value = self.block(value)
        return self.last(value)


def test_a_module_that_is_called_several_times() -> None:
    assert_same(Shared, twice(rows()), "block", "last", calls=8)


class Words(nn.Module):
    """Takes tensors by name, in a list and in a dictionary, and returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(
        self,
        value: Tensor,
        *,
        more: list[Tensor],
        named: dict[str, Tensor],
        scale: float,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        first = torch.tanh(self.one(value) + more[0]) * scale
        return first, {"second": torch.sigmoid(self.other(first) * named["gate"])}


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.words = nn.Linear(8, 8), Words()

    def forward(self, value: Tensor) -> Tensor:
        gate = self.gate(value)
        first, rest = self.words(value, more=[gate], named={"gate": gate}, scale=0.5)
        return first + rest["second"]


def test_arguments_by_name_and_nested_results() -> None:
    assert_same(Asking, twice(rows()), "words", calls=2)


def test_recurrent_and_attention_layers() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 8, batch_first=True, num_layers=2, dropout=0.2)
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

        def forward(self, value: Tensor) -> Tensor:
            value, _ = self.lstm(value)
            return self.attention(value, value, value, need_weights=False)[0]

    assert_same(
        Mixed, twice(lambda: torch.randn(2, 5, 8)), "lstm", "attention", calls=4
    )


def test_mixed_precision() -> None:
    def train(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        return loss

    assert_same(blocks, train, "0", "1")


def test_a_mode_that_changes_before_the_backward_pass() -> None:
    def train(model: nn.Module) -> Tensor:
        loss = model(torch.randn(4, 8)).square().mean()
        model.eval()
        loss.backward()
        assert not any(part.training for part in model.modules())
        return loss

    assert_same(blocks, train, "0", "1")


def test_a_graph_that_is_kept() -> None:
    def train(model: nn.Module) -> Tensor:
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    assert_same(blocks, train, "0", calls=2)


def test_gradients_of_gradients() -> None:
    def train(model: nn.Module) -> Tensor:
        value = torch.randn(4, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(model(value).sum(), value, create_graph=True)
        loss = (slope.norm() - 1).square()
        loss.backward()
        return loss

    torch.manual_seed(0)
    smooth = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model = nn.Sequential(nn.Linear(8, 8), smooth)
    other = copy.deepcopy(model)
    expected = state_after(model, train)
    with recomputed(plan_for(other, "1")):
        found = state_after(other, train)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_frozen_weights_and_an_input_without_gradient() -> None:
    def make() -> nn.Module:
        model = blocks()
        for each in model[0].parameters():
            each.requires_grad_(False)
        return model

    assert_same(make, twice(rows()), "1", "2", calls=4)


def test_nothing_is_computed_again_without_gradients() -> None:
    model = blocks()
    with recomputed(plan_for(model, "0", "1")) as again:
        with torch.no_grad():
            model(torch.randn(4, 8))
        with torch.inference_mode():
            model(torch.randn(4, 8))
    assert again.report().recomputations == 0


def test_evaluation_with_gradients() -> None:
    def train(model: nn.Module) -> Tensor:
        model.eval()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        return loss

    assert_same(blocks, train, "0", "1")


def test_hooks_of_the_backward_pass_run_once() -> None:
    seen: list[str] = []

    def make() -> nn.Module:
        model = blocks()
        model[1].register_full_backward_hook(lambda *_: seen.append("hook"))
        return model

    assert_same(make, twice(rows()), "1", calls=2)
    assert len(seen) == 4  # two runs of two passes


def test_parameters_changed_before_the_backward_pass_raise() -> None:
    model = blocks()
    with recomputed(plan_for(model, "0")):
        loss = model(torch.randn(4, 8)).sum()
        with torch.no_grad():
            model[0].inner[0].bias.add_(1.0)
        with pytest.raises(RuntimeError, match="were changed between"):
            loss.backward()


def test_buffers_changed_before_the_backward_pass_raise() -> None:
    model = nn.Sequential(blocks(), nn.BatchNorm1d(8).eval())
    with recomputed(plan_for(model, "@0:2")):
        loss = model(torch.randn(4, 8)).sum()
        with torch.no_grad():
            model[1].running_mean.add_(1.0)
        with pytest.raises(RuntimeError, match="leave it out with --keep '0 to 1'"):
            loss.backward()


def test_what_the_second_call_leaves_on_modules_is_undone() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.kept: tuple[Tensor, ...] = ()
            self.all: list[Tensor] = []

        def forward(self, value: Tensor) -> Tensor:
            value = torch.tanh(self.linear(value))
            self.kept = (value,)
            self.all.append(value)
            self.last = value
            return value * 2

    model = nn.Sequential(Keeping(), Keeping())
    with recomputed(plan_for(model, "0", "1")):
        loss = model(torch.randn(4, 8)).sum()
        before = [(each.kept, list(each.all), each.last) for each in model]
        loss.backward()
    for each, (kept, found, last) in zip(model, before, strict=True):
        assert each.kept is kept
        assert each.last is last
        assert list(map(id, each.all)) == list(map(id, found))


def test_an_input_changed_before_the_backward_pass_raises() -> None:
    model = blocks()
    value = torch.randn(4, 8)
    with recomputed(plan_for(model, "0")):
        loss = model(value).sum()
        value.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_the_model_stays_the_users() -> None:
    model = blocks()
    keys = list(model.state_dict())
    attributes = [sorted(vars(part)) for part in model.modules()]
    with recomputed(plan_for(model, "0", "1")):
        model(torch.randn(4, 8)).sum().backward()
        assert list(model.state_dict()) == keys
        assert [sorted(vars(part)) for part in model.modules()] == attributes
        twin = copy.deepcopy(model)
        again = pickle.loads(pickle.dumps(model))
        torch.save(model, io.BytesIO())
        with torch.no_grad():
            for each in twin.parameters():
                each.zero_()
        value = torch.randn(4, 8)
        assert torch.equal(twin(value), value)  # with its own weights
        model.eval(), again.eval()
        assert torch.equal(again(value), model(value))
    assert nn.Module._call_impl.__module__ == "torch.nn.modules.module"


def test_a_model_that_is_made_again() -> None:
    first = blocks()
    part = plan_for(first, "0")
    with recomputed(part) as again:
        first(torch.randn(4, 8)).sum().backward()
        del first
        gc.collect()
        second = blocks()
        second(torch.randn(4, 8)).sum().backward()
    assert again.report().recomputations == 2


def test_two_models_of_one_class() -> None:
    class Critic(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, width), nn.Tanh())

        def forward(self, value: Tensor) -> Tensor:
            return self.layers(value)

    small, large = Critic(4), Critic(16)
    units = tuple(Unit(i, "layers", 0, 0, "Sequential", ()) for i in (0, 1))
    roots = root_of(small), root_of(large)
    part = Recomputation(0, 0, 0, 0, False, roots, units)
    with recomputed(part) as again:
        for each in (large, small):
            each(torch.randn(4, 8)).sum().backward()
    assert (again.report().bound, again.report().recomputations) == (2, 2)


def test_another_model_than_the_plans_raises() -> None:
    class Net(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.inner = nn.Linear(8, width)

        def forward(self, value: Tensor) -> Tensor:
            return self.inner(value)

    with (
        recomputed(plan_for(Net(4), "inner")),
        pytest.raises(InputError, match=r"made for another .*Net"),
    ):
        Net(5)(torch.randn(2, 8))


def test_a_model_that_grows_is_trained_as_it_is() -> None:
    class Net(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Block() for _ in range(count))

        def forward(self, value: Tensor) -> Tensor:
            for part in self.parts:
                value = part(value)
            return value

    small = Net(2)
    with recomputed(plan_for(small, "parts.0")) as again:
        small(torch.randn(4, 8)).sum().backward()
        Net(3)(torch.randn(4, 8)).sum().backward()
    assert again.report().recomputations == 1


def test_models_that_are_equal_may_change_roles() -> None:
    one = blocks()
    other = copy.deepcopy(one)
    with recomputed(plan_for(one, "0", "@1:3")) as again:
        for model in (one, other):
            with torch.no_grad():
                other(torch.randn(4, 8))
            model(torch.randn(4, 8)).sum().backward()
    assert again.report().recomputations == 4


def test_weights_that_are_exchanged_before_the_backward_pass_raise() -> None:
    model = blocks()
    with recomputed(plan_for(model, "0")):
        loss = model(torch.randn(4, 8)).sum()
        weight = model[0].norm.weight
        weight.data = weight.data.clone()
        with pytest.raises(RuntimeError, match="were changed between"):
            loss.backward()


def test_gradients_that_are_off_for_some_children() -> None:
    class Off(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            torch.set_grad_enabled(False)
            return value

    class On(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            torch.set_grad_enabled(True)
            return value

    def make() -> nn.Module:
        middle = (Off(), nn.Linear(8, 8), On())
        return nn.Sequential(Block(), Block(), *middle, Block(), Block())

    assert_same(make, twice(rows()), "@5:7", calls=2)


def test_a_loss_that_is_a_module_is_no_other_model() -> None:
    model, loss = blocks(), nn.MSELoss()
    with recomputed(plan_for(model, "0")) as again:
        loss(model(torch.randn(4, 8)), torch.zeros(4, 8)).backward()
    assert again.report().recomputations == 1


def test_own_checkpoints_around_and_within() -> None:
    from torch.utils.checkpoint import checkpoint

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Block(), Block()

        def forward(self, value: Tensor) -> Tensor:
            value = checkpoint(self.first, value, use_reentrant=False)
            return self.last(value)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = Own()

        def forward(self, value: Tensor) -> Tensor:
            return self.own(value).square()

    assert_same(Outer, twice(rows()), "own.last", calls=2)
    torch.manual_seed(0)
    plain = Outer()
    other = copy.deepcopy(plain)
    expected = state_after(plain, twice(rows()))
    with recomputed(plan_for(other, "own")):
        found = state_after(other, twice(rows()))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_threads_train_side_by_side() -> None:
    models = [blocks() for _ in range(4)]
    inputs = [torch.randn(4, 8) for _ in models]
    plain = [copy.deepcopy(each).eval() for each in models]
    units = tuple(Unit(i, "1", 0, 0, "Block", ()) for i in range(4))
    roots = tuple(root_of(each) for each in models)
    results: list[Tensor] = [torch.empty(0)] * len(models)

    def train(i: int) -> None:
        for _ in range(20):
            models[i].zero_grad()
            models[i].eval()(inputs[i]).sum().backward()
        results[i] = models[i][1].inner[0].weight.grad

    part = Recomputation(0, 0, 0, 0, False, roots, units)
    with recomputed(part) as again:
        threads = [threading.Thread(target=train, args=(i,)) for i in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert again.report().recomputations == 80
    for i, model in enumerate(plain):
        model(inputs[i]).sum().backward()
        assert torch.equal(results[i], model[1].inner[0].weight.grad)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch.compile's own
def test_a_compiled_part_is_left_alone() -> None:
    def make() -> nn.Module:
        model = blocks()
        model[1] = torch.compile(model[1], backend="eager")  # type: ignore[assignment]
        return model

    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    other = make()

    def train(model: nn.Module) -> Tensor:
        loss = functional.mse_loss(model.eval()(torch.ones(4, 8)), torch.zeros(4, 8))
        loss.backward()
        return loss

    expected = state_after(plain, train)
    with recomputed(plan_for(other, "0", "2")):
        found = state_after(other, train)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
