"""Models with depthwise convolutions: what they are fused to, and what comes out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from fuse_alike import OWN, apart, fused, kinds, made, noise, same

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from depthwise_networks import NETWORKS, network  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from memplan.compiling.fuse import fuse  # noqa: E402
from memplan.compiling.summary import summary  # noqa: E402
from memplan.fusing import decide  # noqa: E402
from memplan.fusing.layers import FusedConv, StackNode  # noqa: E402
from memplan.fusing.options import FuseOptions, Joining  # noqa: E402
from memplan.toolchain.compiler import NoCompilerError, find_compiler  # noqa: E402

needs_compiler = pytest.mark.skipif(
    find_compiler() is None, reason="needs a C++ compiler"
)


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
        isinstance(node, FusedConv) and node.convolution.groups > 1
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
    engine = ready.programs()[0].runner.schedule.joined
    assert kinds(engine) == [["affine", "relu", "pool", "add", "relu"]]
    (run,) = summary(ready).parts[0].running
    assert list(run.layers) == ["batch_norm", "relu", "conv2d_2", "add", "relu_1"]


@needs_compiler
def test_bfloat16_runs_by_it_too() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 24, 1), nn.Hardswish(), apart(24, 5, 2, padding=2),
        nn.BatchNorm2d(24), nn.Hardswish(), nn.Conv2d(24, 8, 1),
    ).eval().bfloat16()  # fmt: skip
    x = noise(2, 3, 21, 22).bfloat16()
    options = FuseOptions(measure=False, kernels=("depthwise",))
    ready = fuse(model, options)
    with torch.no_grad():
        expected, found = model(x), ready(x)
    engine = ready.programs()[0].runner.schedule.joined
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
def test_kernels_are_said_and_can_be_left_out() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 12, 1), nn.SiLU(), apart(12, padding=1), nn.SiLU()
    ).eval()
    x = noise(1, 3, 12, 12)
    ready = fuse(model, OWN)
    with torch.no_grad():
        ready(x)
    (part,) = summary(ready).parts
    outcomes = [(each.became, each.into, each.kernel) for each in part.layers]
    assert outcomes[2] == ("convolution", "", "depthwise")
    joined = [each[:2] for each in (outcomes[1], outcomes[3])]
    assert joined == [("joined", "conv2d_1")] * 2
    assert part.kernels == {"direct": 1, "depthwise": 1}
    (run,) = part.running
    assert run.by == "memplan"
    assert run.steps == [[("silu", "conv2d_1", "silu_1")]]
    plain = FuseOptions(measure=False, kernels=("direct", "onednn"))
    engine = fused(model, x, options=plain)
    assert sorted(engine.kernels.values()) == ["direct", "onednn"]
    assert sum(isinstance(node, StackNode) for node in engine.nodes) == 2


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


def test_without_a_compiler_it_is_onednns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> Any:
        raise NoCompilerError

    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(decide, "compiled_many", none)
    monkeypatch.setattr(decide, "_told", set())
    model = nn.Sequential(nn.Conv2d(3, 6, 1), apart(6), nn.SiLU()).eval()
    x = noise(1, 3, 12, 12)
    for kernels in (("direct", "depthwise"), ("direct", "depthwise", "onednn")):
        ready = fuse(model, FuseOptions(measure=False, kernels=kernels))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(model(x), ready(x))
        engine = ready.programs()[0].runner.schedule.joined
        assert "depthwise" not in engine.kernels.values()
    assert not list(tmp_path.glob("*.json"))  # nothing is decided for good
