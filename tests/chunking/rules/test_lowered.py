"""The calls that stand for operators inside loops."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from memplan.chunking.rules import lowered

pytestmark = pytest.mark.torch

FUNCTIONS = [
    function
    for _, function in inspect.getmembers(lowered, inspect.isfunction)
    if function.__module__ == lowered.__name__
]


def alone(function: Any) -> Any:
    """The function made from its source, with nothing but annotations around it."""
    text = "from __future__ import annotations\n" + inspect.getsource(function)
    names: dict[str, Any] = {}
    exec(compile(text, function.__name__, "exec"), names)
    return names[function.__name__]


def test_sources_are_whole_by_themselves() -> None:
    made = {function.__name__: alone(function) for function in FUNCTIONS}
    x, weight = torch.randn(1, 4, 6, 5), torch.randn(2, 4, 3, 3)
    options = ([1, 1], [1, 1], [1, 1], 1)
    conv = made["windowed_conv"](x, weight, None, options, (2, 1, 1))
    most, mean = (
        made["windowed_pool"](x, name, ([3, 3], [1, 1], [0, 1]), (2, 1, 1), fill)
        for name, fill in (("max_pool2d", float("-inf")), ("avg_pool2d", 0.0))
    )
    spread = made["windowed_transposed_conv"](
        x,
        weight.transpose(0, 1),
        None,
        ([2, 2], [0, 1], [1, 1], [0, 0]),
        1,
        (2, -1, 0, 9),
    )
    near = made["windowed_nearest"](x, "upsample_nearest2d", [12, 10], (2, 0, 1, 9))
    sizes = ([4, 10], False)
    line = made["windowed_linear"](
        x, "upsample_bilinear2d", sizes, (6, 12), (2, 0, 3, 7)
    )
    heads = made["causal_attention"](x, x, x, 2, 5, {})
    statistics = made["group_norm_statistics"](x, 2, 1e-5)
    normal = made["group_norm_apply"](x, *statistics, None, None)
    rows, ends = torch.randn(6, 16), torch.tensor([1, 1, 6], dtype=torch.int32)
    matrices = torch.randn(3, 16, 8)
    name = "aten._grouped_mm.default"
    groups = made["grouped_rows"](rows[2:4], matrices, ends, 2, 4, name)
    functional = torch.nn.functional
    expected = [
        (conv, functional.conv2d(x, weight, padding=1)),
        (most, functional.max_pool2d(x, 3, 1, 1)),
        (mean, functional.avg_pool2d(x, 3, 1, 1)),
        (
            spread,
            functional.conv_transpose2d(x, weight.transpose(0, 1), None, 2, 1)[
                ..., :9, :
            ],
        ),
        (near, functional.interpolate(x, scale_factor=2)[:, :, 1:9]),
        (line, functional.interpolate(x, scale_factor=2, mode="bilinear")[:, :, 3:7]),
        (heads, lowered.causal_attention(x, x, x, 2, 5, {})),
        (normal, functional.group_norm(x, 2)),
        (groups, rows[2:4] @ matrices[2]),
    ]
    assert len(made) == len(expected)
    for got, whole in expected:
        assert torch.allclose(got, whole, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (1, 6, 1), (3, 6), (2, 6, 3, 2, 4)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_in_two_passes(
    shape: tuple[int, ...], groups: int, dtype: torch.dtype
) -> None:
    if len(shape) == 2 and groups == 6:
        shape = (*shape, 2)  # else each group has one element
    x = (torch.randn(shape) * 3 + 100).to(dtype)
    weight, bias = torch.randn(6, dtype=dtype), torch.randn(6, dtype=dtype)
    for source in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
        mean, rstd = lowered.group_norm_statistics(source, groups, 1e-5)
        assert (
            mean.shape
            == rstd.shape
            == (
                shape[0],
                groups,
                *[1] * (len(shape) - 2),
            )
        )
        got = lowered.group_norm_apply(source, mean, rstd, weight, bias)
        expected = torch.group_norm(source, groups, weight, bias, 1e-5)
        tolerance = {torch.float64: 1e-9, torch.float32: 1e-3}.get(dtype, 5e-2)
        assert got.dtype == dtype
        assert torch.allclose(got, expected, tolerance, tolerance)


def test_statistics_make_no_tensor_as_large_as_their_operand() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            several = result if isinstance(result, tuple | list) else [result]
            sizes.extend(each.untyped_storage().nbytes() for each in several)
            return result

    x = torch.randn(2, 8, 16, 16)
    with Sizes():
        lowered.group_norm_statistics(x, 4, 1e-5)
    own = x.untyped_storage().nbytes()
    assert max(size for size in sizes if size != own) == own // 8


@pytest.mark.parametrize("groups", [33, 66, 99])
def test_statistics_of_very_many_groups(groups: int) -> None:
    x = torch.randn(2, 2 * groups, 3)
    mean, rstd = lowered.group_norm_statistics(x, groups, 1e-5)
    each = x.reshape(2, groups, 6)
    assert torch.allclose(mean, each.mean(2, True), atol=1e-6)
    expected = each.var(2, unbiased=False, keepdim=True).add(1e-5).rsqrt()
    assert torch.allclose(rstd, expected, 1e-5)


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_causal_rows_see_the_keys_up_to_their_own(rows: int) -> None:
    query, key = torch.randn(2, 3, rows, 4), torch.randn(2, 3, 6, 4)
    attention = torch.nn.functional.scaled_dot_product_attention
    expected = attention(query, key, key, is_causal=True)
    for start in range(rows):
        part = query[..., start : start + 2, :]
        keys = min(start + 2, 6)
        got = lowered.causal_attention(part, key, key, start, keys, {})
        assert torch.allclose(got, expected[..., start : start + 2, :], atol=1e-6)
