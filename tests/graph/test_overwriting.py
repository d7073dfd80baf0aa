"""Operators that write over an operand: the same bits as beside it, and fewer bytes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import WRITTEN, in_place, profile  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.program import Op  # noqa: E402

pytestmark = pytest.mark.torch


def arguments(key: str, x: torch.Tensor) -> tuple[object, ...]:
    """Arguments after x, for a channel dimension of 1."""
    channels = [torch.rand(x.shape[1]) + 0.5 for _ in range(4)]
    return {
        "aten.softmax": (1,),
        "aten.log_softmax": (1,),
        "aten.batch_norm": (*channels, False, 0.1, 1e-5, True),
        "aten.slice_scatter": (torch.rand(4, 2, 6, 7), 1, 1, 3, 1),
        "aten.select_scatter": (torch.rand(4, 6, 7), 1, 2),
    }[key]


@pytest.mark.parametrize("key", sorted(WRITTEN))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_result_over_its_operand_has_the_same_bits(
    key: str, dtype: torch.dtype
) -> None:
    x = torch.randn(4, 5, 6, 7, dtype=dtype)
    rest = arguments(key, x)
    if key.endswith("scatter"):
        rest = (rest[0].to(dtype), *rest[1:])  # type: ignore[attr-defined]
    packet = getattr(torch.ops.aten, key.removeprefix("aten."))
    target = getattr(packet, packet.overloads()[0])
    expected = target(x.clone(), *rest)
    over = in_place(Op("y", target, ()))
    assert over is not None
    found = over(x, *rest)
    assert found.data_ptr() == x.data_ptr()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_batch_norm_with_statistics_of_its_own_type(dtype: torch.dtype) -> None:
    x = torch.randn(4, 5, 6, dtype=dtype)
    channels = [(torch.rand(5) + 0.5).to(dtype) for _ in range(4)]
    rest = (*channels, False, 0.1, 1e-5, True)
    expected = torch.ops.aten.batch_norm.default(x, *rest)
    found = WRITTEN["aten.batch_norm"](x, *rest)
    assert found is x
    assert torch.equal(x, expected)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax_over_any_dimension(dim: int) -> None:
    x = torch.randn(3, 33, 65)
    expected = x.softmax(dim)
    assert torch.equal(WRITTEN["aten.softmax"](x, dim), expected)


class Scores(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q @ k).softmax(-1).sum(-1)


def test_softmax_takes_no_memory_of_its_own() -> None:
    inputs = torch.randn(64, 8), torch.randn(8, 64)
    program = lower(export(Scores(), inputs, {}), Inference())
    assert profile(program).peak == 64 * 64 * 4 + 64 * 4
    assert profile(program, overwriting=False).peak == 2 * 64 * 64 * 4
