"""Compiled modules written as programs that need torch alone."""

from __future__ import annotations

import copy
import importlib
import runpy
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.compiling import bench  # noqa: E402
from memplan.errors import UsageError  # noqa: E402
from tests.compiling.modules import compiled, perceptron  # noqa: E402
from tests.compiling.random_models import SHAPE, Made, Model, models  # noqa: E402
from tests.strategies import examples  # noqa: E402

pytestmark = pytest.mark.torch
PORTABLE = memplan.CompileOptions(max_slowdown=1000.0, portable=True)
ALONE = """
import sys
sys.modules["memplan"] = None  # importing it raises
import torch
from program import Model
x = torch.load("x.pt")
torch.save(Model()(x), "y.pt")
"""


def written(model: nn.Module, inputs: Any, folder: Path) -> tuple[Any, Any]:
    """The program of a model, loaded, and what was measured of it."""
    module = compiled(model, inputs, options=PORTABLE)
    made = memplan.emit(module, inputs, folder / "program.py")
    return runpy.run_path(str(made.path))["Model"](), made


class Attention(nn.Module):
    """Views, softmax, a mask that is a constant, and a nest of results."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.norm = nn.Linear(64, 192), nn.LayerNorm(64)
        self.register_buffer("mask", torch.ones(128, 128).tril().log())

    def forward(self, x: Any, *, scale: Any) -> dict[str, Any]:
        q, k, v = self.all(self.norm(x)).view(2, 128, 3, 4, 16).unbind(2)
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * scale + self.mask
        values = (scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)
        return {"values": values.reshape(2, 128, 64), "parts": (x + 1, None, k)}


def picture() -> tuple[nn.Module, Any]:
    layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3)
    x = torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last)
    return nn.Sequential(*layers).eval(), x


def test_it_runs_where_memplan_cannot_be_imported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = perceptron()
    _, made = written(model, x, tmp_path)
    torch.save(x, tmp_path / "x.pt")
    subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, check=True)
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "y.pt"), model(x))
    assert made.weights == tmp_path / "program.pt"
    assert made.bytes_after < made.bytes_before
    assert made.requests == 1


def test_its_tensors_are_those_of_the_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    inputs = {"x": torch.randn(2, 128, 64), "scale": torch.tensor(0.25)}
    program, _ = written(model, inputs, tmp_path)
    for seed in (1, 2):
        torch.manual_seed(seed)
        x = torch.randn(2, 128, 64)
        with torch.no_grad():
            expected = model(x, scale=inputs["scale"])
        values, one, k = program(x, inputs["scale"])
        torch.testing.assert_close(values, expected["values"])
        torch.testing.assert_close(one, expected["parts"][0])
        torch.testing.assert_close(k, expected["parts"][2])


def test_pictures_lie_as_the_model_lays_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = picture()
    program, _ = written(model, x, tmp_path)
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(program(x), expected)
    assert program(x).stride() == expected.stride()


def test_within_a_budget(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = perceptron()
    module = memplan.compile(model, x, "40%", PORTABLE)
    assert module.memplan.loops
    made = memplan.emit(module, x, tmp_path / "program.py")
    assert made.bytes_after <= 0.4 * made.bytes_before
    program = runpy.run_path(str(made.path))["Model"]()
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x))


def test_modes_of_the_caller_change_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = perceptron()
    program, _ = written(model, x, tmp_path)
    with torch.no_grad():
        expected = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(program(x), expected)
    with torch.inference_mode():
        assert torch.equal(program(x), expected)
    assert torch.equal(program(x.requires_grad_()), expected)


def test_copies_have_an_arena_each(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = perceptron()
    with torch.inference_mode():
        program, _ = written(model, x, tmp_path)
        expected = model(x)
    assert torch.equal(program(x), expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        patch.delitem(sys.modules, "program", raising=False)  # scripts/program.py
        own = importlib.import_module("program").Model()
        del sys.modules["program"]
    for other in (copy.deepcopy(own), copy.copy(own)):
        assert other._tensors[0].data_ptr() != own._tensors[0].data_ptr()
        assert torch.equal(other(x), expected)


def test_threads_take_turns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = perceptron()
    program, _ = written(model, x, tmp_path)
    inputs = [torch.randn(256, 32) for _ in range(4)]
    with torch.no_grad():
        expected = list(map(model, inputs))
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(50):
            if not torch.equal(program(inputs[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_inputs_of_another_form_are_refused(tmp_path: Path) -> None:
    model, x = perceptron()
    program, _ = written(model, x, tmp_path)
    for other in (None, x.to("meta")):
        with pytest.raises(ValueError, match="must be a tensor on the CPU"):
            program(other)
    for other in (x[:8], x.double(), x.t().contiguous().t()):
        with pytest.raises(
            ValueError, match=r"must have shape \(256, 32\), type torch"
        ):
            program(other)


@pytest.mark.parametrize("name", ["t", "aten", "v1", "_one", "torch"])
def test_arguments_of_any_name(name: str, tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(32, 512), nn.Linear(512, 8)

        exec(
            f"def forward(this, {name}): return this.second(this.first({name}).relu())"
        )

    model, x = Named().eval(), torch.randn(256, 32)
    program, _ = written(model, x, tmp_path)
    with torch.no_grad():
        assert torch.equal(program(x), model(x))


def test_what_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "seconds", lambda runs, **_: [1.0] * len(runs))
    model, x = perceptron()
    with pytest.raises(UsageError, match="does not go with pack"):
        memplan.CompileOptions(portable=True, pack=True)
    with pytest.raises(UsageError, match="does not go with pack"):
        memplan.CompileOptions(portable=True, reuse_outputs=True)
    path = tmp_path / "program.py"
    with pytest.raises(UsageError, match="portable=True"):
        memplan.emit(compiled(model, x), x, path)
    left_alone = memplan.compile(nn.Identity().eval(), x, options=PORTABLE)
    with pytest.raises(UsageError, match=r"no program to write: .*neither"):
        memplan.emit(left_alone, x, path)
    module = compiled(model, x, options=PORTABLE)
    with pytest.raises(UsageError, match=r"\.py"):
        memplan.emit(module, x, tmp_path / "program.txt")
    with pytest.raises(UsageError, match="compiled for"):
        memplan.emit(module, x[:8], path)
    assert not list(tmp_path.iterdir())


@examples(4, models(12), soak=300)
def test_random_programs_as_written(made: Made) -> None:
    torch.manual_seed(0)
    model, x = Model(made).eval(), torch.randn(SHAPE).to(made.dtype)
    module = memplan.compile(model, x, options=PORTABLE)
    assume(module.runner is not None)
    with tempfile.TemporaryDirectory() as folder:
        found = memplan.emit(module, x, Path(folder) / "program.py")
        program = runpy.run_path(str(found.path))["Model"]()
    x = torch.randn(SHAPE).to(made.dtype)
    with torch.no_grad():
        for one, other in zip(program(x), module(x), strict=True):
            assert torch.equal(one.nan_to_num(), other.nan_to_num())
            assert one.stride() == other.stride()
