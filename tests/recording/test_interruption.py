"""Parts of a program that are not to be planned: `interrupt` and `resume`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memplan as library
from memplan.errors import UsageError
from memplan.native import _alloc
from memplan.trace.trace import Action
from tests.conftest import Command, Python, Run


def test_without_a_recording_or_a_plan_they_do_nothing() -> None:
    before = _alloc.interrupted_requests()
    library.interrupt()
    library.resume()
    with library.unplanned(), library.unplanned():
        pass
    assert _alloc.interrupted_requests() == before


def test_a_resume_too_many_is_refused() -> None:
    library.interrupt()
    library.resume()
    for _ in range(2):
        with pytest.raises(UsageError, match=r"resume\(\) without a memplan.interrupt"):
            library.resume()
    library.interrupt()  # and leaves nothing behind
    library.resume()


def test_an_exception_ends_the_interruption() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), library.unplanned():
        fail()
    with pytest.raises(UsageError):
        library.resume()


# Sizes tell who made what: 1,000 floats outside, 2,000 inside interruptions.
RECORDED = """\
import sys, threading
import torch
import memplan

torch.set_num_threads(1)
with memplan.record(sys.argv[1]) as recording:
    for step in range(4):
        memplan.step()
        kept = torch.empty(1000)
        with memplan.unplanned():
            del kept  # its free is recorded
            outer = torch.empty(2000)
            memplan.interrupt()
            thread = threading.Thread(target=lambda: torch.empty(2000))
            thread.start()
            thread.join()
            memplan.resume()
            still = torch.empty(2000)
        after = torch.empty(1000)
        del outer, still, after  # of these only the last one's is
events = recording.trace.events
print(list(zip(events.action.tolist(), events.requested_size.tolist())))
"""


def test_what_is_asked_for_meanwhile_is_not_in_the_trace(
    python: Python, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "recorded.py").write_text(RECORDED)
    python("recorded.py", "t.parquet")
    trace = library.read_trace(tmp_path / "t.parquet")
    events = trace.events
    rows = list(
        zip(events.action.tolist(), events.requested_size.tolist(), strict=True)
    )
    block = [(Action.ALLOC, 4000), (Action.FREE_COMPLETED, 4000)]
    assert rows == [(Action.STEP, 0), *block, *block] * 4
    assert trace.info.complete
    assert library.solve(trace).elastic is False


TRAINING = """\
import sys
import torch
import memplan

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
said = []
for step in range(int(sys.argv[1])):
    loss = (model(torch.randn(20, 64)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    said.append(loss.item().hex())
    if step % 3 == 2:  # another size each time, which no plan could hold
        with memplan.unplanned(), torch.no_grad():
            said.append(float(model(torch.randn(30 + step, 64)).sum()).hex())
print(said)
"""


def test_what_is_asked_for_meanwhile_does_not_depart_from_the_plan(
    memplan: Run, python: Python, command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAINING)
    recorded = memplan("record", "-q", "-o", "t.parquet", "train.py", "12")
    assert recorded.returncode == 0, recorded.stderr
    assert command("solve", "t.parquet", "-o", "p.json").code == 0
    assert library.read_plan(tmp_path / "p.json").kinds == ()
    done = memplan("apply", "--report", "r.json", "p.json", "train.py", "30")
    assert done.returncode == 0, done.stderr
    assert done.stdout == python("train.py", "30")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["interrupted_requests"] >= 10 * 2
    assert report["planned_requests"] == report["requests"] > 0
    assert report["conflicts"] == 0
    assert "interrupted" in done.stderr
