"""Multiply-adds of whole networks, as the documentation's table has them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

needs = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers")
NAMES = [
    "LSTM with attention",
    *(
        pytest.param(name, marks=pytest.mark.soak)
        for name in ("MobileNetV3-Large", "U-Net", "nn.Transformer")
    ),
    *(pytest.param(n, marks=[needs, pytest.mark.soak]) for n in ("LLaMA", "T5")),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_networks_have_torchs_multiply_adds(name: str) -> None:
    import count_models

    found, macs = count_models.counted(name)
    assert found.left_out == ()
    assert found.counted == macs > 1e7
