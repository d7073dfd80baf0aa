"""The layers of PyTorch models: what runs, how often, and what is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from memplan.blocking.design.network import NETWORKS
from memplan.blocking.nest.layer import Layer
from memplan.blocking.run.models import layers_of_model
from memplan.errors import InputError, MemplanError, UsageError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

Written = Callable[[str], str]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes `def made()` with a body into a file, and names it."""

    def write(body: str) -> str:
        file = tmp_path / "model.py"
        text = "import torch\nfrom torch import nn\ndef made():\n"
        file.write_text(text + "".join(f"    {line}\n" for line in body.splitlines()))
        return f"{file}:made"

    return write


def test_convolutions_products_and_pooling(written: Written) -> None:
    spec = written(
        "m = nn.Sequential(nn.Conv2d(3, 16, (3, 5), stride=(2, 1), padding=1),\n"
        "    nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, groups=4), nn.AvgPool2d(3, 1),\n"
        "    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))\n"
        "return m, torch.randn(2, 3, 32, 32)"
    )
    found = layers_of_model(spec)
    assert [one.layer for one in found.layers] == [
        Layer("0", 30, 16, 3, 16, 5, 3, B=2, stride=(1, 2)),
        Layer("1", 15, 8, 1, 1, 2, 2, B=2, G=16, stride=(2, 2), kernel=False),
        Layer("2", 13, 6, 4, 8, 3, 3, B=2, G=4),
        Layer("3", 11, 4, 1, 1, 3, 3, B=2, G=32, kernel=False),
        Layer("6", 1, 1, 32, 10, B=2),
    ]
    assert found.left_out == () and found.notes == ()


def test_a_vector_is_a_matrix_of_one_row(written: Written) -> None:
    spec = written(
        "class Row(nn.Module):\n"
        "    def forward(self, x, w):\n"
        "        return x @ w, torch.dot(x, w[:, 0])\n"
        "return Row(), (torch.randn(6), torch.randn(6, 4))"
    )
    found = layers_of_model(spec)
    assert [one.layer.macs for one in found.layers] == [24, 6]


def test_what_is_in_no_layer_is_named_with_its_share(written: Written) -> None:
    found = layers_of_model(
        written(
            "from torch import library\n"
            "from torch.utils.flop_counter import register_flop_formula\n"
            "def double(x: torch.Tensor) -> torch.Tensor:\n"
            "    return 2 * x\n"
            "def flops(shape, *_, out_shape=None, **__) -> int:\n"
            "    return 2 * 300\n"
            "own = library.custom_op('own::double', double, mutates_args=())\n"
            "register_flop_formula(torch.ops.own.double)(flops)\n"
            "class M(nn.Module):\n"
            "    def forward(self, x):\n"
            "        y = torch.fft.fft(x).real\n"
            "        return own(x @ x.T) + y.sum()\n"
            "return M(), torch.randn(10, 7)"
        )
    )
    own, other = found.left_out[::-1]
    assert (own.where, own.macs) == ("M", 300)
    assert "own.double" in own.reason
    assert "fft" in other.reason and other.macs is None
    assert (found.counted, found.macs) == (700, 1000)
    assert found.share(300) == pytest.approx(0.3)
    assert found.reference is not None and found.reference.macs == 1000


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("model.py", "write it as FILE.py:FUNCTION"),
        ("model.txt:made", "write it as FILE.py:FUNCTION"),
        ("nowhere.py:made", "there is no such file"),
    ],
)
def test_a_bad_specification_is_refused(spec: str, reason: str) -> None:
    with pytest.raises(MemplanError, match=reason):
        layers_of_model(spec)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 1", "must return a pair"),
        ("return nn.Linear(1, 1)", "must return a pair"),
        ("raise ValueError('why')", "ValueError: why"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise BaseException('all of\\n it')", "BaseException: all of it"),
        ("raise GeneratorExit", "GeneratorExit$"),
        ("raise StopIteration(7)", "StopIteration: 7"),
        ("raise type('Mute', (Exception,), {'__str__': 0})()", "Mute$"),
        ("return nn.Linear(1, 1), torch.randn(1, 7)", "failed on its inputs"),
    ],
)
def test_a_factory_that_fails_is_told(written: Written, body: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as raised:
        layers_of_model(written(body))
    assert "model.py:" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_ctrl_c_in_a_factory_is_no_fault_of_the_input(written: Written) -> None:
    with pytest.raises(KeyboardInterrupt):
        layers_of_model(written("raise KeyboardInterrupt"))


def test_a_file_without_the_factory_or_with_an_error(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("made = 3\n")
    with pytest.raises(InputError, match="has no function made"):
        layers_of_model(f"{file}:made")
    file.write_text("import nothing_like_this\n")
    with pytest.raises(InputError, match="ModuleNotFoundError"):
        layers_of_model(f"{file}:made")
    with pytest.raises(UsageError):
        layers_of_model(f"{file}:not a name")


def test_the_papers_networks_have_its_multiplications() -> None:
    def macs(name: str, *, window: bool) -> float:
        layers = [x for x in NETWORKS[name] if (x.Fw > 1) == window]
        return sum(layer.macs for layer in layers) / 1e9

    # Table 1 of the paper; AlexNet's 1.9 are neither those of its two groups nor
    # those without groups.
    assert macs("vgg-b", window=True) == pytest.approx(11.2, abs=0.05)
    assert macs("vgg-d", window=True) == pytest.approx(15.3, abs=0.05)
    assert macs("vgg-b", window=False) == pytest.approx(0.124, abs=0.001)
    assert macs("alexnet", window=True) == pytest.approx(0.666, abs=0.001)
