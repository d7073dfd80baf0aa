"""A recording ends by itself once the steps repeat."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.recording.boundary import SETTLED_STEPS, Settling
from memplan.trace.lives import strongest_mark
from memplan.trace.read import read_trace
from memplan.trace.steps import MAX_PERIOD
from memplan.trace.trace import Action, Mark
from tests.conftest import Command, Run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def after(digests: list[int], mark: Mark = Mark.FORWARD) -> Settling:
    settling = Settling()
    for digest in digests:
        settling.add(mark, digest)
    return settling


@given(
    st.lists(st.integers(), max_size=50),
    st.lists(st.integers(1, 1 << 60), min_size=1, max_size=MAX_PERIOD),
)
def test_steps_that_repeat_with_some_period_settle(
    before: list[int], period: list[int]
) -> None:
    passes = -(-SETTLED_STEPS // len(period)) + 1
    assert after(before + period * passes).settled
    short = (period * passes)[: SETTLED_STEPS - 1]
    assert not after([-1, *range(-2, -60, -1), *short]).settled


@given(st.lists(st.integers(), unique=True, max_size=200))
def test_steps_that_all_differ_never_settle(digests: list[int]) -> None:
    assert not after(digests).settled


def test_steps_that_ask_for_nothing_do_not_settle() -> None:
    assert not after([0] * 3 * SETTLED_STEPS).settled


def test_a_stronger_mark_counts_alone() -> None:
    settling = after([7] * 2 * SETTLED_STEPS)
    settling.add(Mark.OPTIMIZER, 7)
    assert not settling.settled
    for _ in range(SETTLED_STEPS + 1):
        settling.add(Mark.FORWARD, 7)
        settling.add(Mark.OPTIMIZER, 8)
    assert settling.settled


def steps_in(path: Path) -> int:
    events = read_trace(path).events
    cuts = (events.action == Action.STEP) & (events.mark == strongest_mark(events))
    return int(cuts.sum())


def test_then_exit_ends_the_program(
    memplan: Run, command: Command, training: Path
) -> None:
    done = memplan("record", "--then-exit", "-o", "t.parquet", training, "100000")
    assert (done.returncode, done.stdout) == (0, "")
    assert "the steps repeat (--steps all" in done.stderr
    assert steps_in(training.parent / "t.parquet") < 2 * SETTLED_STEPS
    assert command("solve", "t.parquet", "-o", "p.json").code == 0


def test_then_exit_runs_what_the_program_does_at_its_end(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "s.py").write_text(
        "import torch, memplan\n"
        "try:\n"
        "    while True:\n"
        "        memplan.step()\n"
        "        torch.ones(500)\n"
        "finally:\n"
        "    print('closed')\n"
    )
    command = ("record", "--then-exit", "--steps", "3", "-o", "t.parquet", "s.py")
    done = memplan(*command)
    assert (done.returncode, done.stdout) == (0, "closed\n")
    assert "after 3 steps (--steps)" in done.stderr


def test_a_short_program_is_recorded_whole(memplan: Run, training: Path) -> None:
    path = training.parent / "t.parquet"
    done = memplan("record", "-o", path, training, str(2 * SETTLED_STEPS))
    assert "stopped" not in done.stderr
    assert steps_in(path) == 2 * SETTLED_STEPS
