"""Models with depthwise convolutions: what they are fused to, and what comes out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from fuse_alike import alike, made, noise, same

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from depthwise_networks import NETWORKS, network  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from memplan.fusing.engine import decide  # noqa: E402
from memplan.fusing.engine import stacks as engine_stacks  # noqa: E402
from memplan.fusing.fuse import fuse  # noqa: E402
from memplan.fusing.nodes import Called, Depthwise, Joined, Joining, Stacked  # noqa: E402
from memplan.fusing.options import FuseOptions  # noqa: E402
from memplan.fusing.prepared import Prepared  # noqa: E402
from memplan.fusing.summary import summary  # noqa: E402
from memplan.toolchain.compiler import NoCompilerError, find_compiler  # noqa: E402

needs_compiler = pytest.mark.skipif(
    find_compiler() is None, reason="needs a C++ compiler"
)
OWN = FuseOptions(measure=False, kernels=("direct", "depthwise"))


def fused(model: Any, *inputs: Any, options: FuseOptions = OWN) -> Any:
    """The model's engine, whose results are the model's."""
    ready = fuse(model, options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        same(model(*inputs), ready(*inputs))
    (program, *_) = ready.programs()
    assert isinstance(program, Prepared), getattr(program, "reason", "")
    return program.engine


def kinds(engine: Any) -> list[list[str]]:
    """Of every depthwise convolution's stack, what its operations are."""
    return [
        [each.kind for each in node.operations]
        for node in engine.nodes
        if isinstance(node, Depthwise)
    ]


def apart(c: int, size: Any = 3, stride: int = 1, **more: Any) -> Any:
    return nn.Conv2d(c, c, size, stride, groups=c, **more)


@needs_compiler
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_compute_what_they_did(name: str) -> None:
    model = network(name)
    engine = fused(model, noise(2, 3, 64, 64))
    if name != "convnext":
        assert "onednn" not in engine.kernels.values()
    count = sum(
        each.groups > 1 for each in model.modules() if isinstance(each, nn.Conv2d)
    )
    assert list(engine.kernels.values()).count("depthwise") == count
    assert not any(
        isinstance(node, Joined) and node.convolution.groups > 1
        for node in engine.nodes
    )


@needs_compiler
def test_element_wise_layers_around_it_are_taken_in() -> None:
    model = made(
        lambda m, x: m.tail(m.act(m.norm(m.apart(m.act(m.head(x)))))),
        head=nn.Conv2d(3, 20, 1), apart=apart(20, padding=1),
        norm=nn.BatchNorm2d(20), act=nn.SiLU(), tail=nn.Conv2d(20, 4, 1),
    )  # fmt: skip
    engine = fused(model, noise(2, 3, 15, 17))
    assert kinds(engine) == [["silu", "pool", "silu"]]
    assert len(engine.nodes) == 3
    for left_out, expected in (
        (Joining(prologues=False), ["pool", "silu"]),
        (Joining(epilogues=False), ["silu", "pool"]),
    ):
        options = FuseOptions(left_out, OWN.kernels, measure=False)
        assert kinds(fused(model, noise(2, 3, 15, 17), options=options)) == [expected]


@needs_compiler
def test_what_others_take_too_is_not_taken_in() -> None:
    def work(m: Any, x: Any) -> Any:
        y = f.silu(m.head(x))
        z = f.silu(m.apart(y))
        return m.tail(z * z.mean((2, 3), keepdim=True)) + m.tail(y)

    parts = {"head": nn.Conv2d(3, 20, 1), "tail": nn.Conv2d(20, 4, 1)}
    model = made(work, apart=apart(20, padding=1), **parts)
    engine = fused(model, noise(2, 3, 15, 17))
    assert kinds(engine) == [["pool", "silu"]]


@needs_compiler
def test_one_stack_between_two_is_taken_in_by_one() -> None:
    model = made(
        lambda m, x: m.second(f.hardswish(m.first(m.head(x)))),
        head=nn.Conv2d(3, 9, 1), first=apart(9, padding=1), second=apart(9, 5),
    )  # fmt: skip
    assert kinds(fused(model, noise(1, 3, 12, 12))) == [["pool", "hardswish"], ["pool"]]


@needs_compiler
def test_an_addition_and_a_normalisation_in_front_are_of_it() -> None:
    def work(m: Any, x: Any) -> Any:
        y = torch.cat((x, m.head(x)), 1)
        z = m.other(x)
        return f.relu(m.apart(f.relu(m.norm(y))) + z)

    model = made(
        work, head=nn.Conv2d(3, 15, 1), norm=nn.BatchNorm2d(18),
        apart=apart(18, padding=1), other=nn.Conv2d(3, 18, 1),
    )  # fmt: skip
    ready = fuse(model, OWN)
    x = noise(2, 3, 10, 11)
    with torch.no_grad():
        same(model(x), ready(x))
    engine = ready.programs()[0].engine
    assert kinds(engine) == [["affine", "relu", "pool", "add", "relu"]]
    (run,) = summary(ready).parts[0].running
    assert list(run.layers) == ["norm", "relu", "apart", "add", "relu_1"]


@needs_compiler
@pytest.mark.parametrize(
    ("given", "behind"),
    [((1, 1, 1, 1), (0, 0)), ((0, 1, 0, 1), (1, 1)), ((2, 0, 1, 4), (3, -2))],
)
def test_zeros_in_front_are_its_padding(given: Any, behind: Any) -> None:
    model = made(
        lambda m, x: m.apart(f.pad(m.head(x), given)),
        head=nn.Conv2d(3, 18, 1), apart=apart(18, stride=2, padding=(0, 1)),
    )  # fmt: skip
    engine = fused(model, noise(2, 3, 14, 14))
    (node,) = [each for each in engine.nodes if isinstance(each, Depthwise)]
    assert node.convolution.convolution.behind == behind
    assert len(engine.nodes) == 2
    by_onednn = FuseOptions(measure=False, kernels=("onednn",))
    fused(model, noise(2, 3, 14, 14), options=by_onednn)


@needs_compiler
def test_zeros_around_planes_are_any_convolutions_padding() -> None:
    model = nn.Sequential(
        nn.ZeroPad2d(2), nn.Conv2d(3, 8, 3), nn.ZeroPad2d((0, 1, 0, 1)),
        nn.Conv2d(8, 8, 3, 2), nn.ConstantPad2d(1, 0.5), apart(8),
        nn.ZeroPad2d(0), nn.ConstantPad2d((1, 1, 2, 2), 0.0), nn.Conv2d(8, 4, 1),
    ).eval()  # fmt: skip
    ready = fuse(model, OWN)
    x = noise(2, 3, 14, 15)
    with torch.no_grad():
        same(model(x), ready(x))
    (part,) = summary(ready).parts
    became = {each.place: (each.became, each.reason) for each in part.layers}
    assert became["0"] == ("joined", "")
    assert became["2"] == ("torch", "no convolution takes its zeros as padding")
    assert became["4"] == ("torch", "it pads with something else than zeros")
    assert became["6"] == ("nothing", "")
    assert became["7"] == ("joined", "")


@needs_compiler
def test_padding_that_more_than_one_takes_stays() -> None:
    def work(m: Any, x: Any) -> Any:
        y = f.pad(x, (1, 1, 1, 1))
        return m.one(y) + m.other(y)

    model = made(work, one=nn.Conv2d(6, 6, 3), other=apart(6))
    first, *_ = fused(model, noise(1, 6, 9, 9)).nodes
    assert isinstance(first, Called)
    without = FuseOptions(measure=False, joining=Joining(prologues=False))
    single = made(lambda m, x: m.one(f.pad(x, (1, 1))), one=nn.Conv2d(6, 6, 3))
    assert len(fused(single, noise(1, 6, 9, 9), options=without).nodes) == 2


def test_paddings_that_are_none_of_a_convolution() -> None:
    conv = nn.Conv2d(4, 4, 3)
    for pad in (
        lambda x: f.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: f.pad(x, (1, 1, 1, 1), value=2.0),
        lambda x: f.pad(x, (-1, 1, 1, 1)),
        lambda x: f.pad(x, (1, 1, 1, 1, 0, 0)),
    ):
        alike(made(lambda m, x, pad=pad: m.conv(pad(x)), conv=conv), noise(1, 4, 9, 9))


@needs_compiler
def test_padding_that_keeps_planes_as_large() -> None:
    model = made(
        lambda m, x: f.conv2d(x, m.apart.weight, m.apart.bias, padding="same",
                              dilation=2, groups=7),
        apart=apart(7, (3, 5)),
    )  # fmt: skip
    engine = fused(model, noise(1, 7, 13, 12))
    (node,) = engine.nodes
    assert node.convolution.convolution.padding == (2, 4)


@needs_compiler
def test_bfloat16_runs_by_it_too() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 24, 1), nn.Hardswish(), apart(24, 5, 2, padding=2),
        nn.BatchNorm2d(24), nn.Hardswish(), nn.Conv2d(24, 8, 1),
    ).eval().bfloat16()  # fmt: skip
    x = noise(2, 3, 21, 22).bfloat16()
    options = FuseOptions(measure=False, kernels=("depthwise", "onednn"))
    ready = fuse(model, options)
    with torch.no_grad():
        expected, found = model(x), ready(x)
    engine = ready.programs()[0].engine
    assert kinds(engine) == [["hardswish", "pool", "hardswish"]]
    assert found.dtype == torch.bfloat16
    scale = expected.float().abs().max()
    assert float((found.float() - expected.float()).abs().max() / scale) < 2**-5


@needs_compiler
def test_inputs_of_any_strides_and_batches() -> None:
    model = nn.Sequential(
        apart(10, padding=1), nn.ReLU6(), nn.Conv2d(10, 6, 1), nn.BatchNorm2d(6)
    ).eval()
    ready = fuse(model, OWN)
    whole = noise(3, 20, 30, 13)
    with torch.no_grad():
        for x in (whole[:, ::2, ::2], whole[:1, :10, 3:19], whole[1:3, 10:].mT):
            same(model(x), ready(x))
        wide = whole.contiguous(memory_format=torch.channels_last)[:, 5:15]
        torch.testing.assert_close(ready(wide), model(wide), rtol=1e-5, atol=1e-5)


@needs_compiler
def test_weights_changed_in_place_are_seen() -> None:
    model = nn.Sequential(apart(6, padding=1), nn.BatchNorm2d(6), nn.SiLU()).eval()
    ready, x = fuse(model, OWN), noise(1, 6, 9, 9)
    with torch.no_grad():
        same(model(x), ready(x))
        model[0].weight.mul_(2)
        model[1].running_mean.add_(1)
        same(model(x), ready(x))


@needs_compiler
def test_kernels_are_said_and_can_be_left_out() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 12, 1), nn.SiLU(), apart(12, padding=1), nn.SiLU()
    ).eval()
    x = noise(1, 3, 12, 12)
    ready = fuse(model, OWN)
    with torch.no_grad():
        ready(x)
    (part,) = summary(ready).parts
    fates = [(each.became, each.into, each.kernel) for each in part.layers]
    assert fates[2] == ("convolution", "", "depthwise")
    assert [each[:2] for each in (fates[1], fates[3])] == [("joined", "_2")] * 2
    assert part.kernels == {"direct": 1, "depthwise": 1}
    (run,) = part.running
    assert run.by == "memplan"
    assert run.steps == [[("_1", "_2", "_3")]]
    plain = FuseOptions(measure=False, kernels=("direct", "onednn"))
    engine = fused(model, x, options=plain)
    assert sorted(engine.kernels.values()) == ["direct", "onednn"]
    assert sum(isinstance(node, Stacked) for node in engine.nodes) == 2


def test_other_groups_are_onednns() -> None:
    for model in (
        nn.Conv2d(8, 16, 3, groups=8),
        nn.Conv2d(8, 8, 3, groups=4),
        apart(8).double(),
    ):
        x = noise(1, 8, 9, 9).to(model.weight.dtype)
        ready = fuse(nn.Sequential(nn.Conv2d(8, 8, 1).to(x.dtype), model).eval(), OWN)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ready(x)
        parts = summary(ready).parts
        assert all("depthwise" not in part.kernels for part in parts)


def test_the_faster_one_is_taken(
    kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in kernel_cache.glob("*.json"):
        each.unlink()
    asked: list[list[str]] = []

    def fastest(*given: Any) -> list[str]:
        asked.append(given[4])
        return given[4][::-1]

    monkeypatch.setattr(decide, "fastest", fastest)
    model = nn.Sequential(apart(6), nn.SiLU(), apart(6), nn.Conv2d(6, 6, 1)).eval()
    options = FuseOptions(measure=False, kernels=("depthwise", "onednn"))
    engine = fused(model, noise(1, 6, 12, 12), options=options)
    if find_compiler() is not None:
        assert asked[:2] == [["depthwise", "onednn"]] * 2
    assert set(engine.kernels.values()) == {"onednn"}


def test_without_a_compiler_it_is_onednns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> Any:
        raise NoCompilerError

    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(engine_stacks, "compiled_many", none)
    monkeypatch.setattr(engine_stacks, "_told", set())
    model = nn.Sequential(nn.Conv2d(3, 6, 1), apart(6), nn.SiLU()).eval()
    x = noise(1, 3, 12, 12)
    for kernels in (("direct", "depthwise"), ("direct", "depthwise", "onednn")):
        ready = fuse(model, FuseOptions(measure=False, kernels=kernels))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(model(x), ready(x))
        engine = ready.programs()[0].engine
        assert "depthwise" not in engine.kernels.values()
    assert not list(tmp_path.glob("*.json"))  # nothing is decided for good
