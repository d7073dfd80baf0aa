"""Each rule against its operator, on samples of every operator in the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch")

from memplan.chunking.rules.table import RULES
from tests.chunking.rules.families import FAMILIES
from tests.chunking.rules.rule_check import Sample, check

pytestmark = pytest.mark.torch


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
