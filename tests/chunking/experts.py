"""A product of rows with the matrix of their group, as transformers defines it."""

from __future__ import annotations

from typing import Any

import torch

NAME = "grouped_mm_fallback"


def _product(rows: Any, weight: Any, ends: Any) -> Any:
    result = rows.new_zeros(len(rows), weight.shape[2])
    start = 0
    for matrix, end in zip(weight, ends.tolist(), strict=True):
        torch.mm(rows[start:end], matrix, out=result[start:end])
        start = end
    return result


if not hasattr(torch.ops.transformers, NAME):
    LIBRARY = torch.library.Library("transformers", "FRAGMENT")
    LIBRARY.define(f"{NAME}(Tensor input, Tensor weight, Tensor offs) -> Tensor")
    LIBRARY.impl(NAME, _product, "CPU")
    LIBRARY.impl(
        NAME, lambda x, weight, _: x.new_empty(len(x), weight.shape[2]), "Meta"
    )


def grouped() -> Any:
    return torch.ops.transformers.grouped_mm_fallback.default
