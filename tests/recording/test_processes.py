"""Child processes, and endings from outside: the recording stays its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memplan.trace.lives import lives_of
from memplan.trace.read import read_trace
from memplan.trace.trace import Action, Trace
from tests.conftest import Command, Python, Run
from tests.partners import match_frees

pytest.importorskip("torch")

MARKED = 77_777  # elements that only workers ask for

LOADING = f"""\
import sys
import warnings
import torch

warnings.filterwarnings("ignore", "This DataLoader will create")  # on one processor


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, i):
        marked = torch.full(({MARKED},), float(i))
        return torch.full((48,), float(marked.mean())) * 0.01, i % 4


def batch(rows):
    return torch.utils.data.default_collate(rows)


def main(kind, workers):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(48, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(
        Rows(),
        8,
        shuffle=True,
        num_workers=workers,
        collate_fn=batch,
        multiprocessing_context=kind,
        persistent_workers=kind == "spawn",
    )
    for epoch in range(2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(y.tolist(), x.sum().item().hex(), loss.item().hex())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
"""

# A child by os.fork that trains, and ends as its parent does, through memplan.
FORKING = """\
import os, sys
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


train(3)
child = os.fork()
if child == 0:
    train(9)
    torch.ones(77777)
    print("child")
    sys.exit(3)
print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
train(4)
"""


def check_trace(path: Path) -> Trace:
    """It is complete, and holds nothing of a child's."""
    trace = read_trace(path)
    assert (trace.info.complete, trace.info.dropped_events) == (True, 0)
    events = trace.events
    made = events.action == Action.ALLOC
    assert made.any()
    assert not (events.requested_size == 4 * MARKED).any()
    freed = events.action == Action.FREE_COMPLETED
    assert (match_frees(events)[freed] >= 0).all()
    assert not path.with_name(f"{path.name}.journal").exists()
    return trace


@pytest.mark.parametrize(
    "kind", ["fork", pytest.param("spawn", marks=pytest.mark.soak)]
)
def test_data_loader_workers_under_a_recording_and_a_plan(
    memplan: Run, python: Python, command: Command, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "loading.py").write_text(LOADING)
    program = ("loading.py", kind, "2")
    alone = python(*program)
    assert alone.count("\n") == 24
    done = memplan("record", "-q", "-o", "t.parquet", *program)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", alone)
    assert lives_of(check_trace(tmp_path / "t.parquet")).steps == 25
    assert command("solve", "t.parquet", "-o", "p.json").code == 0
    done = memplan("apply", "-q", "--report", "r.json", "p.json", *program)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", alone)
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["steps"] == 24
    assert report["planned_requests"] >= 0.95 * report["requests"] > 0


@pytest.mark.parametrize("options", [(), ("--steps", "6")])
def test_a_forked_child_leaves_recording_and_report_to_its_parent(
    memplan: Run, command: Command, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "forking.py").write_text(FORKING)
    done = memplan("record", *options, "-o", "t.parquet", "forking.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "child\nchild ended with 3\n"
    assert done.stderr.count("memplan: recorded") == 1
    trace = check_trace(tmp_path / "t.parquet")
    assert lives_of(trace).steps == (7 if options else 8)
    assert len(np.unique(trace.events.thread)) <= 2  # the program's, and autograd's
    if options:
        return
    assert command("solve", "t.parquet", "-o", "p.json").code == 0
    done = memplan("apply", "--report", "r.json", "p.json", "forking.py")
    assert (done.returncode, done.stdout) == (0, "child\nchild ended with 3\n")
    assert done.stderr.count("steps under the plan") == 1
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["steps"] == 7
    assert report["planned_requests"] >= 0.95 * report["requests"] > 0


def test_a_forked_child_may_record_itself(python: Python, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, memplan, torch\n"
        "with memplan.record('parent.parquet'):\n"
        "    torch.ones(100)\n"
        "    if os.fork() == 0:\n"
        "        with memplan.record('child.parquet'):\n"
        "            torch.ones(77777)\n"
        "        os._exit(0)\n"
        "    assert os.wait()[1] == 0\n"
        "    torch.ones(200)\n"
    )
    python("script.py")
    check_trace(tmp_path / "parent.parquet")
    events = read_trace(tmp_path / "child.parquet").events
    made = events.action == Action.ALLOC
    assert events.requested_size[made].tolist() == [4 * MARKED]


CHILD_OF_A_GPUS = """\
import os
from memplan.native import _alloc
from memplan.trace.info import encode_metadata
from memplan.trace.trace import Columns, Trace

info = encode_metadata("t.json", Trace(Columns.of())).decode()
journal = os.open("t.json.journal", os.O_CREAT | os.O_WRONLY)
_alloc.start_recording(journal, info, 0, requests=False)
_alloc.mark_step(1)
child = os.fork()
if child == 0:
    os._exit(_alloc.recorded_events())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), _alloc.recorded_events())
_alloc.stop_recording(info)
"""


def test_a_forked_child_leaves_a_recording_of_the_gpu_alone(
    python: Python, tmp_path: Path
) -> None:
    """No thread writes its copy of the journal: who waited for one would do so for
    ever."""
    (tmp_path / "script.py").write_text(CHILD_OF_A_GPUS)
    assert python("script.py").split() == ["0", "1"]


TERMINATED = """\
import os, signal, sys, time, torch
{before}
kept = [torch.ones(100) for _ in range(10)]
journal = "t.parquet.journal"
size = lambda: os.path.exists(journal) and os.path.getsize(journal)
for _ in range(2):  # until the journal has what was asked for by now
    before = size()
    torch.ones(1)
    while size() == before:
        time.sleep(0.01)
child = os.fork()
if child:
    print(os.wait()[1])
    sys.stdout.flush()
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_recording_that_is_terminated_names_the_way_back(
    memplan: Run, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(
        TERMINATED.format(
            before="assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL"
        )
    )
    done = memplan("record", "-o", "t.parquet", "script.py")
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == "15\n"  # so was the child, which said nothing
    recover = f"memplan recover {tmp_path}/t.parquet.journal"
    assert done.stderr.count("\n") == done.stderr.count(recover) == 1
    assert command(*recover.split()[1:]).code == 0
    trace = read_trace(tmp_path / "t.parquet")
    # The ten, and one or both of those that were waited for.
    assert 10 < (trace.events.action == Action.ALLOC).sum() <= 12


def test_a_handler_of_the_programs_own_stays(memplan: Run, tmp_path: Path) -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: print('own handler'))"
    (tmp_path / "script.py").write_text(TERMINATED.format(before=own))
    done = memplan("record", "-q", "-o", "t.parquet", "script.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "own handler\n0\nown handler\n"
    assert read_trace(tmp_path / "t.parquet").info.complete


def test_after_the_recording_nothing_is_said(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, signal, memplan, torch\n"
        "with memplan.record('t.parquet'):\n"
        "    torch.ones(100)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert read_trace(tmp_path / "t.parquet").info.complete
