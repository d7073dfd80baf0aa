"""memplan fuse: every option, what it says of models, what goes wrong."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memplan.fusing import decide as stacks  # noqa: E402
from memplan.fusing import kernel  # noqa: E402
from memplan.toolchain import loading  # noqa: E402
from memplan.toolchain.compiler import find_compiler  # noqa: E402
from tests.cli.conftest import Command, OnModel, Said  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler"),
]

MODEL = """\
import torch
from torch import nn

torch.set_num_threads(1)
class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Sigmoid(), nn.ReLU())
        self.second = nn.Sequential(nn.AvgPool2d(2), nn.Tanh(), nn.ReLU())
    def forward(self, x):
        y = self.first(x)
        return self.second(y) if y.sum() > -1 else self.second(-y)
class Nested(nn.Module):
    def forward(self, pair): return torch.relu(pair[0]) + pair[1]
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(4, 4)
    def forward(self, x): return self.cell(x)[0]
def planes(n=2, c=4, side=24): return torch.randn(n, c, side, side)
def stack():
    layers = nn.MaxPool2d(3, 1, 1), nn.BatchNorm2d(4), nn.ReLU()
    return nn.Sequential(*layers * 3, nn.Dropout()).eval()
def both(): return stack(), planes()
def net():
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.GELU(), nn.Dropout(), nn.Conv2d(8, 8, 1), nn.Softmax(1),
    ).eval()
def network(): return net(), planes()
def alone(): return net()
def inputs(): return (planes(),)
def keywords(): return {"input": planes()}
def training(): return net().train(), planes()
def branching(): return Branching().eval(), planes()
def nested(): return Nested().eval(), ([planes(), planes()],)
def recurrent(): return Recurrent().eval(), torch.randn(3, 1, 4)
def hooked():
    model = stack()
    model.register_forward_hook(lambda *_: None)
    return model, planes()
def talks(): print("hello"); return both()
"""
FAST = ("--keep-slower",)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is compiled is kept for the session, not among the user's."""
    with pytest.MonkeyPatch.context() as patch:
        folder: Path = tmp_path_factory.getbasetemp() / "kernels"
        patch.setenv("MEMPLAN_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture
def fuse(on_model: OnModel, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `memplan fuse ARGS` in a folder with m.py."""
    monkeypatch.setattr(stacks, "_told", set())
    return on_model("fuse", MODEL)


def result(said: Said) -> Any:
    assert said.code == 0, said.err
    return json.loads(said.out)


def test_text(fuse: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = fuse("m.py:network", *FAST)
    assert said.code == 0, said.err
    assert said.err == ""
    title, *facts = said.out.splitlines()
    assert title.startswith("memplan: Sequential runs fused, ")
    assert title.endswith(" times as fast")
    names = [line[2:].split("  ")[0] for line in facts if line[2] != " "]
    assert names == [
        *("time", "ratio", "difference", "first call", "activations", "layers"),
        *("convolutions", "stacks", "arena", "paper stacks", "not fused"),
    ]
    (at,) = (i for i, line in enumerate(facts) if line.startswith("  layers "))
    assert facts[at].endswith("7: 2 convolutions, 2 joined into them, 2 in stacks,")
    assert facts[at + 1].split("  ")[-1] == "1 run by torch"
    assert all(len(line) <= 80 for line in facts[at : at + 2])
    assert "1 with 2 operations in 1 step, 1 sequence" in said.out
    assert "1 stack with 4 operations in 1 step, 1 sequence" in said.out
    assert "7: Softmax is not a supported layer" in said.out


def test_json(fuse: Command) -> None:
    found = result(fuse("m.py:network", *FAST, "--json"))
    assert (found["schema"], found["version"]) == ("memplan.fuse", 1)
    assert (found["status"], found["reason"]) == ("fused", "")
    assert found["max_relative_error"] <= 1e-5
    assert found["seconds"]["eager"] > 0 and found["seconds"]["memplan"] > 0
    ratios = found["ratios"]
    assert ratios["min"] <= found["ratio_to_eager"] <= ratios["max"]
    assert found["first_call_seconds"] > 0
    (part,) = found["parts"]
    assert part["inputs"] == {"input": [2, 4, 24, 24]}
    assert sum(part["kernels"].values()) == 2
    # the arena is kept between calls, and counts all the same
    peak = found["peak_activation_bytes"]
    assert part["arena_bound_bytes"] <= part["arena_bytes"] <= peak["memplan"]
    outcomes = [(layer["became"], layer["into"]) for layer in part["layers"]]
    assert [became for became, _ in outcomes] == [
        *("convolution", "joined", "joined", "stack", "stack"),
        *("convolution", "torch"),
    ]
    assert outcomes[1] == outcomes[2] == ("joined", part["layers"][0]["name"])
    assert part["layers"][6]["reason"].startswith("Softmax is not")
    (run,) = part["stacks"]
    assert (run["runs_by"], run["operations"], run["steps"]) == ("memplan", 2, 1)
    assert run["name"] == outcomes[3][1]


def test_traffic_is_what_layers_read_and_write(fuse: Command) -> None:
    found = result(fuse("m.py:both", *FAST, "--json"))
    (part,) = found["parts"]
    plane = 4 * 2 * 4 * 24 * 24  # bytes of what goes in, and of what comes out
    (run,) = part["paper_stacks"]
    assert run["traffic_bytes"] == 9 * 2 * plane
    assert run["traffic_bytes_fused"] == len(run["sequences"]) * 2 * plane
    saved = run["traffic_bytes"] - run["traffic_bytes_fused"]
    gain = saved / found["copy_bytes_per_second"]
    assert run["predicted_gain_seconds"] == pytest.approx(gain)
    for sequence in run["sequences"]:
        assert 0 < sequence["cache_bytes"] <= part["cache_limit_bytes"]
    one = result(fuse("m.py:both", *FAST, "--json", "--max-steps", "1"))
    (cut,) = one["parts"][0]["stacks"]
    assert len(cut["sequences"]) == cut["steps"] == 3
    assert cut["traffic_bytes_fused"] == 3 * 2 * plane


def test_show(fuse: Command) -> None:
    said = fuse("m.py:network", *FAST, "--show")
    assert said.code == 0, said.err
    for words in (
        "Layers, in order",
        "1      BatchNorm2d  joined into 0",
        "3      MaxPool2d    in stack 1 of those that run",
        "run by torch: Softmax is not a supported layer",
        "Stacks that run, one kernel each: 1 with 2 operations in 1 step, 1 sequence",
        "1. 3 … 4: 2×8×24×24, 2 operations in 1 step, 1 sequence",
        "sequence: 24×24 to 12×12, ",
        "step: max 2, gelu",
        "Stacks as the paper finds them: 1 with 4 operations in 1 step, 1 sequence",
        "; here 2 joined into them, 2 in stacks",
    ):
        assert words in said.out, words
    assert "predicted gain " in said.out and "of cache" in said.out


def test_images_at_a_time_and_a_plot(fuse: Command, tmp_path: Path) -> None:
    asked = ("m.py:network", *FAST, "--micro-batch", "1", "--plot", "p.svg")
    said = fuse(*asked)
    assert said.code == 0 and said.err == "memplan: drew p.svg\n"
    assert "1 at a time, of 2" in said.out
    assert (tmp_path / "p.svg").read_bytes().startswith(b"<?xml")
    said = fuse(*asked)
    assert said.code == 2 and "p.svg exists; pass --force" in said.err


def test_a_tolerance_that_nothing_meets(fuse: Command) -> None:
    said = fuse("m.py:network", *FAST, "--tolerance", "0")
    assert said.code == 0
    assert "Sequential runs unchanged: " in said.out


def test_no_layers_that_are_fused(fuse: Command, tmp_path: Path) -> None:
    said = fuse("m.py:recurrent", *FAST, "--show", "--plot", "p.svg")
    assert said.code == 0, said.err
    assert "Recurrent runs unchanged: it has no supported layers" in said.out
    assert "run by torch: gru is not a supported layer" in said.out
    assert "a call, 1 thread" in said.out
    assert (tmp_path / "p.svg").exists()
    found = result(fuse("m.py:recurrent", *FAST, "--json"))
    assert found["status"] == "unchanged"
    assert set(found["seconds"]) == set(found["peak_activation_bytes"]) == {"eager"}
    assert found["ratios"] is found["ratio_to_eager"] is None
    assert found["max_relative_error"] is None


def test_calls_that_are_not_fused(fuse: Command, tmp_path: Path) -> None:
    said = fuse("m.py:hooked", *FAST, "--plot", "p.svg", "--show")
    assert said.code == 0, said.err
    assert " runs unchanged: " in said.out
    assert "it has hooks" in said.out
    assert "p.svg was not drawn: no layers of the model are known" in said.err
    assert not (tmp_path / "p.svg").exists()


def test_nested_inputs(fuse: Command) -> None:
    found = result(fuse("m.py:nested", *FAST, "--json"))
    assert found["status"] == "fused"
    shape = [2, 4, 24, 24]
    assert found["parts"][0]["inputs"] == {"pair_0": shape, "pair_1": shape}


def test_parts(fuse: Command) -> None:
    said = fuse("m.py:branching", *FAST, "--show")
    assert said.code == 0, said.err
    assert "Branching runs fused in parts, " in said.out
    assert "not fused whole" in said.out
    assert "Layers of first, in order" in said.out
    assert "second.0  AvgPool2d  in stack 1 of those that run" in said.out
    found = result(fuse("m.py:branching", *FAST, "--json"))
    assert found["status"] == "parts" and "torch.export" in found["reason"]
    assert [part["path"] for part in found["parts"]] == ["first", "second"]


def test_inputs_of_their_own(fuse: Command, tmp_path: Path) -> None:
    for inputs in ("inputs", "keywords"):
        said = fuse("m.py:alone", "--inputs", f"m.py:{inputs}", *FAST, "--json")
        assert result(said)["status"] == "fused"
    said = fuse("m.py:alone", *FAST)
    assert said.code == 2
    assert "name a function that makes them with --inputs" in said.err


def test_in_training_mode(fuse: Command) -> None:
    said = fuse("m.py:training", *FAST)
    assert said.code == 0 and "it is fused in eval mode" in said.err


def test_what_the_code_prints_is_not_the_result(fuse: Command) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = fuse("m.py:talks", *FAST, "--json", "--threads", "1")
    assert result(said)["status"] == "fused" and "hello" in said.err
    assert result(said)["threads"] == 1


def test_no_compiler(
    fuse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path / "nothing compiled yet"))
    monkeypatch.setattr(kernel, "_kernels", {})
    monkeypatch.setattr(loading, "_loaded", {})
    said = fuse("m.py:network", *FAST)
    assert said.code == 0
    assert (said.out + said.err).count("no C++ compiler found") == 1


def test_no_torch(fuse: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    said = fuse("m.py:both")
    assert said.code == 5 and "fusing a model needs PyTorch" in said.err


def test_ctrl_c(fuse: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("memplan.compiling.examine.examine", interrupted)
    said = fuse("m.py:both")
    assert said.code == 130
    assert said.err == "memplan: interrupted; there is no result\n"
