"""What a result is compared with: the model's, on the inputs and on noise."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memplan.graph.call import Inputs  # noqa: E402
from memplan.graph.check import (  # noqa: E402
    largest,
    least_scales,
    relative_error,
    results_of,
    scaled_error,
    scales,
    tolerance_of,
)

pytestmark = pytest.mark.torch


class Counting(nn.Module):
    """Counts its calls in a buffer, writes to its input, and needs small indices."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.table = nn.Embedding(4, 3)

    def forward(self, x: Any, indices: Any) -> Any:
        self.calls += 1
        x += 1
        return self.table(indices) + x


def test_what_fits_these_inputs_alone_is_told_by_noise() -> None:
    inputs = Inputs((torch.zeros(5),), {})
    model = nn.Softplus()
    right = results_of(inputs, model, model)
    known = model(torch.zeros(5))
    wrong = results_of(inputs, model, lambda x: known)
    assert len(right) == len(wrong) == 2
    assert relative_error(right[0], wrong[0]) == 0
    assert relative_error(right[1], wrong[1]) > 0.1


def test_inputs_and_buffers_are_as_they_were() -> None:
    model, x, indices = Counting(), torch.zeros(2, 3), torch.tensor([0, 3])
    first, second = results_of(Inputs((x, indices), {}), model, model)
    assert not x.any() and not model.calls
    assert relative_error(first, second) > 0
    again = results_of(Inputs((x, indices), {}), model, model)
    assert relative_error([first, second], again) == 0


def test_noise_may_be_rejected_by_a_model_but_not_by_what_replaces_it() -> None:
    def run(x: Any) -> Any:
        if x.any():
            raise ValueError("zeros only")
        return x

    inputs = Inputs((torch.zeros(5),), {})
    assert len(results_of(inputs, nn.Identity(), run)) == 1
    with pytest.raises(ValueError, match="zeros only"):
        results_of(inputs, nn.Identity(), run, required=2)


def test_complex_results_have_roundings_and_a_tolerance() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    (scale,) = scales(lambda: [x * (1 + 2j)], [x * (1 + 2j)])[largest][0]
    assert 0 < scale < 1e-5
    assert tolerance_of([x]) == 1e-5
    assert tolerance_of([x.to(torch.complex128)]) == 1e-12
    assert tolerance_of([x, torch.ones(2, dtype=torch.bfloat16)]) == 2.0**-5


def test_a_few_values_that_rounding_decides_excuse_no_others() -> None:
    y, place = torch.ones(1000), torch.arange(1000)

    def turned(few: Any) -> list[Any]:
        return [torch.where(few, -y, y)]

    least = least_scales(lambda: turned(place < 5), [y], 1e-5)
    assert relative_error(y, turned(place >= 992)[0]) == 2
    assert scaled_error([y], turned(place >= 992), least) <= 1e-5
    assert scaled_error([y], turned(place >= 900), least) > 1e-5


def test_rounding_may_decide_which_results_there_are() -> None:
    x = torch.ones(2)
    assert scales(lambda: [(x,)], [(x, x)])[largest] == [[0.0, 0.0]]
    sparse = scales(lambda: [(x, x.to_sparse())], [(x, x.to_sparse())])
    assert sparse[largest] == [[0.0, 0.0]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_roundings_in_nested_tensors() -> None:
    x = torch.randn(2, 8, 4).exp()
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[1, 5:] = False

    def run() -> list[Any]:
        nested = torch._nested_tensor_from_mask(x, mask)
        return [torch.nested.to_padded_tensor(nested * 3.1, 0.0)]

    (scale,) = scales(run, [run()])[largest][0]
    assert 0 < scale < 1e-5
