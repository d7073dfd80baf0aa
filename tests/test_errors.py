"""Errors travel from worker processes to the one that tells of them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from memplan.errors import FormatError, InfeasibleError, MemplanError, NoPlanError


@pytest.mark.parametrize(
    "error",
    [
        FormatError(Path("a.parquet"), "damaged", "write it again"),
        FormatError("a.parquet", "damaged"),
        NoPlanError("none found", peak=3, lower_bound=2),
        InfeasibleError("proved", lower_bound=2),
    ],
)
def test_an_error_survives_pickling(error: MemplanError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
