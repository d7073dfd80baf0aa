"""Writes in place, images that depend on one another, and parts that fail: what the
first inputs do not show."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_alike import FORCED, Made, noise, same  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from memplan.compiling.fuse import fuse  # noqa: E402
from memplan.compiling.module import Compiled, Runner  # noqa: E402
from memplan.compiling.parts import CompiledParts  # noqa: E402
from memplan.fusing.options import FuseOptions  # noqa: E402


def network(forward: Callable[..., Any], **parts: Any) -> Any:
    torch.manual_seed(0)
    return Made(forward, conv=nn.Conv2d(3, 8, 3, padding=1), **parts).eval()


def halves(m: Any, x: Any) -> Any:
    y = f.relu(m.conv(x))
    y[:, 0::2].clamp_(-20, 20)
    y[:, 1::2].clamp_(-20, 20)
    return y


def view(m: Any, x: Any) -> Any:
    y = m.conv(x)
    y.flatten(1).clamp_(-20, 20)
    return y


def written_after_a_clone(m: Any, x: Any) -> Any:
    y = m.conv(x)
    raw = y.clone()
    return y.clamp_(-20, 20), raw


def written_clone(m: Any, x: Any) -> Any:
    y = m.conv(x)
    return y.clone().clamp_(-20, 20), y


def written_product(m: Any, x: Any) -> Any:
    y = m.conv(x)
    raw = y * torch.ones_like(y)
    return y.clamp_(-20, 20), raw


def twice(m: Any, x: Any) -> Any:
    y = m.conv(x).clamp_(-20, 20)
    return y.add_(1).relu_(), m.conv(x)


WRITES = [halves, view, written_after_a_clone, written_clone, written_product, twice]


@pytest.mark.parametrize("forward", WRITES)
def test_writes_that_show_on_other_inputs(forward: Callable[..., Any]) -> None:
    model, x = network(forward), noise(2, 3, 8, 8) / 100
    ready = fuse(model, FORCED)
    with torch.no_grad():
        same(model(x), ready(x))
        assert isinstance(ready.programs()[0], Compiled)
        same(model(x * 10_000), ready(x * 10_000))


def brightest(m: Any, x: Any) -> Any:
    return f.relu(m.conv(torch.where(x.amax() > 50, x / 255, x)))


def of_all(m: Any, x: Any) -> Any:
    y = m.conv(x)
    return y / y.abs().amax().clamp(min=20)


def of_batch(m: Any, x: Any) -> Any:
    return m.conv(x) * m.scale


MIXED = [brightest, of_all, of_batch]


@pytest.mark.parametrize("forward", MIXED)
def test_images_that_may_depend_on_others_go_together(
    forward: Callable[..., Any],
) -> None:
    model = network(forward)
    model.scale = torch.ones(4, 1, 1, 1)
    x = noise(4, 3, 8, 8)
    ready = fuse(model, FuseOptions(measure=False, micro_batch=1))
    with torch.no_grad(), pytest.warns(UserWarning, match="all images run at once: "):
        for each in (x, torch.cat([255 * x[:1], x[1:]])):
            same(model(each), ready(each), 1e-3)
    assert type(ready.programs()[0].runner) is Runner


def test_a_result_that_is_given_twice_is_one() -> None:
    def forward(m: Any, x: Any) -> Any:
        y = f.relu(m.conv(x))
        return y, y

    ready = fuse(network(forward), FORCED)
    with torch.no_grad():
        one, other = ready(noise(2, 3, 8, 8))
    one.zero_()
    assert not other.any()


class Notes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 1))
        self.log: list[int] = []

    def forward(self, x: Any) -> Any:
        self.log.append(1)
        y = self.body(x)
        if x.sum() < 0:
            raise ValueError("below")
        return y


@pytest.mark.filterwarnings("ignore:memplan.fuse")
def test_what_a_model_in_parts_raises_is_raised_once() -> None:
    torch.manual_seed(0)
    model, x = Notes().eval(), noise(2, 3, 8, 8).abs()
    ready = fuse(model, FORCED)
    with torch.no_grad():
        same(model.body(x), ready(x))
        assert isinstance(ready.programs()[0], CompiledParts)
        for _ in range(2):
            before = len(model.log)
            with pytest.raises(ValueError, match="below"):
                ready(-x)
            assert len(model.log) == before + 1


@pytest.mark.filterwarnings("ignore:memplan.fuse")
def test_a_part_of_several_shapes() -> None:
    def forward(m: Any, x: Any) -> Any:
        y = m.body(x)
        return y if y.mean() > 1e3 else m.body(y[:2])

    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 1))
    model, x = Made(forward, body=body).eval(), noise(4, 3, 16, 16)
    ready = fuse(model, FORCED)
    with torch.no_grad():
        for each in (x, x[:, :, :9]):
            same(model(each), ready(each))
    assert all(isinstance(each, CompiledParts) for each in ready.programs())


@pytest.mark.filterwarnings("ignore:memplan.fuse")
def test_what_is_written_to_the_standard_error_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def forward(m: Any, x: Any) -> Any:
        print("here", file=sys.stderr)
        return f.relu(m.conv(x))

    ready = fuse(network(forward), FORCED)
    with torch.no_grad():
        ready(noise(2, 3, 8, 8))
        capsys.readouterr()
        for _ in range(3):
            ready(noise(2, 3, 8, 8))
    assert capsys.readouterr().err == 3 * "here\n"


def test_linear_layers_without_a_bias() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 8, bias=False)
    model, x = nn.Sequential(*layers).eval(), noise(3, 5, 8)
    ready = fuse(model, FuseOptions(measure=False, kernels=("direct",)))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        same(model(x), ready(x))
    assert set(ready.programs()[0].runner.schedule.joined.kernels.values()) == {
        "direct"
    }


def test_conjugated_results() -> None:
    model = network(lambda m, x: torch.fft.rfft2(m.conv(x)).conj())
    ready, x = fuse(model, FORCED), noise(2, 3, 8, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(ready(x), model(x))
