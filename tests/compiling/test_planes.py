"""Linear layers of rows and of planes as kernels, compiled and fused."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.compiling import bench  # noqa: E402
from memplan.core.verify import verify  # noqa: E402
from memplan.fusing.engine import decide  # noqa: E402
from memplan.fusing.prepared import Prepared  # noqa: E402
from tests.strategies import examples  # noqa: E402

pytestmark = pytest.mark.torch
WIDTH = 12
PACKED = memplan.CompileOptions(max_slowdown=1e6, pack=True)
FUSED = memplan.FuseOptions(measure=False, kernels=("direct",))

# By name, a layer of values whose last dimension is WIDTH, and as many afterwards.
LAYERS: dict[str, Any] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "no bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "wide": lambda: nn.Sequential(
        nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, WIDTH)
    ),
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "norm": lambda: nn.LayerNorm(WIDTH),
    "softmax": lambda: nn.Softmax(-1),
    "scaled": lambda: Does(lambda x: x * 0.5 + 1),
    "by channel": lambda: Does(lambda x: x * torch.linspace(-1, 1, WIDTH)),
    "by row": lambda: Does(lambda x: x * x.mean(-1, keepdim=True)),
    "turned": lambda: Does(lambda x: x.transpose(1, -2).contiguous().view(x.shape)),
    "halves": lambda: Does(lambda x: torch.cat(x.chunk(2, -1)[::-1], -1)),
    "flat": lambda: Does(lambda x: x.reshape(-1, WIDTH).reshape(x.shape)),
}
SHAPES = [(2, 5), (1, 7), (3, 1), (1, 1), (2, 3, 4), (1, 1, 5), (2, 1, 1), (2, 2, 1, 3)]


class Does(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class Steps(nn.Module):
    """Layers one after another; `added` are behind which the input of the layer is
    added, `kept` the ones whose results are results of the whole."""

    def __init__(self, names: list[str], added: set[int], kept: set[int]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(LAYERS[name]() for name in names)
        self.added, self.kept = added, kept

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        found = []
        for i, layer in enumerate(self.layers):
            y = layer(x)
            x = x + y if i in self.added else y
            if i in self.kept:
                found.append(x)
        return (*found, x)


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Linear layers run as memplan's kernel, and what is compiled counts as faster."""
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(decide, "fastest", lambda runs: [min(runs)])
    monkeypatch.setattr(bench, "seconds", lambda runs, **_: [1.0, 0.5])


def check(model: nn.Module, shape: tuple[int, ...], strided: bool = False) -> Any:
    """The compiled and the fused model, whose results are the model's."""
    x = torch.randn(*shape, WIDTH)
    if strided:
        x = torch.randn(*shape[:-1], WIDTH, shape[-1]).transpose(-1, -2)
    model = model.eval()
    with warnings.catch_warnings():
        # An input may lie so that torch has to run what takes it.
        warnings.filterwarnings("ignore", "memplan.fuse: .*no supported layers")
        module = memplan.compile(model, (x,), None, PACKED)
        ready = memplan.fuse(model, FUSED)
        for given in (x, torch.randn_like(x)):
            with torch.no_grad():
                expected = model(given)
                for found in (module(given), ready(given)):
                    for one, other in zip(expected, found, strict=True):
                        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
                        assert one.stride() == other.stride()
    assert module.memplan.status == "compiled", module.memplan.reason
    assert not module.memplan.internal_errors
    assert not verify(module.memplan.plan)
    return module, ready


@pytest.mark.parametrize("shape", SHAPES)
def test_every_layer_behind_a_linear_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    names = list(LAYERS)
    module, ready = check(Steps(names, {1, 2}, {3}), shape)
    (program,) = ready.programs()
    vectors = math.prod(shape[1:]) == 1
    assert vectors or isinstance(program, Prepared)
    assert vectors or module.memplan.kernels >= 5


def test_an_addition_and_an_activation_are_part_of_the_kernel() -> None:
    torch.manual_seed(0)
    module, _ = check(Steps(["linear", "relu"], {0}, set()), (2, 9))
    steps = module.runner.schedule.flat.program.ops
    assert not {"aten.relu", "aten.add"} & {op.key for op in steps}
    assert module.memplan.fused > module.memplan.kernels


@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 4)])
def test_inputs_that_lie_otherwise(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    check(Steps(["norm", "linear", "wide"], {2}, set()), shape, strided=True)


def test_weights_may_change() -> None:
    torch.manual_seed(0)
    model = Steps(["linear"], set(), set())
    module, ready = check(model, (2, 9))
    x = torch.randn(2, 9, WIDTH)
    with torch.no_grad():
        model.first.weight.mul_(2)
        for each in (module, ready):
            torch.testing.assert_close(each(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_weight_that_is_computed_stays_with_torch() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            return (nn.functional.linear(x, self.table * x.mean()).relu(),)

    torch.manual_seed(0)
    model, x = Tied().eval(), torch.randn(2, 9, WIDTH)
    module = memplan.compile(model, (x,), None, PACKED)
    assert module.memplan.kernels == 0
    with torch.no_grad():
        assert torch.equal(module(x)[0], model(x)[0])


@examples(
    12,
    names=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=6),
    added=st.sets(st.integers(0, 5), max_size=3),
    kept=st.sets(st.integers(0, 5), max_size=2),
    shape=st.sampled_from(SHAPES),
    strided=st.booleans(),
)
def test_random_networks(
    names: list[str],
    added: set[int],
    kept: set[int],
    shape: tuple[int, ...],
    strided: bool,
) -> None:
    torch.manual_seed(0)
    check(Steps(names, added, kept), shape, strided)
