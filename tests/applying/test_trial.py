"""`memplan verify PLAN SCRIPT`: a plan that computes modules again, tried out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import memplan as package
from memplan.applying.trial import Run as Run_
from memplan.applying.trial import _difference
from tests.budgeting.training import CONVOLUTIONS, ENCODER, script_of, without_times
from tests.conftest import Run

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

OWN_GENERATOR = """
GENERATOR = torch.Generator().manual_seed(5)

class Noise(nn.Module):
    def forward(self, value):
        return value * torch.rand(value.shape, generator=GENERATOR)

class Part(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 64)
        self.between = between

    def forward(self, value):
        return value + self.last(F.gelu(self.between(self.first(value))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Part(each()) for each in [Noise, Noise]])

    def forward(self, value):
        for part in self.parts:
            value = part(value)
        return value

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    loss = model(torch.randn(512, 64)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

NEVER_ALIKE = OWN_GENERATOR.replace(
    "manual_seed(5)", "manual_seed(__import__('os').getpid())"
)


def path_of(folder: Path) -> Path:
    return folder / "t.plan.json"


def planned(memplan: Run, folder: Path, program: str, budget: str = "70%") -> Path:
    """A plan for the program, which is train.py in `folder`."""
    (folder / "train.py").write_text(script_of(program))
    memplan("record", "-q", "--activations", "-o", "t.parquet", "train.py")
    without_times(folder / "t.parquet")
    done = memplan(
        "solve", "-q", "t.parquet", "--budget", budget, "--method", "bestfit"
    )
    assert done.returncode == 0, done.stderr
    return path_of(folder)


def test_a_plan_that_holds(memplan: Run, tmp_path: Path) -> None:
    planned(memplan, tmp_path, ENCODER)
    told = memplan("verify", "t.plan.json", "--json", "train.py", "4")
    entries = json.loads(told.stdout)
    assert entries["valid"]
    assert entries["compared"] > 100
    budget = entries["budget"]
    assert entries["measured_bytes"] <= budget < entries["recorded_bytes"]
    assert entries["measured_bytes"] == entries["predicted_bytes"]
    quick = json.loads(
        memplan("verify", "--no-trial", "t.plan.json", "--json", "train.py").stdout
    )
    assert quick["fake_bytes"] == entries["fake_bytes"]
    assert quick["valid"] == (quick["fake_bytes"] <= budget)
    assert "measured_bytes" not in quick


COPIED = ENCODER.replace(
    "def train():",
    """
def train():
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin(torch.randn(4, 64, 64))
    del twin
""",
)


def test_copies_that_a_program_makes_do_not_live_on(
    memplan: Run, tmp_path: Path
) -> None:
    planned(memplan, tmp_path, COPIED)
    told = memplan("verify", "t.plan.json", "--json", "train.py", "4")
    entries = json.loads(told.stdout)
    assert entries["valid"], told.stdout
    assert entries["measured_bytes"] == entries["predicted_bytes"]


def test_a_part_that_is_compiled(memplan: Run, tmp_path: Path) -> None:
    compiled = ENCODER.replace(
        "optimizer =",
        "model.layers[1] = torch.compile(model.layers[1], backend='aot_eager')\n"
        "optimizer =",
    )
    planned(memplan, tmp_path, compiled, "min")
    told = memplan("verify", "t.plan.json", "--json", "train.py", "4")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["compared"] > 100


def test_modules_that_are_gone_are_not_compared() -> None:
    def run(*passes: dict[str, str]) -> Run_:
        return Run_(passes, None, 0, "")

    one = run({"loss 0": "a", "gradient 0:x": "b", "gradient 1:x": "c"})
    gone = run({"loss 0": "a", "gradient 0:x": "b", "gone 1": ""})
    assert _difference(one, gone) == _difference(gone, one) == ""
    other = run({"loss 0": "a", "gradient 0:x": "z", "gone 1": ""})
    assert "gradient x differs after backward pass 1" in _difference(one, other)
    less = run({"loss 0": "a", "gradient 0:x": "b"})
    assert "gradient 1:x differs" in _difference(one, less)
    eleventh = run({"gradient 11:x": "a", "gone 1": ""})
    assert "gradient 11:x" in _difference(eleventh, run({"gone 1": ""}))


def test_a_plan_for_another_program(memplan: Run, tmp_path: Path) -> None:
    planned(memplan, tmp_path, ENCODER)
    (tmp_path / "other.py").write_text(script_of(CONVOLUTIONS))
    done = memplan("verify", "t.plan.json", "other.py")
    assert done.returncode == 3, done.stdout
    assert "the plan was made for another one" in done.stderr
    done = memplan("verify", "t.plan.json", "t.parquet")
    assert done.returncode == 2
    assert "memplan verify t.plan.json SCRIPT" in done.stderr


def test_units_that_differ_are_named(memplan: Run, tmp_path: Path) -> None:
    path = planned(memplan, tmp_path, OWN_GENERATOR, "min")
    part = package.read_plan(path).recompute
    assert part is not None
    paths = {unit.path for unit in part.units}
    noisy = sorted(path for path in paths if not path.endswith(("first", "last")))
    assert noisy
    done = memplan("verify", "t.plan.json", "train.py")
    assert done.returncode == 1
    for path in noisy:
        assert f"{path}: gradient" in done.stdout
        assert f"--keep {path}" in done.stdout
    for path in paths - set(noisy):
        assert f"{path}: " not in done.stdout
    words = [word for path in noisy for word in ("--keep", path)]
    again = memplan("solve", "t.parquet", "--force", "--budget", "100%", *words)
    assert again.returncode == 0, again.stderr
    part = package.read_plan(path_of(tmp_path)).recompute
    assert part is not None
    assert not {unit.path for unit in part.units} & set(noisy)


def test_a_program_that_is_never_alike(memplan: Run, tmp_path: Path) -> None:
    planned(memplan, tmp_path, NEVER_ALIKE, "min")
    done = memplan("verify", "t.plan.json", "train.py")
    assert done.returncode == 1
    assert "two runs of the program as it is are not alike" in done.stdout


def test_a_budget_that_is_not_kept(memplan: Run, tmp_path: Path) -> None:
    path = planned(memplan, tmp_path, ENCODER)
    plan = package.read_plan(path)
    assert plan.recompute is not None
    part = replace(plan.recompute, budget=plan.recompute.predicted // 2)
    package.write_plan(replace(plan, recompute=part), path, force=True)
    done = memplan("verify", "t.plan.json", "train.py")
    assert done.returncode == 1
    assert "measured, which is more than the budget" in done.stdout


@pytest.mark.parametrize("words", [["train.py"], ["-m", "train"]])
def test_a_plan_without_units(memplan: Run, tmp_path: Path, words: list[str]) -> None:
    planned(memplan, tmp_path, ENCODER, "100%")
    done = memplan("verify", "t.plan.json", *words)
    assert done.returncode == 2
    assert "computes nothing again" in done.stderr


def test_a_program_that_fails_by_itself(memplan: Run, tmp_path: Path) -> None:
    planned(memplan, tmp_path, ENCODER)
    (tmp_path / "fake.py").write_text(
        "from torch._subclasses.fake_tensor import FakeTensorMode\nFakeTensorMode()\n"
    )
    done = memplan("verify", "--no-trial", "t.plan.json", "fake.py")
    assert done.returncode == 1
    assert "cannot be tried under fake tensors" in done.stdout
    (tmp_path / "train.py").write_text("raise ValueError('no data')\n")
    done = memplan("verify", "t.plan.json", "train.py")
    assert done.returncode == 125
    assert "no data" in done.stderr
