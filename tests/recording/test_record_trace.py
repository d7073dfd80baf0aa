"""What a recording holds, and that nothing of it is lost."""

from __future__ import annotations

import gc
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memplan
from memplan.errors import InputError, RecordError, UsageError
from memplan.recording import events
from memplan.trace import recovery
from memplan.trace.journal import ROW, Journal
from memplan.trace.lives import lives_of
from memplan.trace.recovery import recover_journal
from memplan.trace.steps import find_hot
from memplan.trace.trace import Action, Columns, Mark
from tests.conftest import ROOT, Command, Python, Run
from tests.partners import match_frees

torch = pytest.importorskip("torch")


def test_every_allocation_is_there_with_its_exact_size(tmp_path: Path) -> None:
    sizes = [1, 3, 1000, 4096, 123_457]
    with memplan.record(tmp_path / "t.parquet"):
        blocks = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        addresses = [block.data_ptr() for block in blocks]
        torch.empty(0)  # no memory, no event
        del blocks[1], blocks[2]
    events = memplan.read_trace(tmp_path / "t.parquet").events
    made = events.action == Action.ALLOC
    assert events.requested_size[made].tolist() == sizes
    assert events.address[made].tolist() == addresses
    freed = events.action == Action.FREE_COMPLETED
    assert events.address[freed].tolist() == [addresses[1], addresses[3]]
    assert events.size[freed].tolist() == [3, 4096]
    assert set(events.thread.tolist()) == {threading.get_native_id()}
    assert (np.diff(events.time_ns) >= 0).all()
    assert match_frees(events)[np.flatnonzero(freed)].tolist() == [1, 3]
    del blocks


def test_what_is_in_use_at_the_end_is_measured(tmp_path: Path) -> None:
    with memplan.record(tmp_path / "t.parquet", device="cpu") as recording:
        kept = torch.ones(8 << 20)
        # Blocks that the C library keeps when they are freed: no use of them counts.
        freed = [torch.ones(25_000) for _ in range(1000)]
        last = torch.ones(1000)
        del freed
    info = recording.trace.info
    assert kept.nbytes + last.nbytes < info.used_bytes
    assert info.used_bytes < info.run.peak_rss_bytes - (64 << 20)


def test_a_block_that_outlives_the_recording_stays_valid(tmp_path: Path) -> None:
    with memplan.record(tmp_path / "t.parquet"):
        kept = torch.full((1000,), 7.0)
    with memplan.record(tmp_path / "u.parquet") as second:
        assert float(kept.sum()) == 7000.0
        del kept
    # The free of a block older than the recording has no allocation to end.
    events = second.trace.events
    freed = events.action == Action.FREE_COMPLETED
    assert (match_frees(events)[freed] == -1).sum() == 1


def test_threads_are_told_apart(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import threading, torch\n"
        "def work():\n    for i in range(200): torch.empty(100 + i)\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    assert memplan("record", "-q", "-o", "t.parquet", "script.py").returncode == 0
    events = read(tmp_path / "t.parquet").events
    assert len(np.unique(events.thread)) == 3
    assert (events.action == Action.ALLOC).sum() == 600
    assert (match_frees(events) >= 0).all()


def read(path: Path) -> memplan.Trace:
    return memplan.read_trace(path)


def test_steps_are_cut_by_the_optimizer_and_found_hot(
    memplan: Run, training: Path, tmp_path: Path
) -> None:
    done = memplan("record", "-o", "t.parquet", "train.py", "7")
    assert done.returncode == 0
    assert "7, cut by the optimizer's steps" in done.stderr
    assert "device" not in done.stderr
    assert "memplan solve t.parquet" in done.stderr
    trace = read(tmp_path / "t.parquet")
    assert trace.info.complete
    assert trace.info.program.marks == "optimizer"
    assert trace.info.program.script == "train.py"
    assert trace.info.run.step_seconds > 0
    line = lives_of(trace)
    assert line.mark is Mark.OPTIMIZER
    assert line.steps == 8
    hot = find_hot(line)
    assert hot is not None
    assert hot.period == 1
    assert hot.begin <= 3


def test_the_first_optimizer_cuts_steps_and_the_one_that_replaces_it(
    tmp_path: Path,
) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    with memplan.record(tmp_path / "t.parquet", device="cpu") as recording:
        for _ in range(2):
            first, second = (torch.optim.SGD([weight], 0.1) for _ in range(2))
            for _ in range(3):
                first.step()
                second.step()
            del first, second
            gc.collect()
    assert recording.written is not None
    assert recording.written.summary.steps == 6


def test_an_explicit_mark_wins_over_the_optimizer(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import memplan, torch\n"
        "x = torch.zeros(8, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([x], 0.1)\n"
        "for _ in range(5):\n"
        "    memplan.step()\n"
        "    (x * 2).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    assert memplan("record", "-q", "-o", "t.parquet", "script.py").returncode == 0
    line = lives_of(read(tmp_path / "t.parquet"))
    assert (line.mark, line.steps) == (Mark.EXPLICIT, 6)


def test_recording_stops_after_the_steps_asked_for(
    memplan: Run, training: Path, tmp_path: Path
) -> None:
    done = memplan("record", "--steps", "4", "-o", "t.parquet", "train.py", "9")
    assert done.returncode == 0
    assert done.stdout.count("0x") == 9  # the program ran on
    trace = read(tmp_path / "t.parquet")
    assert lives_of(trace).steps == 5
    assert trace.info.complete


def test_stacks_name_who_asked(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "def inner(n):\n"
        "    return torch.empty(n)\n"
        "def outer():\n"
        "    return inner(10), inner(20)\n"
        "for _ in range(3): outer()\n"
    )
    arguments = ["record", "-q", "--stacks", "python", "-o", "t.parquet", "script.py"]
    assert memplan(*arguments).returncode == 0
    trace = read(tmp_path / "t.parquet")
    made = trace.events.action == Action.ALLOC
    stacks = [trace.stacks[int(i)] for i in trace.events.stack[made]]
    assert len(trace.stacks) == 1  # two calls on one line are one place
    assert [(frame.line, frame.name) for frame in stacks[0]] == [
        (3, "inner"),
        (5, "outer"),
        (6, "<module>"),
    ]
    assert all(frame.filename.endswith("script.py") for frame in stacks[0])


SLOW = """\
import time, torch
for i in range(100_000):
    torch.empty(100 + i % 7)
    if i == 2000:
        print("ready", flush=True)
    if i > 2000:
        time.sleep(0.001)
"""


def killed(tmp_path: Path, sign: signal.Signals) -> subprocess.CompletedProcess[str]:
    """Record SLOW, and send `sign` once 2,000 of its requests are in the journal."""
    (tmp_path / "script.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "memplan", "record", "-o", "t.parquet", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    journal = tmp_path / "t.parquet.journal"
    while (
        not journal.exists() or journal.stat().st_size < 4200 * ROW.itemsize
    ):  # two rows a request
        time.sleep(0.05)
    process.send_signal(sign)
    stdout, stderr = process.communicate(timeout=600)
    return subprocess.CompletedProcess([], process.returncode, stdout, stderr)


def test_a_kill_leaves_a_journal_that_recovers(
    command: Command, tmp_path: Path
) -> None:
    assert killed(tmp_path, signal.SIGKILL).returncode == -signal.SIGKILL
    assert not (tmp_path / "t.parquet").exists()
    said = command("recover", "t.parquet.journal")
    assert said.code == 0
    assert "incomplete" in said.err
    trace = read(tmp_path / "t.parquet")
    assert not trace.info.complete
    assert (trace.events.action == Action.ALLOC).sum() > 2000
    assert command("recover", "t.parquet.journal").code == 2  # --force is missing


def test_ctrl_c_ends_the_program_and_keeps_the_trace(
    memplan: Run, tmp_path: Path
) -> None:
    done = killed(tmp_path, signal.SIGINT)
    assert done.returncode == 130
    assert "KeyboardInterrupt" in done.stderr
    trace = read(tmp_path / "t.parquet")
    assert trace.info.complete
    assert (trace.events.action == Action.ALLOC).sum() > 2000
    assert not (tmp_path / "t.parquet.journal").exists()


FULL = """\
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
import torch
for i in range(20_000): torch.empty(64)
print("went on")
"""


def test_a_full_disk_does_not_stop_the_program(
    memplan: Run, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(FULL)
    done = memplan("record", "-o", "t.parquet", "script.py")
    assert done.stdout == "went on\n"
    assert done.returncode == 125
    assert "recording stopped early" in done.stderr
    assert f"memplan recover {tmp_path}/t.parquet.journal" in done.stderr
    assert "Traceback" not in done.stderr
    assert command("recover", "t.parquet.journal").code == 0
    trace = read(tmp_path / "t.parquet")
    assert not trace.info.complete
    told = re.search(r"it has (\d+) of (\d+) events", done.stderr)
    assert told is not None
    assert int(told[1]) == len(trace) < int(told[2])


def test_wherever_a_journal_is_cut_events_keep_their_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "MAX_JSON_EVENTS", 1)
    path = tmp_path / "t.json"
    with pytest.raises(RecordError), memplan.record(path, stacks="python"):
        for _ in range(5):
            torch.empty(1000)
    data = Path(f"{path}.journal").read_bytes()
    left, at = [], 8
    while at < len(data):
        at += 12 + struct.unpack_from("<III", data, at)[1]  # behind each block
        path.write_bytes(data[:at])
        events = Columns.joined([Columns.of(), *Journal(path).pieces()])
        made = events.action == Action.ALLOC
        assert (events.stack[made] >= 0).all()
        left.append(made.sum())
    assert left[-1] == 5


def test_one_recording_at_a_time(tmp_path: Path) -> None:
    with (
        memplan.record(tmp_path / "t.parquet"),
        pytest.raises(Exception, match="already recording"),
        memplan.record(tmp_path / "u.parquet"),
    ):
        pass
    assert not (tmp_path / "u.parquet").exists()


def test_step_outside_a_recording_does_nothing() -> None:
    memplan.step()


def test_a_journal_that_is_there_is_not_thrown_away(
    memplan: Run, training: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "t.parquet.journal"
    journal.write_bytes(b"the only copy")
    done = memplan("record", "-o", "t.parquet", "train.py")
    assert done.returncode == 2
    assert "run memplan recover on it, or pass --force" in done.stderr
    assert journal.read_bytes() == b"the only copy"
    assert memplan("record", "--force", "-o", "t.parquet", "train.py").returncode == 0
    assert not journal.exists()


def test_two_recordings_cannot_share_a_file(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import time\nprint('ready')\ntime.sleep(3600)\n"
    )
    command = [sys.executable, "-u", "-m", "memplan", "record", "--force"]
    command += ["-o", "t.parquet", "script.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    second = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    first.kill()
    first.communicate()
    assert second.returncode == 2
    assert "another recording is writing" in second.stderr
    assert second.stdout == ""


def test_a_compiled_model_is_recorded_as_it_runs(
    memplan: Run, python: Python, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "torch.manual_seed(0)\n"
        "plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())\n"
        "model = torch.compile(plain, backend='eager')\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(4):\n"
        "    model(torch.ones(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "print(float(plain[0].weight.detach().sum()).hex())\n"
    )
    done = memplan("record", "-q", "-o", "t.parquet", "script.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == python("script.py")
    assert lives_of(read(tmp_path / "t.parquet")).steps == 5


def test_the_trace_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    with memplan.record(tmp_path / "t.parquet", device="cpu") as recording:
        torch.empty(1000)
        with pytest.raises(UsageError, match="the recording is still open"):
            recording.trace  # noqa: B018 - reading it is what is tested
    assert recording.written is not None
    assert recording.written.summary.events == 2
    assert recording.written.summary.peak_live == 4000
    (tmp_path / "t.parquet").rename(tmp_path / "u.parquet")
    with pytest.raises(InputError, match=r"t\.parquet: no such file"):
        recording.trace  # noqa: B018 - reading it is what is tested
    (tmp_path / "u.parquet").rename(tmp_path / "t.parquet")
    trace = recording.trace
    assert len(trace) == 2
    (tmp_path / "t.parquet").unlink()
    assert recording.trace is trace


def test_ctrl_c_while_the_trace_is_written_keeps_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Journal, device: int | None) -> Iterator[Columns]:
        raise KeyboardInterrupt
        yield

    path = tmp_path / "t.parquet"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "pieces", interrupted)
        with memplan.record(path):
            torch.empty(1000)
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.parquet.journal"]
    assert f"memplan recover {path}.journal makes the trace" in capfd.readouterr().err
    found = recover_journal(f"{path}.journal", path)
    assert found.info.complete
    assert memplan.read_trace(path).events.size.tolist() == [4000, 4000]


def test_a_journal_that_was_not_read_to_its_end_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(source: Path, *arguments: Any) -> recovery.Recovered:
        with source.open("ab") as stream:
            stream.write(bytes(20))
        return recover_journal(source, *arguments)

    monkeypatch.setattr(events, "recover_journal", damaged)
    path = tmp_path / "t.parquet"
    with memplan.record(path):
        torch.empty(1000)
    assert (tmp_path / "t.parquet.journal").exists()
    trace = memplan.read_trace(path)
    assert len(trace) == 2
    assert not trace.info.complete


def test_a_failure_amid_the_program_is_told_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "MAX_JSON_EVENTS", 1)
    path, ran = tmp_path / "t.json", []
    with (
        pytest.raises(RecordError, match=r"too many for JSON.*no event is lost"),
        memplan.record(path, steps=1),
    ):
        for _ in range(3):
            memplan.step()
            torch.empty(1000)
            ran.append(1)
    assert len(ran) == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.json.journal"]
    recover_journal(f"{path}.journal", tmp_path / "t.parquet")
    assert len(memplan.read_trace(tmp_path / "t.parquet")) == 4
