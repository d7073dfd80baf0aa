"""`memplan blocking` on models: layers, what is in none of them, and torch's count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Blocking

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

MODEL = """\
import torch
from torch import nn

class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3, dilation=2)

    def forward(self, x):
        other = nn.functional.bilinear(x[0, 0], x[0, 0], torch.ones(4, 9, 9))
        return self.c(x), other

def made():
    return M(), torch.randn(1, 3, 9, 9)
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    return f"{file}:made"


def test_layers_lists_a_models(blocking: Blocking, spec: str) -> None:
    done = blocking("layers", spec)
    assert done.code == 0
    assert "torch's counter has 2,700, too" in done.out
    assert "a dilated convolution, in 4 layers" in done.err
    part = done.out[done.out.index("In no layer") :]
    assert "_trilinear" in part and "not known" in part


def test_layers_json_of_a_model(blocking: Blocking, spec: str) -> None:
    entries = json.loads(blocking("layers", spec, "--json").out)
    assert entries["schema"] == "memplan.blocking-model"
    assert (entries["macs"], entries["counted_macs"]) == (2700, 2700)
    assert entries["torch"] == {"macs": 2700, "without_formula": {}, "difference": 0}
    (left,) = entries["left_out"]
    assert (left["where"], left["macs"], left["share"]) == ("M", None, None)
    macs = [one["macs"] * one["count"] for one in entries["layers"]]
    assert sum(macs) == 2700 and entries["layers"][0]["X"] == 3


def test_what_is_left_out_is_told_before_a_search(
    blocking: Blocking, spec: str
) -> None:
    done = blocking("optimize", "--layer", spec, "--memory", "diannao")
    assert done.code == 0
    assert "left out M: aten._trilinear is one operation" in done.err
    assert "its multiply-adds are not known" in done.err
