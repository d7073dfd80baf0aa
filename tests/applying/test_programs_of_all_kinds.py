"""Threads, exceptions, modes and endings: under a plan as without one.

One program trains a model and gets into one kind of trouble in the middle of a step.
Its losses and its exit code have to be those it has when Python alone runs it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from memplan.trace.read import read_trace
from tests.conftest import Run, environment
from tests.warm import WarmProcess

pytest.importorskip("torch")

PROGRAM = """\
import copy, io, os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
import torch

worker = ThreadPoolExecutor(1)
torch.manual_seed(0)
torch.set_num_threads(1)
kind = sys.argv[1]
model = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
)
other = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.nn.init.constant_(other.bias, 0.5)
generator = torch.Generator().manual_seed(1)
losses, kept, wrong = [], [], []


def pattern(n, value):
    return torch.full((n,), float(value))


def check(block, value):
    if not bool((block == value).all()):
        wrong.append(value)


def in_threads(work, count=3):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def backward(i):
    weight = pattern(5000, i + 1).requires_grad_()
    for _ in range(20):
        weight.grad = None
        (weight * weight).sum().backward()
        check(weight.grad, 2 * (i + 1))


def autograd_threads(step):
    in_threads(backward)


def an_exception(step):
    try:
        held = [pattern(1000 * step, step) for _ in range(3)]
        torch.ones(3, 4) @ torch.ones(5, 6)
    except RuntimeError as error:
        kept.append((error, step, held))


def kept_for_ever(step):
    kept.append(pattern(6400 + step, step))
    for i, block in enumerate(kept):
        check(block, i)


def freed_elsewhere(step):
    box = [pattern(8192, step) for _ in range(8)]
    for block in box:
        check(block, step)

    def free(i):
        box[i] = None

    in_threads(free, 8)


def freed_by_a_worker(step):
    box = [pattern(8192, step) for _ in range(8)]
    for block in box:
        check(block, step)
    worker.submit(box.clear).result()


def copied_and_saved(step):
    stream = io.BytesIO()
    torch.save(copy.deepcopy(other).state_dict(), stream)
    stream.seek(0)
    check(torch.load(stream)["bias"], 0.5)
    array = torch.full((10,), 0.5)
    array.resize_(5000).fill_(step)
    check(array, step)


def alive_at_exit(step):
    loss = model(pattern(64, 1)).sum()
    kept.append((pattern(64, step), loss, pattern(64, 2).numpy()))
    globals()["cycle"] = [kept]
    globals()["cycle"].append(globals()["cycle"])


def inference_mode(step):
    with torch.inference_mode():
        check(other(pattern(64, 0)) - other.bias, 0)
        kept.append(other(pattern(64, step)))


def autocast(step):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = other(torch.ones(32, 64))
    assert result.dtype == torch.bfloat16
    result.float().sum().backward()
    other.zero_grad()


def exit_at_once(step):
    if step == 7:
        print(" ".join(losses))
        sys.stdout.flush()
        os._exit(5)


def exit_in_a_thread(step):
    in_threads(lambda i: sys.exit(9))


def terminated(step):
    if step == 7:
        print(" ".join(losses))
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGTERM)


def nothing(step):
    pass


trouble = globals()[kind]
for step in range(10):
    x = torch.randn(32, 64, generator=generator)
    loss = torch.nn.functional.cross_entropy(model(x), torch.arange(32) % 10)
    trouble(step)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
assert not wrong, wrong
print(" ".join(losses))
"""


@dataclass(frozen=True)
class Known:
    """A plan for the program without trouble, and the losses it prints."""

    plan: Path
    losses: list[str]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, warm: WarmProcess) -> Known:
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "program.py").write_text(PROGRAM)

    def python(*arguments: str) -> str:
        done = warm.run(arguments, folder, environment())
        done.check_returncode()
        return done.stdout

    losses = python("program.py", "nothing").split()
    assert len(losses) == 10
    python("-m", "memplan", "record", "-o", "t.parquet", "program.py", "nothing")
    python("-m", "memplan", "solve", "t.parquet", "-o", "p.json")
    return Known(folder / "p.json", losses)


def check_report(path: Path, steps: int) -> dict[str, int]:
    report: dict[str, int] = json.loads(path.read_text())
    ways = ("planned", "unplanned", "online", "fallback")
    assert report["requests"] == sum(report[f"{way}_requests"] for way in ways)
    assert report["planned_requests"] > 0
    assert report["steps"] == steps
    return report


@pytest.mark.parametrize(
    "kind",
    [
        "autograd_threads",
        "freed_elsewhere",
        "copied_and_saved",
        "exit_in_a_thread",
        *(
            pytest.param(kind, marks=pytest.mark.soak)
            for kind in (
                *("an_exception", "kept_for_ever", "alive_at_exit"),
                *("inference_mode", "autocast"),
            )
        ),
    ],
)
def test_a_program_in_trouble_computes_what_it_computed(
    memplan: Run, tmp_path: Path, known: Known, kind: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = memplan("record", "-q", "-o", "t.parquet", "program.py", kind)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == known.losses
    info = read_trace(tmp_path / "t.parquet").info
    assert (info.complete, info.dropped_events) == (True, 0)
    done = memplan("apply", "-q", "--report", "r.json", known.plan, "program.py", kind)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == known.losses
    check_report(tmp_path / "r.json", steps=10)


def test_a_plan_covers_steps_whose_blocks_another_thread_frees(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    # What another thread only frees does not change what is asked for.
    arguments = ("program.py", "freed_by_a_worker")
    assert memplan("record", "-q", "-o", "t.json", *arguments).returncode == 0
    assert memplan("solve", "t.json", "-o", "p.json").returncode == 0
    done = memplan("apply", "-q", "--report", "r.json", "p.json", *arguments)
    assert done.returncode == 0
    report = check_report(tmp_path / "r.json", steps=10)
    assert report["planned_requests"] >= 0.95 * report["requests"]


def test_a_program_that_leaves_in_a_step_is_reported_first(
    memplan: Run, tmp_path: Path, known: Known
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = ("apply", "--report", "r.json", known.plan, "program.py")
    done = memplan(*arguments, "exit_at_once")
    assert done.returncode == 5
    assert done.stdout.split() == known.losses[:7]
    assert "memplan: 7 steps under the plan" in done.stderr
    assert json.loads((tmp_path / "r.json").read_bytes())["steps"] == 7


def test_a_program_that_is_terminated_in_a_step_ends_as_it_would(
    memplan: Run, tmp_path: Path, known: Known
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = memplan(
        "apply", "--report", "r.json", known.plan, "program.py", "terminated"
    )
    assert (done.returncode, done.stderr) == (-15, "")
    assert done.stdout.split() == known.losses[:7]
    assert not (tmp_path / "r.json").exists()  # nobody was left to write it
