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
from memplan.compiling.module import Compiled  # noqa: E402
from memplan.core.verify import verify  # noqa: E402
from memplan.fusing import decide  # noqa: E402
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


# The same of signals (n, WIDTH, length).
SIGNALS: dict[str, Any] = {
    "conv": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1),
    "no bias": lambda: nn.Conv1d(WIDTH, WIDTH, 5, padding=2, bias=False),
    "dilated": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=2, dilation=2),
    "same": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding="same"),
    "groups": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=3),
    "depthwise": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH),
    "circular": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1, padding_mode="circular"),
    "norm": lambda: nn.BatchNorm1d(WIDTH),
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "pool": lambda: nn.AvgPool1d(3, 1, 1),
    "linear": lambda: Does(lambda x: (x.mT @ torch.ones(WIDTH, WIDTH)).mT),
}


class Steps(nn.Module):
    """Layers one after another; `added` are behind which the input of the layer is
    added, `kept` the ones whose results are results of the whole."""

    def __init__(
        self,
        names: list[str],
        added: set[int],
        kept: set[int],
        layers: dict[str, Any] = LAYERS,
    ) -> None:
        super().__init__()
        signals = layers is SIGNALS
        self.first = nn.Conv1d(WIDTH, WIDTH, 1) if signals else nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(layers[name]() for name in names)
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
    monkeypatch.setattr(decide, "fastest", min)
    monkeypatch.setattr(bench, "seconds", lambda runs, **_: [1.0, 0.5])


def check(model: nn.Module, shape: tuple[int, ...], strided: bool = False) -> Any:
    """The compiled and the fused model, whose results are the model's, of rows."""
    x = torch.randn(*shape, WIDTH)
    if strided:
        x = torch.randn(*shape[:-1], WIDTH, shape[-1]).transpose(-1, -2)
    return check_on(model, x)


def lie(tensor: Any) -> list[int]:
    """The strides along dimensions that have any."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]


def check_on(model: nn.Module, x: Any) -> Any:
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
                        assert lie(one) == lie(other)
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
    assert vectors or isinstance(program, Compiled)
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


def test_a_parameter_of_the_same_shape_is_added() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.places = nn.Parameter(torch.randn(1, WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            return y + self.places, (self.places * y.relu()).sum(1)

    torch.manual_seed(0)
    module, ready = check(Placed(), (1, WIDTH))
    assert module.memplan.kernels >= 1
    assert isinstance(ready.programs()[0], Compiled)


def test_weights_may_change() -> None:
    torch.manual_seed(0)
    model = Steps(["linear"], set(), set())
    module, ready = check(model, (2, 9))
    x = torch.randn(2, 9, WIDTH)
    with torch.no_grad():
        model.first.weight.mul_(2)
        for each in (module, ready):
            torch.testing.assert_close(each(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 16])
@pytest.mark.parametrize("images", [1, 3])
def test_signals(length: int, images: int) -> None:
    torch.manual_seed(0)
    names = [name for name in SIGNALS if name != "circular"]
    model = Steps(names, {1, 4}, {2}, SIGNALS)
    module, ready = check_on(model, torch.randn(images, WIDTH, length))
    (program,) = ready.programs()
    assert isinstance(program, Compiled) == (length > 1)
    assert (module.memplan.kernels >= 4) == (length > 1)


def test_a_signal_that_gets_shorter() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv1d(2, 16, 7, 2, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2)]
    layers += [nn.Conv1d(16, 32, 3, 2, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten()]

    class Network(nn.Sequential):
        def forward(self, x: Any) -> Any:
            return (super().forward(x),)

    _, ready = check_on(Network(*layers), torch.randn(2, 2, 64))
    assert isinstance(ready.programs()[0], Compiled)


def test_a_signal_without_a_batch_stays_with_torch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 3), nn.ReLU()).eval()
    x = torch.randn(WIDTH, 20)
    module = memplan.compile(model, (x,), None, PACKED)
    with torch.no_grad():
        torch.testing.assert_close(module(x), model(x))


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
    6,
    soak=200,
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


@examples(
    5,
    soak=200,
    names=st.lists(st.sampled_from(sorted(SIGNALS)), min_size=1, max_size=5),
    added=st.sets(st.integers(0, 4), max_size=3),
    kept=st.sets(st.integers(0, 4), max_size=2),
    images=st.integers(1, 3),
    length=st.integers(2, 20),
)
def test_random_networks_of_signals(
    names: list[str], added: set[int], kept: set[int], images: int, length: int
) -> None:
    torch.manual_seed(0)
    model = Steps(names, added, kept, SIGNALS)
    check_on(model, torch.randn(images, WIDTH, length))
