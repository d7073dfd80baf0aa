"""Each rule against its operator, on samples of every operator in the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch")

import torch

from memplan.chunking.rules.table import RULES
from tests.chunking.rules import arithmetic_samples as arithmetic
from tests.chunking.rules import elementwise_samples as elementwise
from tests.chunking.rules import image_samples as images
from tests.chunking.rules import shape_samples as shapes
from tests.chunking.rules.rule_check import Sample, check

pytestmark = pytest.mark.torch

FAMILIES: list[Callable[[], Iterator[Sample]]] = [
    elementwise.elementwise_samples,
    elementwise.factory_samples,
    shapes.view_samples,
    shapes.axis_samples,
    shapes.piece_samples,
    arithmetic.contraction_samples,
    arithmetic.reduction_samples,
    arithmetic.lookup_samples,
    arithmetic.normalisation_samples,
    arithmetic.attention_samples,
    images.convolution_samples,
    images.pooling_samples,
    images.resampling_samples,
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors are too small to share out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_slices_are_the_windows_of_the_whole(
    family: Callable[[], Iterator[Sample]],
) -> None:
    for sample in family():
        where = f"{sample.call.op.target} {sample.call.op.args} -> {sample.call.shape}"
        assert sample.possible() == sample.dims, where
        assert bool(check(sample)) == bool(sample.dims), where


def test_every_rule_has_a_sample() -> None:
    keys = {sample.call.op.key for family in FAMILIES for sample in family()}
    assert set(RULES) - keys == set()
