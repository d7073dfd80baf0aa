"""Fake recordings attribute memory as recordings of real tensors do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import memplan
from memplan.trace.sites import Site
from memplan.trace.trace import Category, Trace

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def perceptron() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(30, 80), torch.nn.ReLU(), torch.nn.Linear(80, 30)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        inputs = torch.randn(64, 30)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def adversaries() -> None:
    maker = torch.nn.Sequential(torch.nn.Linear(8, 60), torch.nn.Tanh())
    judge = torch.nn.Sequential(torch.nn.Linear(60, 90), torch.nn.Linear(90, 1))
    of_maker = torch.optim.SGD(maker.parameters(), lr=0.1, momentum=0.9)
    of_judge = torch.optim.RMSprop(judge.parameters())
    for _ in range(3):
        made, real = maker(torch.randn(32, 8)), torch.randn(32, 60)
        of_judge.zero_grad()
        (judge(made.detach()).mean() - judge(real).mean()).backward()
        of_judge.step()
        of_maker.zero_grad()
        judge(made).mean().backward()
        of_maker.step()


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):  # type: ignore[no-untyped-def]
        result = values.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (result,) = ctx.saved_tensors
        return gradient * result


def without_optimizer() -> None:
    model = torch.nn.Linear(40, 50)
    for _ in range(3):
        memplan.step()
        Exponential.apply(model(torch.randn(60, 40))).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.01)
                parameter.grad = None


class Twice(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(20, 70)
        self.norm = torch.nn.LayerNorm(70)
        self.unused = [torch.nn.Linear(70, 20)]  # no part of it that torch knows

    def forward(self, values):  # type: ignore[no-untyped-def]
        run = torch.utils.checkpoint.checkpoint
        inner = run(self.first, values, use_reentrant=False, preserve_rng_state=False)
        return self.unused[0](self.norm(inner))


def recomputed() -> None:
    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(90, 20)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def from_numbers() -> None:
    model = torch.nn.Linear(50, 10)
    for _ in range(3):
        memplan.step()
        listed = torch.tensor([[0.5] * 50] * 100)
        shared = torch.from_numpy(np.ones((100, 50), dtype=np.float32))
        (model(listed) + model(shared)).sum().backward()


PROGRAMS = (perceptron, adversaries, without_optimizer, recomputed, from_numbers)


def recorded(program: Callable[[], None], path: Path, device: str) -> Trace:
    with memplan.record(path, device=device, steps="all") as recording:
        program()
    trace = recording.trace
    assert trace is not None
    return trace


def attributed(trace: Trace, at: str) -> tuple[Counter[Site], Counter[Category]]:
    live = memplan.live_at(memplan.buffers_of(trace), at)
    return Counter(live.sites()), Counter(live.categories)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_fake_recording_names_the_same_sites_and_categories(
    tmp_path: Path, program: Callable[[], None]
) -> None:
    real = recorded(program, tmp_path / "real.parquet", "cpu")
    fake = recorded(program, tmp_path / "fake.parquet", "fake")
    for at in ("peak", "1"):
        assert attributed(fake, at) == attributed(real, at)


def test_a_simulated_gpu_has_modules_operators_and_categories(tmp_path: Path) -> None:
    def program() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(300, 800), torch.nn.ReLU())
        model.to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            model(torch.randn(64, 300, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    trace = recorded(program, tmp_path / "gpu.parquet", "fake:cuda")
    sites, categories = attributed(trace, "peak")
    weights = 300 * 800 * 4
    assert categories[Category.PARAMETERS] >= weights
    assert categories[Category.GRADIENTS] >= weights
    assert categories[Category.OPTIMIZER_STATE] >= 2 * weights
    assert not categories[Category.UNKNOWN]
    assert {site.operator for site in sites} >= {"to", "zeros_like", "AddmmBackward0"}
    assert {site.module for site in sites} >= {"0"}


def test_after_the_recording_nothing_watches(tmp_path: Path) -> None:
    before = torch.nn.Module._call_impl
    recorded(perceptron, tmp_path / "fake.parquet", "fake")
    assert torch.nn.Module._call_impl is before
    from torch.optim import optimizer

    assert not optimizer._global_optimizer_pre_hooks
    assert not optimizer._global_optimizer_post_hooks


def test_the_default_device_may_be_the_simulated_gpu(tmp_path: Path) -> None:
    def program() -> None:
        torch.set_default_device("cuda")
        model = torch.nn.Sequential(torch.nn.Linear(300, 800), torch.nn.Dropout(0.1))
        assert torch.get_default_device().type == "cuda"
        for _ in range(3):
            memplan.step()
            assert model(torch.randn(64, 300).uniform_()).device.type == "cuda"
        torch.set_default_device(None)
        assert torch.randn(3).device.type == "cpu"

    trace = recorded(program, tmp_path / "gpu.parquet", "fake:cuda")
    categories = attributed(trace, "peak")[1]
    assert categories[Category.PARAMETERS] >= 300 * 800 * 4
    assert torch.get_default_device().type == "cpu"
