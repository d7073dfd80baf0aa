"""What became of the model's own layers, and the reasons where torch runs them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_alike import same  # noqa: E402
from torch import nn  # noqa: E402

from memplan.compiling.fuse import fuse  # noqa: E402
from memplan.fusing.options import FuseOptions  # noqa: E402
from memplan.toolchain.compiler import find_compiler  # noqa: E402
from tests.conftest import Command  # noqa: E402

MODEL = """\
import torch
from torch import nn
from torch.nn import functional as f

torch.set_num_threads(1)
class Between(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, 8, 3, padding=1), pool
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        x = f.relu(self.stem(x)).flatten(2).transpose(1, 2)
        return self.b(self.pool(f.relu(self.a(x)).transpose(1, 2)).transpose(1, 2))
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.three, self.one = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.own, self.relu = nn.BatchNorm2d(8), nn.ReLU()
    def forward(self, x): return self.relu(self.three(x) + self.one(x) + self.own(x))
def between(): return Between(nn.MaxPool1d(2)).eval(), torch.randn(2, 3, 16, 16)
def volumes():
    return nn.Sequential(
        nn.Conv3d(3, 8, 3, padding="same"), nn.BatchNorm3d(8), nn.ReLU(),
        nn.MaxPool3d(2), nn.Conv3d(8, 8, 3, padding="valid"), nn.ReLU(),
    ).eval(), torch.randn(1, 3, 6, 8, 8)
def phases():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.BatchNorm2d(4),
        nn.ReLU(), nn.ConvTranspose2d(4, 4, 3, 1, 1),
    ).eval(), torch.randn(1, 3, 10, 10)
def branches(): return nn.Sequential(Branches()).eval(), torch.randn(2, 8, 9, 9)
def signals():
    return nn.Sequential(
        nn.Conv1d(8, 8, 3, padding="same"), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Conv1d(8, 8, 3, groups=8), nn.Conv1d(8, 8, 3, groups=2),
    ).eval(), torch.randn(2, 8, 20)
def unbatched(): return nn.Sequential(nn.Conv2d(3, 8, 3)).eval(), torch.randn(3, 8, 8)
"""


@pytest.fixture
def document(command: Command, tmp_path: Path) -> Callable[[str], Any]:
    """The document of `memplan fuse` on a factory of MODEL, by direct kernels."""
    (tmp_path / "m.py").write_text(MODEL)

    def run(name: str) -> Any:
        said = command("fuse", f"m.py:{name}", "--keep-slower", "--json")
        assert said.code == 0, said.err
        return json.loads(said.out)

    return run


def layers_of(found: Any) -> list[tuple[str, str, str]]:
    """The place, operator and outcome of each layer of a document's only part."""
    (part,) = found["parts"]
    names = {each["name"]: each["place"] for each in part["layers"]}
    return [
        (
            each["place"],
            each["operator"],
            " ".join([each["became"], names.get(each["into"], "")]).strip(),
        )
        for each in part["layers"]
    ]


def test_layers_of_volumes_are_listed_once(document: Any) -> None:
    found = document("volumes")
    listed = layers_of(found)
    assert [each[:2] for each in listed] == [
        *(("0", "Conv3d"), ("1", "BatchNorm3d"), ("2", "ReLU"), ("3", "MaxPool3d")),
        *(("4", "Conv3d"), ("5", "ReLU")),
    ]
    became = [each[2] for each in listed]
    assert became[0] == became[4] == "convolution"
    assert became[1] == "joined 0"
    reasons = {each["reason"] for each in found["parts"][0]["layers"]}
    assert reasons <= {"", "its convolution runs by oneDNN", "no kernel was compiled"}


def test_layers_of_transposed_convolutions_are_listed_once(document: Any) -> None:
    found = document("phases")
    assert [each[:2] for each in layers_of(found)] == [
        *(("0", "Conv2d"), ("1", "ConvTranspose2d"), ("2", "BatchNorm2d")),
        *(("3", "ReLU"), ("4", "ConvTranspose2d")),
    ]
    first, last = (found["parts"][0]["layers"][at] for at in (1, 4))
    assert (first["became"], first["reason"]) == ("convolution", "")
    assert last["became"] == "torch"
    assert last["reason"] == "it is transposed and its stride is not from 2 to 4"


def test_parallel_convolutions_are_joined_into_the_widest(document: Any) -> None:
    listed = layers_of(document("branches"))
    assert len(listed) == 6
    known = {place: what for place, _, what in listed}
    assert known["0.three"] == "convolution"
    assert known["0.one"] == known["0.own"] == "joined 0.three"
    sums = [what for _, operator, what in listed if operator == "add"]
    assert sums == ["joined 0.three"] * 2


def test_layers_of_signals_are_listed_once(document: Any) -> None:
    listed = layers_of(document("signals"))
    assert [each[:2] for each in listed] == [
        *(("0", "Conv1d"), ("1", "BatchNorm1d"), ("2", "ReLU")),
        *(("3", "Conv1d"), ("4", "Conv1d")),
    ]
    assert listed[0][2] == listed[3][2] == listed[4][2] == "convolution"


def test_a_pooling_that_lies_otherwise_than_torch_says(document: Any) -> None:
    """`max_pool1d` on the CPU returns row-major results whatever meta tensors say."""
    found = document("between")
    assert not found["warnings"]
    known = {place: what for place, _, what in layers_of(found)}
    assert known["stem"] == known["b"] == "convolution"
    reasons = {each["place"]: each["reason"] for each in found["parts"][0]["layers"]}
    assert reasons["a"] == "its input does not lie row by row in memory"


def test_the_report_names_what_has_no_batch(command: Command, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    said = command("fuse", "m.py:unbatched", "--keep-slower", "--show")
    assert said.code == 0, said.err
    why = "none of its layers can be fused (0: it has no batch dimension)"
    assert f"Sequential runs unchanged: {why}" in said.out
    assert "run by torch: it has no batch dimension" in said.out


CONV1D = nn.Conv1d(8, 8, 3)
CASES: dict[str, tuple[Any, Any, str]] = {
    "no batch": (
        nn.ConvTranspose2d(3, 8, 2, 2),
        torch.zeros(3, 8, 8),
        "it has no batch dimension",
    ),
    "no batch of signals": (CONV1D, torch.zeros(8, 9), "it has no batch dimension"),
    "type": (
        nn.Conv2d(3, 8, 3).double(),
        torch.zeros(1, 3, 8, 8).double(),
        "its type is float64",
    ),
    "nothing": (nn.Conv3d(3, 8, 3), torch.zeros(0, 3, 4, 8, 8), "it has no elements"),
    "uneven": (
        nn.Conv3d(3, 8, 2, padding="same"),
        torch.zeros(1, 3, 4, 8, 8),
        "its padding is not symmetric",
    ),
    "groups": (
        nn.Conv3d(4, 8, 3, groups=2),
        torch.zeros(1, 4, 4, 8, 8),
        "it has groups",
    ),
    "groups of signals": (
        nn.Conv1d(4, 8, 3, groups=2),
        torch.zeros(1, 4, 9),
        "it has groups",
    ),
    "transposed signals": (
        nn.ConvTranspose1d(4, 8, 2, 2),
        torch.zeros(1, 4, 9),
        "it is transposed",
    ),
    "one row": (CONV1D, torch.zeros(2, 8, 3), "its signals have one element"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_reason_why_a_convolution_is_not_fused(name: str) -> None:
    layer, x, reason = CASES[name]
    model = nn.Sequential(layer, nn.Softmax(1)).eval()
    ready = fuse(model, FuseOptions(measure=False, kernels=("direct", "onednn")))
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        same(model(x), ready(x))
    said = " ".join(str(each.message) for each in told)
    (program,) = ready.programs()
    assert f"(0: {reason})" in program.reason
    assert program.reason in said


def test_kernels_that_are_not_accurate_enough() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(3, 8, 3), nn.ReLU()).eval()
    ready = fuse(model, FuseOptions(measure=False, tolerance=0.0))
    with torch.no_grad(), pytest.warns(UserWarning, match="results differ by"):
        ready(torch.randn(1, 3, 6, 7, 8))


STRINGS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "1-d": (nn.Conv1d, (2, 4, 11)),
    "2-d": (nn.Conv2d, (2, 4, 7, 8)),
    "3-d": (nn.Conv3d, (2, 4, 5, 6, 7)),
}


@pytest.mark.parametrize("dims", STRINGS)
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_padding_in_words(dims: str, padding: str, dilation: int) -> None:
    torch.manual_seed(0)
    kind, shape = STRINGS[dims]
    made: Any = kind
    layer = made(4, 6, 3, padding=padding, dilation=dilation)
    agrees(nn.Sequential(layer, nn.ReLU()).eval(), torch.randn(shape))


def agrees(model: Any, x: Any) -> None:
    """The model is fused, by direct kernels alone, and has the same results."""
    kernels = "direct", *(["depthwise"] if find_compiler() else [])
    ready = fuse(model, FuseOptions(measure=False, kernels=kernels))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        same(model(x), ready(x))
    (program,) = ready.prepared()
    assert program.memplan.kernels


@pytest.mark.parametrize("depthwise", [False, True])
def test_signals_that_lie_channels_last(depthwise: bool) -> None:
    if depthwise and find_compiler() is None:
        pytest.skip("no C++ compiler")
    torch.manual_seed(0)
    layer = nn.Conv1d(8, 8, 3, groups=8 if depthwise else 1)
    model = nn.Sequential(layer, nn.BatchNorm1d(8), nn.ReLU()).eval()
    agrees(model, torch.randn(3, 9, 8).transpose(1, 2))
    agrees(model, torch.randn(3, 8, 9))


class Turned(nn.Module):
    """Poolings of signals between linear layers, on views that lie column by column."""

    def __init__(self, conv: bool) -> None:
        super().__init__()
        self.first = nn.Conv1d(8, 8, 3) if conv else nn.Identity()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 16)
        self.norm, self.pool = nn.BatchNorm1d(8), nn.MaxPool1d(2, 1)

    def forward(self, x: Any) -> Any:
        rows = self.one(self.first(x).transpose(1, 2))
        pooled = self.pool(self.norm(rows.transpose(1, 2)))
        return self.two(pooled.transpose(1, 2)), pooled


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("conv", [False, True])
def test_poolings_between_linear_layers(batch: int, conv: bool) -> None:
    torch.manual_seed(0)
    agrees(Turned(conv).eval(), torch.randn(batch, 8, 16))
