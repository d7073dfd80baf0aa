"""The cross-entropy of a projection in slices: the value and gradients of the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import memplan  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402

pytestmark = pytest.mark.torch
CLOSE = {torch.float64: 1e-13, torch.float32: 3e-6, torch.bfloat16: 0.04}


def gradients(value: Any, of: list[Any], upstream: Any) -> list[Any]:
    return [value.detach(), *torch.autograd.grad(value, of, upstream)]


def difference(expected: list[Any], found: list[Any]) -> float:
    pairs = zip(expected, found, strict=True)
    return max(float((a - b).abs().max() / (b.abs().max() + 1e-30)) for a, b in pairs)


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(sorted(CLOSE, key=str)),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    smoothing=st.sampled_from([0.0, 0.1]),
    biased=st.booleans(),
    weighted=st.booleans(),
    likely=st.booleans(),
    rows=st.one_of(st.none(), st.integers(1, 40)),
    seed=st.integers(0, 99),
)
def test_it_is_the_plain_expression(
    dtype: Any,
    reduction: str,
    smoothing: float,
    biased: bool,
    weighted: bool,
    likely: bool,
    rows: int | None,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(3, 11, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(20, 8, dtype=dtype, requires_grad=True)
    bias = torch.randn(20, dtype=dtype, requires_grad=True) if biased else None
    classes = torch.rand(20, dtype=dtype) if weighted else None
    targets = torch.randint(0, 20, (3, 11))
    targets[0, :4] = -100
    if likely:
        targets = torch.rand(3, 11, 20).softmax(-1).to(dtype)
    options = {"reduction": reduction, "label_smoothing": smoothing}

    logits = F.linear(hidden, weight, bias).flatten(0, 1)
    flat = targets.flatten(0, 1)
    whole = F.cross_entropy(logits, flat, weight=classes, **options)
    whole = whole.reshape(3, 11) if reduction == "none" else whole
    sliced = memplan.chunk_loss(
        hidden, weight, targets, bias, class_weight=classes, rows=rows, **options
    )
    assert (sliced.dtype, sliced.shape) == (whole.dtype, whole.shape)
    of = [each for each in (hidden, weight, bias) if each is not None]
    upstream = torch.rand_like(whole)
    found = gradients(sliced, of, upstream)
    assert difference(gradients(whole, of, upstream), found) < CLOSE[dtype]


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_is_that_of_the_forward_pass(reduction: str) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 16), torch.randn(30, 16)
    of = [hidden.requires_grad_(), weight.requires_grad_()]
    targets = torch.randint(0, 30, (50,))
    with torch.autocast("cpu", torch.bfloat16):
        whole = F.cross_entropy(F.linear(*of), targets, reduction=reduction)
        sliced = memplan.chunk_loss(*of, targets, reduction=reduction, rows=7)
    assert sliced.dtype == whole.dtype
    upstream = torch.ones_like(whole)
    found = gradients(sliced, of, upstream)
    assert difference(gradients(whole, of, upstream), found) < 0.02


def test_the_backward_pass_can_run_twice() -> None:
    hidden = torch.randn(9, 4, requires_grad=True)
    loss = memplan.chunk_loss(hidden, torch.randn(6, 4), torch.zeros(9).long(), rows=2)
    (2 * loss).backward(retain_graph=True)
    once = hidden.grad.clone()
    (2 * loss).backward()
    assert torch.equal(hidden.grad, 2 * once)


def test_no_rows_and_no_targets_are_as_in_torch() -> None:
    weight = torch.randn(6, 4, requires_grad=True)
    none = memplan.chunk_loss(torch.zeros(0, 4), weight, torch.zeros(0).long())
    assert torch.isnan(none)
    ignored = torch.full((5,), -100)
    hidden = torch.randn(5, 4, requires_grad=True)
    loss = memplan.chunk_loss(hidden, weight, ignored, rows=2)
    plain = F.cross_entropy(F.linear(hidden, weight), ignored)
    assert torch.isnan(loss)
    assert torch.isnan(plain)
    for ours, torchs in zip(
        torch.autograd.grad(loss, [hidden, weight]),
        torch.autograd.grad(plain, [hidden, weight]),
        strict=True,
    ):
        assert torch.equal(ours, torchs)


def test_it_needs_a_slice_of_the_logits() -> None:
    hidden = torch.randn(1024, 32, requires_grad=True)
    layer, targets = nn.Linear(32, 4000), torch.randint(0, 4000, (1024,))

    def step(sliced: bool) -> Any:
        with torch.enable_grad():
            if sliced:
                loss = memplan.chunk_loss(hidden, layer.weight, targets, layer.bias)
            else:
                loss = F.cross_entropy(layer(hidden), targets)
            return torch.autograd.grad(loss, [hidden, *layer.parameters()])

    assert activation_peak(lambda: step(True)) < 0.1 * activation_peak(
        lambda: step(False)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(5, 3)}, r"weight must be \[classes, 4\]"),
        ({"targets": torch.zeros(8).long()}, r"targets must be \[9\]"),
        ({"reduction": "max"}, "reduction is one of mean, sum, none"),
        ({"rows": 0}, "rows must be 1 or more"),
        ({"weight": torch.zeros(5, 4).double()}, "hidden is of torch.float32, weight"),
        (
            {"targets": torch.zeros(9, 5, requires_grad=True)},
            "targets must not require a gradient",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    given = {
        "hidden": torch.zeros(9, 4),
        "weight": torch.zeros(5, 4),
        "targets": torch.zeros(9).long(),
    }
    with pytest.raises(memplan.MemplanError, match=message):
        memplan.chunk_loss(**{**given, **change})


def test_small_gradients_in_float16_survive_with_a_loss_scale() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(400, 32), torch.randn(3000, 32) / 20
    targets = torch.randint(0, 3000, (400,))
    of = [hidden.requires_grad_(), weight.requires_grad_()]
    exact = torch.autograd.grad(65536 * F.cross_entropy(F.linear(*of), targets), of)
    with torch.autocast("cpu", torch.float16):
        loss = memplan.chunk_loss(*of, targets, rows=50)
    for ours, plain in zip(torch.autograd.grad(65536 * loss, of), exact, strict=True):
        assert float((ours - plain).norm() / plain.norm()) < 2e-3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_targets_of_other_integers(dtype: Any) -> None:
    hidden, weight = torch.randn(9, 4), torch.randn(6, 4)
    targets = torch.arange(9) % 6
    loss = memplan.chunk_loss(hidden, weight, targets.to(dtype))
    assert torch.equal(loss, memplan.chunk_loss(hidden, weight, targets))
