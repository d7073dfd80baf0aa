"""Multiply-adds of whole networks, as the documentation's table has them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NAMES = ["MobileNetV3-Large", "U-Net", "nn.Transformer", "LSTM with attention"]
OTHERS = ["LLaMA", "T5"]


@pytest.mark.parametrize("name", NAMES)
def test_networks_have_torchs_multiply_adds(name: str) -> None:
    import count_models

    found, macs = count_models.counted(name)
    assert found.left_out == ()
    assert found.counted == macs > 1e7


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OTHERS)
def test_models_of_transformers_likewise(name: str) -> None:
    import count_models

    found, macs = count_models.counted(name)
    assert found.left_out == ()
    assert found.counted == macs > 1e7


def test_the_mobile_network_is_the_papers() -> None:
    from models.mobilenet import MobileNetV3

    with torch.device("meta"):
        network = MobileNetV3()
    assert sum(p.numel() for p in network.parameters()) == 5_483_032


def test_a_row_of_the_table() -> None:
    import count_models

    row = count_models.row("LSTM with attention")
    assert row.startswith("| LSTM with attention | ")
    assert row.endswith("| +0.000% | 0.00% | 0 |")
