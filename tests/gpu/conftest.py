"""What needs a GPU: programs on it, recorded, planned and run under their plans."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

# Runs a program under a plan, as `memplan apply` does, and writes the report.
LAUNCHER = """\
import json, sys
from memplan.applying.cuda import CudaLoader, stats
from memplan.core.planfile import read_plan
from memplan.recording.target import Target, run

plan, report, script, *arguments = sys.argv[1:]
loader = CudaLoader(read_plan(plan))
loader.start()
code = run(Target(script, tuple(arguments)))
loader.stop()
entries = {**loader.report().to_json(), "stats": stats()[0]}
open(report, "w").write(json.dumps(entries))
sys.exit(code)
"""

# A training loop of fixed shapes; it prints its losses, bit by bit, and what torch's
# allocator reserved.
TRAINING = """\
import os, sys
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(
    torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024),
    torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 1000),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 12):
    batch = torch.randn(512, 1024, device="cuda")
    target = torch.arange(512, device="cuda") % 1000
    loss = torch.nn.functional.cross_entropy(model(batch), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(loss.detach()).hex())
torch.cuda.synchronize()
print(torch.cuda.max_memory_reserved(), file=sys.stderr)
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what lies in this folder where torch finds no GPU, and say so."""
    here = Path(__file__).parent
    own = [item for item in items if here in item.path.parents]
    if not own:
        return
    reason = _why_not()
    for item in own:
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_not() -> str:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "torch finds no CUDA GPU"


class Bench:
    """A folder in which programs are run, with memplan and without."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("launcher.py", LAUNCHER)
        self.write("train.py", TRAINING)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Python; fails unless it succeeds."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done

    def memplan(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "memplan", *arguments)

    def planned(
        self, script: str, *arguments: str
    ) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        """Runs a program under p.json; its output, and the report."""
        done = self.python("launcher.py", "p.json", "report.json", script, *arguments)
        return done, json.loads((self.folder / "report.json").read_text())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """An empty bench."""
    return Bench(tmp_path)


@pytest.fixture(scope="session")
def planned_training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the training recorded (t.parquet) and planned (p.json)."""
    bench = Bench(tmp_path_factory.mktemp("planned"))
    bench.memplan("record", "-q", "--device", "auto", "-o", "t.parquet", "train.py")
    bench.memplan("solve", "t.parquet", "-o", "p.json")
    return bench.folder


@pytest.fixture
def planned_bench(bench: Bench, planned_training: Path) -> Bench:
    """A bench with the trace and the plan of the training."""
    for name in ("t.parquet", "p.json"):
        shutil.copy(planned_training / name, bench.folder)
    return bench
