"""What is said to be memory of its own is, whatever it is made of."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from memplan.fusing.engine.arena import FUNCTIONS, MODULES, allocates_result  # noqa: E402
from memplan.graph.program import Op, Ref  # noqa: E402

pytestmark = pytest.mark.torch

ONE = (1, 1, 1, 1)
# Arguments with which least is changed, so that a view would do.
CALLS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    *((each, (1,)) for each in (functional.pixel_shuffle, functional.pixel_unshuffle)),
    (functional.interpolate, ((4, 4),)),
    (functional.interpolate, (None, 1, "bilinear")),
    (torch.ops.aten.upsample_nearest2d.default, ([4, 4],)),
    *(
        (each, ())
        for each in (
            functional.gelu,
            functional.silu,
            functional.mish,
            torch.sigmoid,
            torch.tanh,
        )
    ),
    *((each, (1,)) for each in (torch.pow, torch.mul, torch.div, operator.mul)),
    *((each, (0,)) for each in (torch.add, operator.add, torch.sub)),
    *(
        (each, (1,))
        for each in (functional.softmax, functional.log_softmax, torch.amax)
    ),
    *((each, ((),)) for each in (torch.mean, torch.sum)),
    (torch.sum, (0,)),
    (functional.layer_norm, ((4,),)),
    (functional.group_norm, (2,)),
    (functional.conv2d, (torch.ones(ONE).expand(4, 1, 1, 1), None, 1, 0, 1, 4)),
    (
        functional.conv_transpose2d,
        (torch.ones(ONE).expand(4, 1, 1, 1), None, 1, 0, 0, 4),
    ),
    (functional.linear, (torch.eye(4),)),
]
MADE: list[nn.Module] = [
    *(nn.PixelShuffle(1), nn.PixelUnshuffle(1), nn.Upsample(scale_factor=1)),
    *(nn.UpsamplingBilinear2d(size=4), nn.UpsamplingNearest2d(size=4)),
    *(nn.GELU(), nn.Sigmoid(), nn.Tanh(), nn.Softplus()),
    *(nn.Softmax(1), nn.Softmax2d(), nn.LogSoftmax(1)),
    *(nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Linear(4, 4)),
    *(nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 4, 1)),
]


def apart(call: Callable[..., Any], rest: tuple[Any, ...]) -> bool:
    laid = torch.contiguous_format, torch.channels_last
    for images in (1, 2):
        for form in laid:
            x = torch.rand(images, 4, 4, 4).to(memory_format=form)
            with torch.no_grad():
                made = call(x, *rest)
            if made.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
                return False
    return True


def op(target: Any, rest: tuple[Any, ...] = ()) -> Op:
    return Op("made", target, (Ref("x"), *rest))


def test_functions() -> None:
    for call, rest in CALLS:
        assert allocates_result(op(call, rest)), call
        assert apart(call, rest), call
    for call in (torch.cat, torch.stack):
        assert allocates_result(op(call))
        assert apart(lambda x, each=call: each([x]), ())
    for name in ("reshape", "flatten", "contiguous", "relu_", "chunk", "dropout"):
        assert name not in FUNCTIONS


def test_modules() -> None:
    for module in MADE:
        assert allocates_result(op(module)), module
        assert apart(module, ()), module
    assert all(hasattr(nn, name) for name in MODULES)


def test_what_is_not_known() -> None:
    class Mine(nn.GELU):
        def forward(self, x: Any) -> Any:
            return x

    hooked = nn.GELU()
    hooked.register_forward_hook(lambda module, given, made: given[0])
    for module in (Mine(), hooked, nn.Identity(), nn.Dropout(), nn.Flatten()):
        assert not allocates_result(op(module)), module
    kept = Op("made", torch.add, (Ref("x"), 1), {"out": Ref("x")})
    assert not allocates_result(kept)
