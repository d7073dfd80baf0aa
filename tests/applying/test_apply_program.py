"""Real programs under a plan: what they compute, and what becomes of their memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run

pytest.importorskip("torch")

# Everything a program may do to its tensors besides computing with them.
ROUGH = """\
import copy, io, multiprocessing, threading
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept, said = [], []


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.full((64,), float(i))


def work(n):
    return float(torch.ones(n).sum())


def main():
    for step in range(6):
        x = torch.randn(64, 256)
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3:
            kept.append(x)  # never freed, not even at exit
            kept.append(x.numpy())  # an array over the tensor's memory
            array = torch.zeros(10)
            array.resize_(5000).fill_(2.0)
            said.append(float(array.sum()))
            said.append(float(copy.deepcopy(model).weight.sum()))
            stream = io.BytesIO()
            torch.save(model.state_dict(), stream)
            stream.seek(0)
            said.append(float(torch.load(stream)["weight"].sum()))
            box = []
            thread = threading.Thread(target=lambda: box.append(torch.ones(64, 256)))
            thread.start()
            thread.join()
            said.append(float(box.pop().sum()))  # freed by another thread
        if step == 4:
            try:
                torch.ones(3, 4) @ torch.ones(5, 6)
            except RuntimeError as error:
                said.append(type(error).__name__)
            for workers in (0, 2):
                loader = torch.utils.data.DataLoader(Rows(), 4, num_workers=workers)
                said.append([float(rows.sum()) for rows in loader])
            with multiprocessing.get_context("fork").Pool(2) as pool:
                said.append(pool.map(work, [10, 100_000]))
        said.append(float(loss).hex())
    print(said)
    print(float(kept[0].sum()).hex(), float(kept[1].sum()).hex())


if __name__ == "__main__":
    main()
"""


def test_a_rough_program_computes_what_it_computed(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "rough.py").write_text(ROUGH)
    alone = memplan("record", "-q", "-o", "t.parquet", "rough.py")
    assert alone.returncode == 0, alone.stderr
    assert memplan("solve", "--step", "2", "t.parquet", "-o", "p.json").returncode == 0
    done = memplan("apply", "--report", "r.json", "p.json", "rough.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == alone.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["planned_requests"] > 0
    assert report["requests"] == (
        report["planned_requests"]
        + report["unplanned_requests"]
        + report["online_requests"]
        + report["fallback_requests"]
    )


def test_a_plan_takes_no_page_faults_in_steady_steps(
    memplan: Run, training: Path, tmp_path: Path
) -> None:
    # Blocks of over 32 MiB always go back to the system, and fault in each step.
    wide = ["train.py", "12", "80000"]
    recording = ("record", "-q", "-o", "t.parquet")
    assert memplan(*recording, *wide, cold=True).returncode == 0
    assert memplan("solve", "t.parquet", "-o", "p.json").returncode == 0
    done = memplan("apply", "--report", "r.json", "p.json", *wide, cold=True)
    assert done.returncode == 0
    report = json.loads((tmp_path / "r.json").read_text())
    without = report["recorded"]["page_faults_per_step"]
    assert without > 10_000
    # A busy machine takes pages from the interpreter: 5.3 a step were seen.
    assert report["page_faults_per_step"] <= without / 1000
    assert report["fallback_requests"] == report["conflicts"] == 0
    assert report["warmup"]["fallback"] == report["warmup"]["conflicts"] == 0


def test_ctrl_c_under_a_plan_still_reports(memplan: Run, planned: Path) -> None:
    source = planned.read_text()
    interrupting = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"
    planned.write_text(source + interrupting)
    done = memplan("apply", "--report", "r.json", "p.json", "program.py")
    assert done.returncode == 130
    assert "KeyboardInterrupt" in done.stderr
    assert json.loads((planned.parent / "r.json").read_text())["steps"] == 8


def test_another_number_of_threads_is_told(memplan: Run, planned: Path) -> None:
    source = planned.read_text()
    planned.write_text(source.replace("set_num_threads(1)", "set_num_threads(2)"))
    done = memplan("apply", "p.json", "program.py")
    assert done.returncode == 0
    assert "recorded with 1 threads, and this ran with 2" in done.stderr


def test_one_plan_at_a_time(memplan: Run, planned: Path) -> None:
    planned.write_text(
        "import memplan\n"
        "try:\n"
        "    with memplan.apply('p.json'): pass\n"
        "except memplan.errors.UsageError as error:\n"
        "    print(error)\n"
    )
    done = memplan("apply", "-q", "p.json", "program.py")
    assert "already recording or applying" in done.stdout
