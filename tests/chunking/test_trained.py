"""Models whose cross-entropy runs in slices while they are trained."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import memplan  # noqa: E402
from memplan.errors import InputError, UsageError  # noqa: E402

pytestmark = pytest.mark.torch
CLASSES, WIDTH, TOKENS = 3000, 24, 96
ANY = memplan.ChunkOptions(max_slowdown=None)
Head = Callable[["Model", Any, Any], Any]


class Model(nn.Module):
    """Embedded tokens, a layer with dropout and batch statistics, and a loss."""

    def __init__(self, loss: Head, tied: bool = False) -> None:
        super().__init__()
        self.loss = loss
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(WIDTH, CLASSES, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Any, targets: Any) -> Any:
        x = self.dropout(self.layer(self.embedding(tokens)).relu())
        return self.loss(self, self.norm(x.transpose(1, 2)).transpose(1, 2), targets)


def flat(logits: Any, targets: Any, **options: Any) -> Any:
    return F.cross_entropy(logits.reshape(-1, CLASSES), targets.flatten(), **options)


def shifted(model: Model, x: Any, targets: Any) -> Any:
    logits = model.head(x).float()
    kept = logits[..., :-1, :].contiguous()
    return flat(kept, targets[..., 1:]), logits


def classes_second(model: Model, x: Any, targets: Any) -> Any:
    return F.cross_entropy(model.head(x).transpose(1, 2), targets)


def smoothed(model: Model, x: Any, targets: Any) -> Any:
    """Of which torch's own gradients are off by 2e-5."""
    return F.cross_entropy(model.head(x).transpose(1, 2), targets, label_smoothing=0.1)


def product(model: Model, x: Any, targets: Any) -> Any:
    return flat(
        x @ model.embedding.weight.t(), targets, ignore_index=int(targets[0, 0])
    )


def capped(model: Model, x: Any, targets: Any) -> Any:
    return flat(torch.tanh(model.head(x) / 30) * 30, targets)


def likelihood(model: Model, x: Any, targets: Any) -> Any:
    logits = model.head(x).view(-1, CLASSES)
    return F.nll_loss(F.log_softmax(logits, dim=-1), targets.flatten())


def chosen(model: Model, x: Any, targets: Any) -> Any:
    mask = targets % 2 == 0
    return (
        F.cross_entropy(model.head(x)[mask], targets[mask], reduction="sum")
        / mask.sum()
    )


def each(model: Model, x: Any, targets: Any) -> Any:
    losses = flat(model.head(x), targets, reduction="none")
    weights = (targets.flatten() % 3).float()
    return (losses * weights).sum() / weights.sum()


def biased(model: Model, x: Any, targets: Any) -> Any:
    constant = torch.linspace(-1, 1, CLASSES)[None]
    return flat(model.head(x) + constant, targets)


def measured(model: Model, x: Any, targets: Any) -> Any:
    logits = model.head(x)
    with torch.no_grad():
        hits = (logits.argmax(-1) == targets).float().mean()
    return flat(logits, targets), hits


HEADS = [
    biased,
    measured,
    shifted,
    classes_second,
    product,
    capped,
    likelihood,
    chosen,
    each,
]


def made(head: Head, seed: int = 0, tied: bool = False) -> tuple[Any, tuple[Any, Any]]:
    torch.manual_seed(seed)
    tokens = torch.randint(0, CLASSES, (2, TOKENS))
    return Model(head, tied).train(), (tokens, tokens.roll(-1, 1))


def trained(model: Any, inputs: Any, steps: int = 3) -> list[Any]:
    """The losses, and the state after some steps."""
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        found = model(*inputs)
        loss = found[0] if isinstance(found, tuple) else found
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return [losses, model.state_dict()]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_a_model_trains_as_before(head: Head, tied: bool) -> None:
    model, inputs = made(head, tied=tied)
    other, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    sliced = memplan.chunk(model, inputs, "60%", options=ANY)
    plan = sliced.memplan
    assert plan.status == "chunked"
    assert plan.measured_bytes_after <= plan.budget_bytes < plan.measured_bytes_before
    assert plan.max_relative_error < 1e-5
    assert all(p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])

    losses, state = trained(other, inputs)
    found, after = trained(sliced, inputs)
    assert found == pytest.approx(losses, rel=1e-5)
    assert state.keys() == after.keys()
    for name, value in state.items():
        assert torch.allclose(value, after[name], rtol=1e-4, atol=1e-5), name


def test_gradients_may_differ_if_the_models_own_are_coarser() -> None:
    model, inputs = made(smoothed, tied=True)
    plan = memplan.chunk(model, inputs, "60%", options=ANY).memplan
    assert plan.status == "chunked"
    assert 1e-6 < plan.max_relative_error < 1e-4


def test_logits_are_there_for_who_asks() -> None:
    model, inputs = made(shifted)
    other = copy.deepcopy(model)
    sliced = memplan.chunk(model, inputs, "60%", options=ANY)
    torch.manual_seed(3)
    loss, logits = sliced(*inputs)
    torch.manual_seed(3)
    expected, whole = other(*inputs)
    assert (logits.shape, logits.dtype, logits.requires_grad) == (
        whole.shape,
        whole.dtype,
        True,
    )
    assert torch.equal(logits.argmax(-1), whole.argmax(-1))
    assert repr(logits) == repr(whole)
    (loss + logits.square().mean()).backward()
    (expected + whole.square().mean()).backward()
    for ours, plain in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(ours.grad, plain.grad, rtol=1e-4, atol=1e-6)


def test_logits_of_older_weights_are_not_given() -> None:
    model, inputs = made(shifted)
    sliced = memplan.chunk(model, inputs, "60%", options=ANY)
    loss, logits = sliced(*inputs)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with pytest.raises(RuntimeError, match="before the optimizer's step"):
        logits.argmax(-1)


def written(model: Model, x: Any, targets: Any) -> Any:
    logits = model.head(x)
    kept = logits[:, 1:]
    logits[..., 0] = -1e4
    return flat(kept, targets[:, 1:])


def likeliest(model: Model, x: Any, targets: Any) -> Any:
    logits = model.head(x)
    return flat(logits, targets), logits.max(-1).values


def squared(model: Model, x: Any, targets: Any) -> Any:
    return (model.head(x).mean(-1) - targets).square().mean()


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (written, "with head.weight does not go to a cross-entropy alone: __setitem__"),
        (likeliest, "with head.weight does not go to a cross-entropy alone: max needs"),
        (squared, "mean needs it whole"),
    ],
)
def test_a_model_that_needs_its_logits_stays_as_it_is(head: Head, reason: str) -> None:
    model, inputs = made(head)
    plan = memplan.chunk(model, inputs, "min").memplan
    assert plan.status == "unchanged"
    assert reason in plan.reason
    with pytest.raises(memplan.BudgetError, match=reason) as caught:
        memplan.chunk(model, inputs, "50%")
    assert caught.value.floor == caught.value.closest.memplan.measured_bytes_before


def test_a_write_to_logits_reaches_their_views() -> None:
    """Also those that were made before, and are not computed yet."""
    from memplan.chunking.deferred import Deferring, Uses

    model, inputs = made(written)
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    with Deferring(Uses()):
        loss = model(*inputs)
    torch.manual_seed(1)
    assert torch.equal(loss, other(*inputs))


def test_evaluation_is_the_models_own() -> None:
    model, inputs = made(shifted)
    sliced = memplan.chunk(model, inputs, "60%", options=ANY)
    sliced.eval()
    assert type(sliced(*inputs)[1]) is torch.Tensor
    sliced.train()
    with torch.no_grad():
        assert type(sliced(*inputs)[1]) is torch.Tensor


def test_least_memory_and_a_budget_below_it() -> None:
    model, inputs = made(shifted)
    least = memplan.chunk(model, inputs, "min", options=ANY).memplan
    with pytest.raises(memplan.BudgetError, match="the lowest step found") as caught:
        memplan.chunk(model, inputs, 1000, options=ANY)
    assert caught.value.floor == least.measured_bytes_after == least.budget_bytes
    fits = memplan.chunk(model, inputs, "100%").memplan
    assert (fits.status, fits.reason) == ("unchanged", "it fits the budget unchanged")


def test_a_plan_is_used_again(tmp_path: Path) -> None:
    model, inputs = made(shifted)
    plan = memplan.chunk(model, inputs, "60%", options=ANY).memplan
    memplan.write_chunk_plan(plan, tmp_path / "plan.json")
    again = memplan.chunk(model, inputs, plan=tmp_path / "plan.json", options=ANY)
    assert again.memplan.loss_rows == plan.loss_rows
    other, _ = made(squared)
    with pytest.raises(InputError, match="made for another model"):
        memplan.chunk(other, inputs, plan=tmp_path / "plan.json")


def test_copies_train_on_their_own() -> None:
    model, inputs = made(shifted)
    sliced = memplan.chunk(model, inputs, "60%", options=ANY)
    twin = copy.deepcopy(sliced)
    twin(*inputs)[0].backward()
    assert twin.head.weight.grad is not None
    assert model.head.weight.grad is None
    assert type(twin(*inputs)[1]) is not torch.Tensor


class Silent(nn.Module):
    """It returns no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def test_what_cannot_be_trained_is_said() -> None:
    with pytest.raises(UsageError, match="returns no loss; call model"):
        memplan.chunk(Silent(), torch.zeros(2, 4), "50%")
    with pytest.raises(UsageError, match="no parameter of the model requires"):
        memplan.chunk(Silent().requires_grad_(False), torch.zeros(2, 4), "50%")
    with pytest.raises(InputError, match="the model fails on these inputs"):
        memplan.chunk(Silent(), torch.zeros(2, 5), "50%")
    with pytest.raises(UsageError, match="either a budget or a plan"):
        memplan.chunk(Silent(), torch.zeros(2, 4))


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


def peaks(logits: Any) -> Any:
    return logits.logsumexp(-1).square().mean()


def by_function(model: Any, inputs: Any) -> Any:
    loss, logits = model(*inputs)
    return loss + peaks(Copied.apply(logits))


def after_a_metric(model: Any, inputs: Any) -> Any:
    loss, logits = model(*inputs)
    with torch.no_grad():
        logits.softmax(-1)
    return loss + peaks(logits)


def after_inference(model: Any, inputs: Any) -> Any:
    loss, logits = model(*inputs)
    with torch.inference_mode():
        logits.softmax(-1)
    return loss + peaks(logits)


def of_a_constant(model: Any, inputs: Any) -> Any:
    loss, logits = model(*inputs)
    with torch.no_grad():
        target = logits / 2
    return loss - (target.softmax(-1) * logits.log_softmax(-1)).mean()


def of_an_older_copy(model: Any, inputs: Any) -> Any:
    loss, logits = model(*inputs)
    double = logits * 2.0
    logits[..., :10] = -5.0
    return loss + peaks(double) + peaks(logits)


def hooked(model: Any, inputs: Any) -> Any:
    model.head.register_full_backward_hook(lambda *_: None)
    return model(*inputs)[0]


def in_float64(model: Any, inputs: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return model.double()(*inputs)[0]


@pytest.mark.parametrize(
    "loss",
    [
        *(by_function, after_a_metric, after_inference, of_a_constant),
        *(of_an_older_copy, hooked, in_float64),
    ],
)
def test_other_uses_of_logits_have_their_gradients(loss: Any) -> None:
    model, inputs = made(shifted)
    other = copy.deepcopy(model)
    sliced = memplan.chunk(model, inputs, "60%", options=ANY)
    for each in (sliced, other):
        torch.manual_seed(5)
        loss(each, inputs).backward()
    for ours, plain in zip(sliced.parameters(), other.parameters(), strict=True):
        assert torch.allclose(ours.grad, plain.grad, rtol=1e-4, atol=1e-6)


def test_gradients_of_gradients_are_refused() -> None:
    model, inputs = made(shifted)
    sliced = memplan.chunk(model, inputs, "60%", options=ANY)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(sliced(*inputs)[0], [model.head.weight], create_graph=True)


def test_fused_optimizers_change_weights_too() -> None:
    model, inputs = made(shifted)
    sliced = memplan.chunk(model, inputs, "60%", options=ANY)
    loss, logits = sliced(*inputs)
    loss.backward()
    torch.optim.AdamW(model.parameters(), fused=True).step()
    with pytest.raises(RuntimeError, match="before the optimizer's step"):
        logits.argmax(-1)


@dataclass
class Found:
    loss: Any
    logits: Any


def objects(model: Model, x: Any, targets: Any) -> Any:
    return Found(*shifted(model, x, targets))


def test_nothing_outlives_the_search() -> None:
    model, inputs = made(objects)
    seen = []
    model.register_forward_hook(lambda _, __, out: seen.append(weakref.ref(out)))
    gc.collect()
    gc.disable()
    try:
        memplan.chunk(model, inputs, "60%", options=ANY)
        assert [each() for each in seen] == [None] * len(seen)
    finally:
        gc.enable()
