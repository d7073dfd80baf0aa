"""Programs that a launcher starts several times: a file for each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memplan.errors import UsageError
from memplan.recording.ranks import of_rank, rank, ranks, written_by_rank
from memplan.trace.read import read_trace
from tests.conftest import ROOT, Command, Python

DDP = """\
import sys
import torch
import torch.distributed as dist

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
network = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
)
model = torch.nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
generator = torch.Generator().manual_seed(rank)
losses = []
for step in range(10):
    loss = model(torch.randn(16, 32, generator=generator)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    file.write(" ".join(losses))
del loss, model
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As rank 1 of 4."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    return monkeypatch


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return monkeypatch


def test_a_rank_is_what_the_launcher_says(launched: pytest.MonkeyPatch) -> None:
    assert (rank(), ranks()) == (1, 4)
    assert of_rank(Path("a%r/t.%r.parquet")) == Path("a1/t.1.parquet")
    assert of_rank(Path("p.json")) == Path("p.json")  # one plan may serve all
    launched.setenv("RANK", "12")
    assert written_by_rank(Path("t.%r.json.gz")) == Path("t.12.json.gz")


@pytest.mark.parametrize("value", ["", "captain", "-1", "1.5", "9" * 30])
def test_a_rank_that_is_no_number_is_none(
    alone: pytest.MonkeyPatch, value: str
) -> None:
    alone.setenv("RANK", value)
    alone.setenv("WORLD_SIZE", "2")
    assert (rank(), ranks()) == (None, 1)
    with pytest.raises(UsageError, match="RANK is '"):
        of_rank(Path("t.%r.parquet"))
    assert written_by_rank(Path("t.parquet")) == Path("t.parquet")


def test_a_placeholder_needs_a_rank(alone: pytest.MonkeyPatch) -> None:
    assert (rank(), ranks()) == (None, 1)
    with pytest.raises(UsageError, match="RANK is not set; start the program with"):
        written_by_rank(Path("t.%r.parquet"))


@pytest.mark.parametrize("name", ["t.json.gz", "t10.json.gz", "out/t.json.gz"])
def test_ranks_do_not_share_a_file(launched: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(
        UsageError, match=r"all 4 ranks would write .*; name it .*\.%r\.json\.gz"
    ):
        written_by_rank(Path(name))
    launched.setenv("WORLD_SIZE", "1")
    assert written_by_rank(Path(name)) == Path(name)


@pytest.mark.parametrize("name", ["t.1.parquet", "rank01/t.parquet", "t-1-of-4.json"])
def test_a_name_that_tells_ranks_apart_itself_will_do(
    launched: pytest.MonkeyPatch, name: str
) -> None:
    assert written_by_rank(Path(name)) == Path(name)


ALONE = "%r stands for the rank, but RANK is not set"
SHARED = "all 4 ranks would write t.json; name it t.%r.json"


@pytest.mark.parametrize(
    ("ranked", "line", "why"),
    [
        ("alone", "record -o t.%r.parquet s.py", ALONE),
        ("alone", "apply p.%r.json s.py", ALONE),
        ("alone", "apply --report r.%r.json p.json s.py", ALONE),
        ("launched", "record --force -o t.json s.py", SHARED),
        ("launched", "apply --force --report t.json p.json s.py", SHARED),
    ],
)
def test_where_names_do_not_fit_the_ranks_the_program_does_not_start(
    request: pytest.FixtureRequest,
    command: Command,
    tmp_path: Path,
    ranked: str,
    line: str,
    why: str,
) -> None:
    request.getfixturevalue(ranked)
    (tmp_path / "s.py").write_text("print('started')")
    said = command(*line.split())
    assert (said.code, said.out) == (2, "")
    assert why in said.err


# Both ranks without a launcher: a script and its arguments, or -m and a module.
BOTH = """\
import os, runpy, socket, sys

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
words = sys.argv[1:]
os.dup2(1, 2)
for rank in range(2):
    if os.fork() == 0:
        os.environ.update(place, RANK=str(rank))
        try:
            if words[0] == "-m":
                sys.argv = words[1:]
                runpy.run_module(words[1], run_name="__main__")
            else:
                sys.argv = words
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as stop:
            os._exit(stop.code or 0)
        os._exit(0)
assert [os.wait()[1] for _ in range(2)] == [0, 0]
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def launch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Two ranks, by torchrun; again where gloo's own threads end a rank at its exit,
    as they do now and then without memplan, too."""
    before = set(folder.iterdir())
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=900,
        )
        if "terminate called without an active exception" not in done.stderr:
            break
        for made in set(folder.iterdir()) - before:
            made.unlink()
    return done


def test_each_rank_records_and_follows_a_plan_of_its_own(
    command: Command, python: Python, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    (tmp_path / "ddp.py").write_text(DDP)
    (tmp_path / "both.py").write_text(BOTH)
    python("both.py", "ddp.py", "alone")
    record = ("-m", "memplan", "record", "-o", "t.%r.parquet", *TORCHRUN)
    done = launch(tmp_path, *record, "ddp.py", "recorded")
    assert done.returncode == 0, done.stderr
    for i in range(2):
        info = read_trace(tmp_path / f"t.{i}.parquet").info
        assert (info.rank, info.ranks, info.complete) == (i, 2, True)
        said = command("solve", f"t.{i}.parquet", "-o", f"p.{i}.json")
        assert said.code == 0, said.err
    apply = ("-m", "memplan", "apply", "p.%r.json", "--report", "r.%r.json")
    said = python("both.py", *apply, "ddp.py", "applied")
    for i in range(2):
        assert f"steps under the plan, rank {i}" in said
        report = json.loads((tmp_path / f"r.{i}.json").read_text())
        assert (report["rank"], report["steps"]) == (i, 10)
        assert report["planned_requests"] >= 0.95 * report["requests"] > 0
        losses = (tmp_path / f"alone.{i}").read_text()
        assert losses.count("0x") == 10
        for run in ("recorded", "applied"):
            assert (tmp_path / f"{run}.{i}").read_text() == losses
    assert (tmp_path / "alone.0").read_text() != (tmp_path / "alone.1").read_text()
