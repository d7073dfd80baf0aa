"""Results that lie in the arena: never overwritten while the caller holds them."""

from __future__ import annotations

import copy
import io
import threading
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.errors import UsageError  # noqa: E402
from memplan.graph.measure import footprint  # noqa: E402
from tests.compiling.modules import compiled  # noqa: E402

pytestmark = pytest.mark.torch
HELD = memplan.CompileOptions(1000.0, pack=False, reuse_outputs=True)


class Many(nn.Module):
    """Results of all kinds: whole, views of one another, of an input, of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 256)
        self.scale = nn.Parameter(torch.randn(3))

    def forward(self, x: Any) -> Any:
        q = torch.sin(torch.cos(self.layer(x))).softmax(-1)
        parts = {"least": q.argmin(-1), "scale": self.scale * 2, "rows": x[1:]}
        return q, q[0], q.view(-1, 4).mT, self.scale, x, q.max(-1), parts, q.bool()


def leaves(results: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(results)


def equal(one: Any, other: Any) -> bool:
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all(
        torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype
        for a, b in pairs
    )


@pytest.fixture(autouse=True)
def steady(faster: None) -> Any:
    """Without gradients; whatever is compiled counts as faster than the model."""
    with torch.no_grad():
        yield


@pytest.fixture
def many() -> Any:
    torch.manual_seed(0)
    model = Many().eval()
    return model, compiled(model, torch.randn(64, 64), options=HELD)


def test_a_call_asks_for_nothing(many: Any) -> None:
    model, module = many
    plan = module.memplan
    assert (plan.requests_after, plan.beside) == (0, 0)
    assert plan.arena == plan.bytes_after == plan.plan.peak == plan.plan.lower_bound
    assert not memplan.verify(plan.plan)
    for _ in range(3):
        x = torch.randn(64, 64)
        assert equal(module(x), model(x))
    module(x)
    assert footprint(lambda: module(x)).requests == 0
    # A loop that holds the last result takes a second arena, and then no more.
    result = module(x)
    for _ in range(3):
        result = module(x)
    assert footprint(lambda: module(x)).requests == 0
    assert equal(result, model(x))


def test_results_share_memory_as_those_of_the_model_do(many: Any) -> None:
    _, module = many
    x = torch.randn(64, 64)
    whole, row, *_ = module(x)
    whole[0] = 7
    assert torch.equal(row, torch.full((256,), 7.0))


@pytest.mark.parametrize("keep", ["the tensor", "a view", "an array", "a storage"])
def test_what_the_caller_holds_stays(many: Any, keep: str) -> None:
    model, module = many
    ways: dict[str, Any] = {
        "the tensor": lambda each: each,
        "a view": lambda each: each[::2, 3:],
        "an array": lambda each: each.numpy(),
        "a storage": lambda each: each.untyped_storage(),
    }
    inputs = [torch.randn(64, 64) for _ in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = [ways[keep](module(x)[0]) for x in inputs]
    for each, x in zip(kept, inputs, strict=True):
        expected = ways[keep](model(x)[0].clone())
        assert bytes(memoryview(torch.as_tensor(each).contiguous().numpy())) == bytes(
            memoryview(torch.as_tensor(expected).contiguous().numpy())
        )


def test_where_many_are_held_they_are_copied(many: Any) -> None:
    model, module = many
    inputs = [torch.randn(64, 64) for _ in range(9)]
    with pytest.warns(UserWarning, match="results are copied: several earlier"):
        kept = [module(x) for x in inputs]
    assert all(equal(one, model(x)) for one, x in zip(kept, inputs, strict=True))
    assert module.runner.arenas.bytes <= 3 * (module.memplan.arena + 64)


def test_a_result_is_saved_and_copied_without_the_arena(many: Any) -> None:
    _, module = many
    result = module(torch.randn(64, 64))[0]
    file = io.BytesIO()
    torch.save(result, file)
    assert file.tell() < 2 * result.nbytes
    assert torch.equal(copy.deepcopy(result), result)


def test_other_forms_and_threads(many: Any) -> None:
    model, module = many
    wrong: list[int] = []

    def calls(seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for size in [64, 32, 64, 96] * 8:
                x = torch.randn(size, 64, generator=draw)
                one, other = module(x), module(x + 1)
                if not (equal(one, model(x)) and equal(other, model(x + 1))):
                    wrong.append(seed)

    for size in (32, 96):
        module(torch.randn(size, 64))
    threads = [threading.Thread(target=calls, args=[seed]) for seed in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that results are copied
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not wrong
    assert [plan.status for plan in module.plans] == ["compiled"] * 3


def test_convolutions_of_torch_are_copied_into_the_arena() -> None:
    layers = nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)
    options = memplan.CompileOptions(1000.0, pack=False, reuse_outputs=True)
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 4, 32, 32)
    module = compiled(model, x, options=options)
    assert module.memplan.requests_after == 0
    assert torch.equal(module(x), model(x))


class Conjugate(nn.Module):
    def forward(self, x: Any) -> Any:
        h = (x[:, :, None] * torch.ones(32)).exp().softmax(-1).sum(-1)
        made = torch.complex(h, h)
        return made.conj(), torch._neg_view(h), made.conj().imag


def test_values_that_are_negated_where_they_are_read() -> None:
    model, x = Conjugate().eval(), torch.randn(64, 300)
    module = compiled(model, x, options=HELD)
    for one, other in zip(module(x), model(x), strict=True):
        assert torch.equal(one, other)


def test_within_a_budget() -> None:
    layers = nn.Linear(32, 512), nn.GELU(), nn.Linear(512, 8)
    model, x = nn.Sequential(*layers).eval(), torch.randn(256, 32)
    module = compiled(model, x, budget="30%", options=HELD)
    assert module.memplan.loops
    assert module.memplan.requests_after == 0
    assert torch.allclose(module(x), model(x), atol=1e-6)


def test_the_command(tmp_path: Any, command: Any) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "def factory():\n"
        "    layers = torch.nn.Linear(8, 99), torch.nn.GELU(), torch.nn.Softmax(-1)\n"
        "    return torch.nn.Sequential(*layers).eval(), torch.randn(512, 8)\n"
    )
    said = command("compile", "model.py:factory", "--reuse-outputs")
    assert said.code == 0, said.err
    assert "0 after" in said.out
    assert "0 B, results lie in the arena" in said.out


def test_gradients_of_results_that_share_memory_are_refused(many: Any) -> None:
    """And they can be written to."""
    _, module = many
    with torch.enable_grad():
        whole, row, *_ = module(torch.randn(64, 64))
        assert whole.requires_grad
        whole += 1
        row.mul_(2)
        assert torch.equal(whole[0], row)
        with pytest.raises(UsageError, match="no gradients"):
            (whole.sum() + row.sum()).backward()
