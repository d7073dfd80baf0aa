"""Linear layers of rows and of planes, and convolutions of signals and volumes, as
kernels, compiled and fused."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.compiling.module import Compiled  # noqa: E402
from memplan.core.verify import verify  # noqa: E402
from memplan.fusing import decide  # noqa: E402
from tests.strategies import examples  # noqa: E402

pytestmark = pytest.mark.torch
WIDTH = 12
PACKED = memplan.CompileOptions(max_slowdown=1e6, pack=True)
FUSED = memplan.FuseOptions(measure=False, kernels=("direct",))


class Sum(nn.Module):
    """The sum of what several layers make of the same."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        total = 0
        for layer in self.layers:
            total = total + layer(x)
        return total


class Back(nn.Module):
    """What makes volumes smaller, and brings them back to their size."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return nn.functional.interpolate(self.layers(x), x.shape[2:])


class Normed(nn.Module):
    """A linear layer, and a batch normalisation of all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH, bias=False), norm(1)

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        return self.norm(y.flatten(0, -2)).reshape_as(y)


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
    "normed": Normed,
    "normed twice": lambda: nn.Sequential(Normed(), nn.ReLU(), Normed()),
}
SHAPES = [(2, 5), (1, 7), (3, 1), (1, 1), (2, 3, 4), (1, 1, 5), (2, 1, 1), (2, 2, 1, 3)]


class Does(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def conv(size: int, groups: int = 1) -> Any:
    return nn.Conv2d(WIDTH, WIDTH, size, padding=size // 2, groups=groups)


def norm(dims: int) -> Any:
    kinds = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
    made = kinds[dims](WIDTH)
    made.running_mean.uniform_(-0.5, 0.5)
    made.running_var.uniform_(0.5, 1.5)
    return made


# The same of signals (n, WIDTH, length).
SIGNALS: dict[str, Any] = {
    "pointwise": lambda: nn.Conv1d(WIDTH, WIDTH, 1),
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
# The same of images (n, WIDTH, height, width).
IMAGES: dict[str, Any] = {
    "pointwise": lambda: nn.Conv2d(WIDTH, WIDTH, 1),
    "four": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, 4, 2, 1)),
    "two": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, 2, 2)),
    "three": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, 3, 2, 1, 1)),
    "nine": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, 9, 3, 3)),
    "much padding": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, 4, 2, 3)),
    "rows": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, (4, 3), (2, 3), (1, 0))),
    "one": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, 3, 1, 1)),
    "odd": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, 3, 2, 1)),
    "groups": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, 4, 2, 1, groups=3)),
    "dilated": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, 2, 2, dilation=2)),
    "normed": lambda: Back(
        nn.ConvTranspose2d(WIDTH, WIDTH, 4, 2, 1, bias=False), norm(2), nn.ReLU()
    ),
    "tanh": lambda: Back(nn.ConvTranspose2d(WIDTH, WIDTH, 2, 2), nn.Tanh()),
    "twice": lambda: Back(
        nn.ConvTranspose2d(WIDTH, WIDTH, 2, 2), Does(lambda x: x.relu() + x)
    ),
    "corner": lambda: Back(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(WIDTH, WIDTH, 3, 2)),
    "other corner": lambda: Back(
        nn.ZeroPad2d((2, 0, 1, 0)), nn.Conv2d(WIDTH, WIDTH, 3, 1)
    ),
    "behind": lambda: nn.Sequential(
        nn.ZeroPad2d((0, 2, 0, 2)), nn.Conv2d(WIDTH, WIDTH, 3), nn.ReLU()
    ),
    "branches": lambda: Sum(conv(3), nn.Sequential(conv(1), norm(2)), norm(2)),
    "one channel": lambda: Sum(
        conv(3), nn.Conv2d(WIDTH, 1, 1), nn.Conv2d(WIDTH, 1, 3, padding=1)
    ),
    "by channel": lambda: Sum(
        *(nn.Sequential(conv(3, WIDTH), norm(2)) for _ in "123"),
        conv(1, WIDTH),
        norm(2),
    ),
    "in groups": lambda: Sum(conv(3, 3), conv(5, 3), conv(3), norm(2), nn.ReLU()),
    "even": lambda: Back(
        Sum(
            nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(WIDTH, WIDTH, 2, 2)),
            nn.Conv2d(WIDTH, WIDTH, 4, 2, 2),
            nn.Conv2d(WIDTH, WIDTH, 2, 2, 1),
        )
    ),
    "narrow": lambda: Sum(
        nn.Conv2d(WIDTH, WIDTH, (1, 3), 1, (0, 1)),
        nn.Conv2d(WIDTH, WIDTH, (3, 1), 1, (1, 0), bias=False),
    ),
    "no bias": lambda: Sum(*(nn.Conv2d(WIDTH, WIDTH, 1, bias=False) for _ in "12")),
    "one behind": lambda: Back(nn.ZeroPad2d((0, 1, 0, 0)), nn.Conv2d(WIDTH, WIDTH, 1)),
    "relu": nn.ReLU,
}
# The same of volumes (n, WIDTH, depth, height, width).
VOLUMES: dict[str, Any] = {
    "pointwise": lambda: nn.Conv3d(WIDTH, WIDTH, 1),
    "conv": lambda: nn.Conv3d(WIDTH, WIDTH, 3, padding=1),
    "no bias": lambda: nn.Conv3d(WIDTH, WIDTH, 3, padding=1, bias=False),
    "flat": lambda: nn.Conv3d(WIDTH, WIDTH, (1, 3, 3), padding=(0, 1, 1)),
    "deep": lambda: nn.Conv3d(WIDTH, WIDTH, (5, 1, 1), padding=(2, 0, 0)),
    "dilated": lambda: nn.Conv3d(WIDTH, WIDTH, 3, padding=2, dilation=2),
    "same": lambda: nn.Conv3d(WIDTH, WIDTH, 3, padding="same"),
    "groups": lambda: nn.Conv3d(WIDTH, WIDTH, 3, padding=1, groups=3),
    "strided": lambda: Back(nn.Conv3d(WIDTH, WIDTH, 3, (2, 1, 1), 1), norm(3)),
    "norm": lambda: norm(3),
    "conv, norm": lambda: nn.Sequential(
        nn.Conv3d(WIDTH, WIDTH, 3, padding=1), norm(3), nn.ReLU()
    ),
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "max": lambda: Back(nn.MaxPool3d((1, 2, 2))),
    "deep max": lambda: Back(nn.MaxPool3d((3, 1, 1), (2, 1, 1), ceil_mode=True)),
    "max of all": lambda: Back(nn.MaxPool3d(2, 1)),
    "apart": lambda: Back(nn.MaxPool3d((2, 1, 1), 1, 0, (2, 1, 1))),
    "padded max": lambda: nn.MaxPool3d(3, 1, 1),
    "mean": lambda: Back(nn.AvgPool3d((2, 1, 2), 1)),
    "padded mean": lambda: nn.AvgPool3d((1, 3, 3), 1, (0, 1, 1)),
    "other mean": lambda: nn.AvgPool3d(3, 1, 1, count_include_pad=False),
    "cat": lambda: Does(lambda x: torch.cat(x.chunk(2, 1)[::-1], 1)),
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
        self.first = next(iter(layers.values()))()
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
def steady(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, faster: None) -> None:
    """Linear layers run as memplan's kernel, and what is compiled counts as faster."""
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(decide, "fastest", min)


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


def check_on(model: nn.Module, x: Any, larger: bool = False) -> Any:
    """larger: whether it may need more memory than the model, which then runs."""
    model = model.eval()
    with warnings.catch_warnings():
        # An input may lie so that torch has to run what takes it.
        warnings.filterwarnings(
            "ignore", "memplan.fuse: .*(no supported layers|none of its layers)"
        )
        module = memplan.compile(model, (x,), None, PACKED)
        ready = memplan.fuse(model, FUSED)
        for given in (x, torch.randn_like(x)):
            with torch.no_grad():
                expected = model(given)
                for found in (module(given), ready(given)):
                    for one, other in zip(expected, found, strict=True):
                        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
                        assert lie(one) == lie(other)
    reason = module.memplan.reason
    if not (larger and reason.startswith("it would need")):
        assert module.memplan.status == "compiled", reason
        assert not verify(module.memplan.plan)
    assert not module.memplan.internal_errors
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


@pytest.mark.parametrize("images", [1, 3])
def test_volumes(images: int) -> None:
    torch.manual_seed(0)
    names = [name for name in VOLUMES if name not in ("groups", "same")]
    model = Steps(names, {1, 4}, {2}, VOLUMES)
    x = torch.randn(images, WIDTH, 6, 5, 7)
    module, ready = check_on(model, x)
    assert isinstance(ready.programs()[0], Compiled)
    keys = {op.key for op in module.runner.schedule.flat.program.ops}
    assert "aten.conv3d" not in keys
    assert module.memplan.kernels > 20


def test_a_norm_and_an_addition_are_part_of_the_kernels() -> None:
    torch.manual_seed(0)
    model = Steps(["conv, norm"], {0}, set(), VOLUMES)
    module, _ = check_on(model, torch.randn(2, WIDTH, 3, 4, 4))
    keys = {op.key for op in module.runner.schedule.flat.program.ops}
    assert not {"aten.batch_norm", "aten.relu", "aten.conv3d"} & keys
    assert module.memplan.kernels <= 7  # three for each convolution, and the addition


@pytest.mark.parametrize("images", [1, 2])
def test_images_that_grow(images: int) -> None:
    torch.manual_seed(0)
    stay = {"groups", "dilated", "one", "odd", "much padding"}
    names = [name for name in IMAGES if name not in stay]
    model = Steps(names, {1, 4}, {2}, IMAGES)
    module, ready = check_on(model, torch.randn(images, WIDTH, 6, 5))
    assert isinstance(ready.programs()[0], Compiled)
    keys = {op.key for op in module.runner.schedule.flat.program.ops}
    assert not any("transpose" in key and "conv" in key for key in keys)
    assert "aten.constant_pad_nd" not in keys


def test_what_follows_a_transposed_convolution_is_part_of_its_kernels() -> None:
    torch.manual_seed(0)
    model = Steps(["normed"], set(), set(), IMAGES)
    module, _ = check_on(model, torch.randn(2, WIDTH, 6, 6))
    keys = {op.key for op in module.runner.schedule.flat.program.ops}
    assert not {"aten.batch_norm", "aten.relu"} & keys
    assert module.memplan.kernels == 5


@pytest.mark.parametrize(
    ("name", "kernels"),
    [("branches", 2), ("no bias", 2), ("in groups", 3), ("even", 3)],
)
def test_branches_are_one_convolution(name: str, kernels: int) -> None:
    torch.manual_seed(0)
    module, _ = check_on(
        Steps([name], set(), set(), IMAGES), torch.randn(2, WIDTH, 6, 6)
    )
    assert module.memplan.kernels == kernels


FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


@examples(
    10,
    soak=400,
    given=st.sampled_from([(2, IMAGES), (3, VOLUMES)]).flatmap(
        lambda kind: st.tuples(
            st.just(kind),
            st.lists(st.sampled_from(sorted(kind[1])), min_size=1, max_size=5),
            st.tuples(*[st.integers(3, 7)] * kind[0]),
        )
    ),
    added=st.sets(st.integers(0, 4), max_size=3),
    kept=st.sets(st.integers(0, 4), max_size=2),
    images=st.integers(1, 3),
    last=st.booleans(),
)
def test_random_networks_of_images_and_volumes(
    given: Any, added: set[int], kept: set[int], images: int, last: bool
) -> None:
    torch.manual_seed(0)
    (dims, layers), names, sizes = given
    order = FORMATS[dims] if last else torch.contiguous_format
    x = torch.randn(images, WIDTH, *sizes).contiguous(memory_format=order)
    check_on(Steps(names, added, kept, layers), x, larger=True)
