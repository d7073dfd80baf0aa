"""Threads that serve side by side, each by its own sequence: real programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Workers that meet where each holds most, whatever the machine is doing; the last
# argument says how they are started.
SERVER = """\
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
workers, turns, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
meeting = threading.Barrier(workers)


class MeetingReLU(torch.nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        meeting.wait()  # each holds both
        return y


model = torch.nn.Sequential(
    torch.nn.Linear(64, 4096), MeetingReLU(), torch.nn.Linear(4096, 8)
).eval()
inputs = torch.randn(workers * turns, 64, 64)


@torch.inference_mode()
def answer(i):
    return model(inputs[i]).sum().item().hex()


if how == "pool":
    with ThreadPoolExecutor(workers) as pool:
        said = list(pool.map(answer, range(workers * turns)))
else:
    said = [None] * (workers * turns)

    def serve(which):
        for i in which:
            said[i] = answer(i)

    rounds = [[range(k, k + 1) for k in range(t * workers, (t + 1) * workers)]
              for t in range(turns)]
    if how == "raw":
        rounds = [[range(k, workers * turns, workers) for k in range(workers)]]
    for shares in rounds:
        threads = [threading.Thread(target=serve, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
print(said)
"""
HIDDEN = 64 * 4096 * 4  # bytes of a layer's result, the largest block


@pytest.mark.parametrize("how", ["pool", "raw", "a thread each"])
def test_workers_are_served_from_lanes(memplan: Run, tmp_path: Path, how: str) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    command = ("server.py", "4", "8", how)
    recorded = memplan("record", "-o", "t.parquet", *command)
    assert recorded.returncode == 0, recorded.stderr
    assert "in each thread's steps" in recorded.stderr
    solved = memplan("solve", "t.parquet", "-o", "p.json")
    assert solved.returncode == 0, solved.stderr
    assert "each in an arena of its own" in solved.stdout
    plan = json.loads((tmp_path / "p.json").read_text())
    assert plan["lanes"] == 4
    assert 2 * HIDDEN <= plan["peak"] < 3 * HIDDEN
    applied = memplan("apply", "--report", "r.json", "p.json", *command)
    assert applied.returncode == 0, applied.stderr
    assert applied.stdout == recorded.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["arena_bytes"] < plan["lanes"] * (plan["peak"] + 4096)
    parts = ("planned", "unplanned", "online", "fallback")
    assert report["requests"] == sum(report[f"{part}_requests"] for part in parts)
    assert report["planned_requests"] > 0.5 * report["requests"]


def test_more_threads_than_lanes_are_served_all_the_same(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    few = memplan("record", "-q", "-o", "t.parquet", "server.py", "2", "12", "pool")
    assert few.returncode == 0, few.stderr
    assert memplan("solve", "t.parquet", "-o", "p.json").returncode == 0
    plan = json.loads((tmp_path / "p.json").read_text())
    command = ("server.py", "6", "4", "pool")
    default = memplan("record", "-q", "-o", "d.parquet", *command)
    applied = memplan("apply", "--report", "r.json", "p.json", *command)
    assert applied.stdout == default.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["arena_bytes"] < plan["lanes"] * (plan["peak"] + 4096)
    assert report["fallback_requests"] > 0


# A loop within one forward call: nothing outside it says where its steps begin.
PIPELINE = """\
import sys
import torch

torch.set_num_threads(1)
torch.manual_seed(0)


class Pipeline(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Embedding(50, 64)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(64, 2048), torch.nn.SiLU(), torch.nn.Linear(2048, 64)
        )

    def forward(self, words, x):
        x = x + self.encoder(words).mean()
        for _ in range(int(sys.argv[1])):
            x = x - 0.1 * self.network(x)
        return x


with torch.inference_mode():
    x = Pipeline().eval()(torch.arange(9), torch.randn(64, 64))
print(x.sum().item().hex())
"""


def test_a_loop_within_one_call_is_planned(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    recorded = memplan("record", "-o", "t.parquet", "pipeline.py", "20")
    assert "a loop found in the sequence of requests" in recorded.stderr
    solved = memplan("solve", "t.parquet", "-o", "p.json")
    assert "found in the sequence" in solved.stdout, solved.stderr
    applied = memplan("apply", "--report", "r.json", "p.json", "pipeline.py", "20")
    assert applied.returncode == 0, applied.stderr
    assert applied.stdout == recorded.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["planned_requests"] >= 0.9 * report["requests"] > 0
    assert report["steps"] >= 15


def test_a_plan_that_serves_nothing_is_not_praised(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "keep.py").write_text(
        "import torch\n"
        "import memplan\n"
        "kept = []\n"
        "for _ in range(6):\n"
        "    memplan.step()\n"
        "    kept.append(torch.empty(1000))\n"
    )
    assert memplan("record", "-o", "t.parquet", "keep.py").returncode == 0
    solved = memplan("solve", "t.parquet", "-o", "p.json")
    assert solved.returncode == 0
    assert "optimal" not in solved.stdout
    assert "the plan serves none of its requests" in solved.stderr
