"""Whatever regions the search makes, results stay, and so does what was estimated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, Phase, example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import memplan  # noqa: E402
from memplan.chunking.canonical import rejoined, with_two_passes  # noqa: E402
from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.chunking.recompute import Base  # noqa: E402
from memplan.chunking.search import (  # noqa: E402
    Effort,
    Search,
    Trial,
)
from memplan.chunking.timing import Costs, calibrated  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402

pytestmark = pytest.mark.torch
F = torch.nn.functional

WIDTH = 16
Layer = Callable[[Any, Any], Any]


def attention(x: Any, w: Any) -> Any:
    batch, length, _ = x.shape
    q, k, v = (x @ w).repeat(1, 1, 3).view(batch, length, 3, 4, 4).unbind(2)
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    weights = torch.softmax(q @ k.transpose(-1, -2) / 2, -1)
    return (weights @ v).transpose(1, 2).reshape(batch, length, WIDTH)


def fused_attention(x: Any, w: Any, causal: bool = False) -> Any:
    q, k, v = (x.unflatten(-1, (4, 4)).transpose(1, 2) * each for each in (1, 2, 3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2).flatten(2)


def causal_attention(x: Any, w: Any) -> Any:
    return fused_attention(x, w, True)


def gated(x: Any, w: Any) -> Any:
    one, other = (x @ w.repeat(1, 4)).chunk(2, -1)
    return (F.silu(one) * other).reshape(*x.shape, 2).sum(-1)


def perceptron(x: Any, w: Any) -> Any:
    return F.gelu(F.linear(x, w.repeat(4, 1))) @ w.repeat(4, 1)


def residual(x: Any, w: Any) -> Any:
    return x + F.layer_norm(x, (WIDTH,)) * 0.5


def pooled(x: Any, w: Any) -> Any:
    return x * torch.sigmoid(x.mean(1, keepdim=True)) + x.amax(-1, keepdim=True)


def convolved(x: Any, w: Any) -> Any:
    wide = F.conv1d(x.transpose(1, 2), w.unsqueeze(-1).repeat(2, 1, 3), padding=1)
    return F.conv1d(F.relu(wide), w.repeat(1, 2).unsqueeze(-1)).transpose(1, 2)


def grouped(x: Any, w: Any) -> Any:
    return F.silu(F.group_norm(x.transpose(1, 2), 4)).transpose(1, 2)


def outer(x: Any, w: Any) -> Any:
    pair = x.unsqueeze(1) * x.unsqueeze(2)
    return torch.relu(pair @ w).mean(2)


def joined(x: Any, w: Any) -> Any:
    both = torch.cat([x, torch.tanh(x)], 1)
    return both[:, : x.shape[1]] - both[:, x.shape[1] :].flip(1)


def gathered(x: Any, w: Any) -> Any:
    scores = torch.einsum("btd,bsd->bts", x, x @ w).cumsum(-1)
    return F.layer_norm(scores @ x, (WIDTH,))


LAYERS: list[Layer] = [
    attention,
    fused_attention,
    causal_attention,
    gated,
    perceptron,
    residual,
    pooled,
    convolved,
    grouped,
    outer,
    joined,
    gathered,
]


class Chain(torch.nn.Module):
    """Layers one after another, with a way around each of some."""

    def __init__(self, layers: list[Layer], around: list[bool]) -> None:
        super().__init__()
        self.layers, self.around = layers, around
        generator = torch.Generator().manual_seed(len(layers))
        weight = torch.randn(WIDTH, WIDTH, generator=generator) / 4
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: Any) -> Any:
        kept = []
        for layer, around in zip(self.layers, self.around, strict=True):
            y = layer(x, self.weight)
            x = x + y if around else y
            kept.append(x.abs().mean())
        return {"last": x, "means": torch.stack(kept)}


class Tried:
    """A model, and what the search does to it."""

    def __init__(self, model: Any, x: Any) -> None:
        self.model, self.x = model, x
        self.exported = export(model, (x,), {})
        self.inference = Inference()
        lowered = lower(self.exported, self.inference)
        self.program = with_two_passes(lowered, self.inference)
        with torch.no_grad():
            self.expected = model(x)

    def search(self, share: float, **effort: Any) -> list[Trial]:
        """All trials that were made on the way to a share of the estimated peak."""
        made: list[Trial] = []

        class Watched(Search):
            def _made(self, *given: Any) -> Trial | None:
                found = super()._made(*given)
                if found is not None:
                    made.append(found)
                return found

        search = Watched(Base(self.program), self.inference, Costs(), Effort(**effort))
        search.run(int(search.start.peak * share))
        self.program_peak = search.start.peak
        return made

    def check(self, trial: Trial) -> None:
        forward = compiled(source(rejoined(trial.program), "tried"), "tried")
        weights = dict.fromkeys(("weight",), self.model.weight)
        weights.update(self.exported.constants)

        def run() -> Any:
            return forward([self.x], weights)

        with torch.no_grad():
            error = relative_error(list(self.expected.values()), list(run()))
        assert error <= 1e-4, source(trial.program, "tried")
        # Two rows of the smallest tensors are far below what is rounded here.
        assert activation_peak(run) <= 1.03 * trial.peak + 20_000


CHAINS = (
    st.lists(st.tuples(st.sampled_from(LAYERS), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 2),
    st.integers(30, 70),
    st.floats(0.1, 0.7),
)


@pytest.mark.parametrize("count", [4, pytest.param(50, marks=pytest.mark.soak)])
def test_chunked_programs_compute_the_same_in_the_memory_estimated(count: int) -> None:
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    usual = settings(
        max_examples=count,
        suppress_health_check=list(HealthCheck),
        phases=phases,
        derandomize=count < 10,  # to look for new failures is the soak's
    )
    usual(given(*CHAINS)(check_chain))()


@example([(attention, True), (perceptron, True)], 2, 61, 0.3)
@example([(outer, True), (outer, False)], 1, 48, 0.2)
@example([(convolved, True), (grouped, False)], 1, 64, 0.4)
@example([(gated, False)] * 4, 1, 31, 0.63)  # shapes in loops in loops, and a tail
@example(  # of a group norm, one pass in a loop
    [(outer, False), (grouped, False), (gated, False), (residual, False)], 2, 36, 1 / 3
)
def check_chain(
    chain: list[tuple[Layer, bool]], batch: int, length: int, share: float
) -> None:
    layers, around = map(list, zip(*chain, strict=True))
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(batch, length, WIDTH, generator=generator)
    tried = Tried(Chain(layers, around).eval(), x)
    made = tried.search(share, width=2, built=6, finest=16)
    for trial in made[:: max(1, len(made) // 6)]:
        tried.check(trial)


class Two(torch.nn.Module):
    """Two chains take one wide activation, and both leave the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(512, WIDTH) / 4)

    def forward(self, x: Any) -> Any:
        wide = torch.tanh(F.linear(x, self.weight))
        return {"one": wide.sin() @ self.weight, "other": wide.softmax(-1).amax(-1)}


def test_a_loop_has_several_outputs() -> None:
    tried = Tried(Two().eval(), torch.randn(3, 101, WIDTH))
    made = tried.search(0.1)
    best = min(made, key=lambda trial: trial.peak)
    assert best.peak < 0.1 * tried.program_peak
    tried.check(best)


def test_the_machine_is_measured() -> None:
    assert all(constant > 0 for constant in astuple(calibrated()))


class Named(torch.nn.Module):
    """An input has the name that a slice of the other one has in a loop."""

    def forward(self, x: Any, x_i: Any) -> Any:
        return torch.relu(torch.tanh(x) @ x_i).softmax(-1) @ x_i.T


def test_names_in_a_loop_are_its_own() -> None:
    x, other = torch.randn(2000, 64), torch.randn(64, 512)
    options = memplan.ChunkOptions(max_slowdown=100)
    chunked = memplan.chunk(Named().eval(), (x, other), "30%", options=options)
    assert chunked.memplan.internal_errors == {}
    assert torch.allclose(chunked(x, other), Named()(x, other), atol=1e-5)


class Ticking:
    """A clock in whose every look a second has passed."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


class Repeated(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        for _ in range(80):
            x = torch.softmax(x @ x.T, -1) @ x
        return x


def test_a_search_ends_in_time_in_a_program_of_many_repetitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = Tried(Repeated().eval(), torch.randn(256, 8))
    monkeypatch.setattr("memplan.chunking.search.time", Ticking())
    assert len(tried.search(0.2, seconds=10, built=1)) < 40
