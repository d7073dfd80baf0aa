"""What models run, beside torch's own counter: every multiply-add is in a layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from memplan.blocking.run.models import layers_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

nn = torch.nn


def torchs(model: Any, inputs: tuple[Any, ...]) -> int:
    """By torch's counter alone, with attention and recurrent layers composed."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with (
                torch.no_grad(),
                sdpa_kernel(SDPBackend.MATH),
                torch.backends.mkldnn.flags(enabled=False),
                FlopCounterMode(display=False) as counter,
            ):
                model(*inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops()) // 2


class Calling(torch.nn.Module):
    """A module that runs a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


class Attending(torch.nn.Module):
    """Self-attention, with or without weights as a result."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(16, 2, batch_first=True)
        self.weights = weights

    def forward(self, x: Any) -> Any:
        return self.own(x, x, x, need_weights=self.weights)


class Inferring(torch.nn.Module):
    """In inference mode, in which torch shows operations before composing them."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    @torch.inference_mode()
    def forward(self, x: Any) -> Any:
        return self.inner(x)


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def sequences() -> tuple[Any, ...]:
    return (torch.randn(2, 5, 16),)


def images() -> tuple[Any, ...]:
    return (torch.randn(2, 4, 12, 13),)


def frames() -> tuple[Any, ...]:
    return (torch.randn(1, 4, 6, 8, 9),)


CASES: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]] = {
    "encoder": (encoder, sequences),
    "attention": (lambda: Attending(False), sequences),
    "attention, weights": (lambda: Attending(True), sequences),
    "inference mode": (lambda: Inferring(encoder()), sequences),
    "linear": (lambda: nn.Linear(16, 4), sequences),
    "linear of a vector": (lambda: nn.Linear(16, 4), lambda: (torch.randn(16),)),
    "linear of rank 5": (lambda: nn.Linear(9, 4), frames),
    "LSTM": (lambda: nn.LSTM(16, 8, 2, bidirectional=True), sequences),
    "GRU": (lambda: nn.GRU(16, 8, batch_first=True), sequences),
    "RNN": (lambda: nn.RNN(16, 8), sequences),
    "1-D": (lambda: nn.Conv1d(5, 6, 3, dilation=4, padding=3), sequences),
    "grouped": (lambda: nn.Conv2d(4, 8, 3, stride=2, groups=2), images),
    "depthwise": (lambda: nn.Conv2d(4, 4, 5, groups=4), images),
    "dilated": (lambda: nn.Conv2d(4, 6, (3, 5), (2, 1), 4, (2, 3)), images),
    "3-D": (lambda: nn.Conv3d(4, 6, 3, padding=1), frames),
    "3-D dilated": (lambda: nn.Conv3d(4, 6, (2, 3, 3), dilation=2), frames),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1, groups=2), images),
    "transposed, dilated": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 1), images),
    "transposed 3-D": (lambda: nn.ConvTranspose3d(4, 6, 3, 2), frames),
    "einsum": (
        lambda: Calling(lambda x: torch.einsum("bij,kj,bl->bkl", x, x[0], x[:, 0])),
        sequences,
    ),
    "baddbmm": (
        lambda: Calling(lambda x: torch.baddbmm(x[:, :, :5], x, x.mT)),
        sequences,
    ),
    "matmul, broadcast": (
        lambda: Calling(torch.matmul),
        lambda: (torch.randn(3, 1, 4, 5), torch.randn(2, 5, 6)),
    ),
    "grouped queries": (
        lambda: Calling(
            lambda q, k: nn.functional.scaled_dot_product_attention(
                q, k, k, enable_gqa=True
            )
        ),
        lambda: (torch.randn(1, 4, 8, 16), torch.randn(1, 2, 9, 16)),
    ),
    "without a device": (
        lambda: nn.Conv2d(4, 6, 3, device="meta"),
        lambda: (torch.randn(1, 4, 9, 9, device="meta"),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_multiply_adds_are_torchs(name: str) -> None:
    made, given = CASES[name]
    torch.manual_seed(0)
    model, inputs = made().eval(), given()
    found = layers_of(model, inputs)
    assert found.left_out == ()
    assert found.counted == found.macs == torchs(model, inputs)
    assert found.difference == 0


def test_embeddings_and_normalisation_multiply_nothing() -> None:
    model = nn.Sequential(nn.Embedding(9, 8), nn.LayerNorm(8), nn.Softmax(-1)).eval()
    found = layers_of(model, (torch.tensor([[1, 2]]),))
    assert (found.layers, found.left_out, found.macs) == ((), (), 0)


def test_what_torchs_counter_has_no_formula_for_is_named() -> None:
    rows = torch.tensor([3, 3, 8], dtype=torch.int32)
    left = torch.randn(8, 16, dtype=torch.bfloat16)
    right = torch.randn(3, 16, 8, dtype=torch.bfloat16)
    grouped = getattr(torch, "_grouped_mm", None)
    if grouped is None:
        pytest.skip("this torch has no grouped products")
    found = layers_of(Calling(lambda a, b: grouped(a, b, offs=rows)), (left, right))
    assert [(one.layer.B, one.count) for one in found.layers] == [(3, 1), (5, 1)]
    assert found.macs == 8 * 16 * 8 and found.difference == 0
    assert found.reference is not None
    if found.reference.macs == 0:
        assert found.reference.unknown == (("_grouped_mm", 1024),)


def test_a_formula_of_torchs_that_fails_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.utils.flop_counter import flop_registry

    def fails(*_: object, **__: object) -> int:
        raise AssertionError("heads")

    monkeypatch.setitem(flop_registry, torch.ops.aten.addmm, fails)
    found = layers_of(nn.Linear(4, 3), (torch.randn(2, 4),))
    assert found.reference is not None
    assert (found.reference.macs, found.reference.unknown) == (0, (("addmm", 24),))
    assert (found.counted, found.difference) == (24, 0)


def test_a_count_that_is_not_torchs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.flop_counter import flop_registry

    from memplan.cli.blocking.meanings import check_text

    monkeypatch.setitem(flop_registry, torch.ops.aten.addmm, lambda *_, **__: 32)
    found = layers_of(nn.Linear(4, 3), (torch.randn(2, 4),))
    assert found.difference == 8
    assert check_text(found) == (
        "torch's counter has 16; of what both count there are 33.33 % more here"
    )


def test_products_of_three_operands_are_left_out_without_a_share() -> None:
    def product(x: Any) -> Any:
        return torch.nn.functional.bilinear(x, x, torch.ones(4, 16, 16))

    found = layers_of(Calling(product), (torch.randn(3, 16),))
    assert [one.macs for one in found.left_out] == [None]
    assert "_trilinear" in found.left_out[0].reason


def test_an_operation_of_size_nought_is_nothing() -> None:
    found = layers_of(nn.Linear(4, 4), (torch.zeros(0, 4),))
    assert (found.layers, found.left_out) == ((), ())
