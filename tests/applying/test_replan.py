"""Plans made anew while the program runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import memplan
from memplan.applying import replan as replanning
from memplan.applying.replan import (
    ELASTIC_PATIENCE,
    PATIENCE,
    RECORDED_STEPS,
    SLACK,
    UNPROVEN,
    Replanner,
    from_log,
)
from memplan.core.plan import Plan
from memplan.core.tables import ReplayArrays, room_for_departures
from memplan.errors import NoPlanError
from memplan.trace.journal import ROW
from memplan.trace.trace import Action, Mark
from tests.applying.served import RESERVE, Served, replay_of
from tests.conftest import Run
from tests.plans import changed
from tests.programs import Made, trace_of


def elastic_plan(warmup: int = 1) -> Plan:
    """Three requests a step, for up to 603, 703 and 803 bytes."""
    steps = [tuple(Made(n + i, 2 - k) for k, n in enumerate((600, 700, 800)))
             for i in range(1, 5)]  # fmt: skip
    before = [(Made(64, 0),) * (5 + i) for i in range(warmup)]
    plan = memplan.solve(trace_of([*before, *steps]))
    assert plan.elastic
    assert plan.hot.requests is not None
    assert plan.hot.requests.size.tolist() == [603, 703, 803]
    return plan


class Program:
    """A program under a plan that is replaced, as `memplan.apply` does it."""

    def __init__(self, plan: Plan, reserve: int = RESERVE) -> None:
        self.served = Served(replay_of(plan, reserve))
        self.replanner = Replanner(
            plan,
            self.served.replay,
            lambda *table: self.served.replay.adopt(ReplayArrays.table(*table)),
        )

    def step(self, *sizes: int) -> list[int | None]:
        """A boundary, then blocks that live side by side to the step's end."""
        self.replanner.adopt_ready()
        self.served.replay.next_step()
        self.replanner.step_ended()
        found = [self.served.ask(size) for size in sizes]
        for offset in found:
            self.served.drop(offset)
        return found

    def wait(self) -> None:
        """Until the plan in the making is made."""
        for thread in threading.enumerate():
            if thread.name == "memplan-replan":
                thread.join()

    def planned(self) -> int:
        return self.served.replay.hot_counts()["planned"]


def reasons(program: Program) -> list[tuple[str, bool]]:
    return [(one.reason, one.adopted) for one in program.replanner.replans]


@pytest.mark.parametrize("warmup", [0, 3])
def test_larger_requests_are_planned_from_the_next_boundary_on(warmup: int) -> None:
    program = Program(elastic_plan(1 + warmup))
    for _ in range(1 + warmup):
        program.step(600, 700, 800)
    before = program.planned()
    program.step(600, 9000, 800)
    assert program.planned() == before + 1
    program.step(600, 700, 800)  # here it is noticed
    program.wait()
    assert program.planned() == before + 4
    program.step(600, 9000, 800)
    assert program.planned() == before + 7
    program.step(600, 9000, 800)
    assert reasons(program) == [("larger", True)]
    plan = program.replanner.plan
    assert plan.hot.requests is not None
    assert plan.hot.requests.size.tolist() == [603, 9000 + 9000 // SLACK, 803]
    assert program.replanner.replans[0].arena_bytes == plan.arena_bytes
    assert memplan.verify(plan) == []


def test_what_is_asked_before_the_boundary_does_not_confuse_what_is_made() -> None:
    """The plan is ready, the table is still the old one: sizes belong to that."""
    program = Program(elastic_plan(3))
    for _ in range(4):
        program.step(600, 700, 800)
    for size in (1000, 2000, 3000, 4000, 5000):
        program.step(600, size, 800)
        program.wait()
    for _ in range(4):
        program.step(600, 5000, 800)
        program.wait()
    plan = program.replanner.plan
    assert plan.hot.requests is not None
    first, grown, last = plan.hot.requests.size.tolist()
    assert (first, last) == (603, 803)
    assert 5000 <= grown <= 5000 + 5000 // SLACK
    assert all(adopted for _, adopted in reasons(program))


def test_departures_of_other_steps_get_no_more_than_was_planned() -> None:
    plan = elastic_plan()
    assert room_for_departures(plan, 4096, 1 << 20) == 8192
    assert room_for_departures(plan, 4096, 6000) == 6000
    fixed = memplan.solve(trace_of([(Made(600, 0),)] * 4))
    assert room_for_departures(fixed, 4096, 1 << 20) == 4096


def test_what_does_not_fit_the_reserve_is_given_up() -> None:
    program = Program(elastic_plan(), reserve=4096)
    for _ in range(8):
        program.step(600, 9000, 800)
        program.wait()
    # Not again and again; as a program of another kind there is nothing to be had
    # either, since the native replay alone keeps no log.
    assert reasons(program)[:1] == [("larger", False)]
    assert ("larger", True) not in reasons(program)
    assert sum(reason == "larger" for reason, _ in reasons(program)) == 1
    assert program.replanner.plan.arena_bytes <= 4096


def test_a_failure_of_ours_is_told_and_the_program_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> Plan:
        raise ZeroDivisionError("no such plan")

    monkeypatch.setattr(replanning, "larger", broken)
    program = Program(elastic_plan())
    for _ in range(3):
        program.step(600, 9000, 800)
        program.wait()
    program.step(600, 700, 800)
    assert "replanning failed: ZeroDivisionError('no such" in capsys.readouterr().err
    assert reasons(program) == [("larger", False)]


def test_a_plan_that_does_not_verify_is_not_adopted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = elastic_plan()
    wrong = changed(plan, offsets=np.zeros_like(plan.offsets), warmup=None)
    monkeypatch.setattr(replanning, "larger", lambda *_: wrong)
    program = Program(plan)
    for _ in range(4):
        program.step(600, 9000, 800)
        program.wait()
    assert reasons(program)[0] == ("larger", False)
    assert program.replanner.plan is plan


def test_larger_requests_are_planned_after_steps_that_nothing_came_of() -> None:
    program = Program(elastic_plan())
    for _ in range(2 * (ELASTIC_PATIENCE + RECORDED_STEPS)):
        program.step(600, 700, 800, *[64] * 5)
        program.wait()
    assert reasons(program)[:1] == [("different", False)]
    for _ in range(4 * ELASTIC_PATIENCE):
        program.step(600, 9000, 800)
        program.wait()
    assert reasons(program)[-1] == ("larger", True)


def test_a_plan_that_comes_too_late_is_reported_as_that() -> None:
    program = Program(elastic_plan())
    for _ in range(3):
        program.step(600, 9000, 800)
    program.replanner.finish()
    assert reasons(program) == [("larger", False)]
    program.replanner.finish()
    assert reasons(program) == [("larger", False)]


def test_a_program_that_never_settles_is_planned_ever_more_rarely() -> None:
    steps = [(Made(64, 0),)] + [(Made(640, 1), Made(100, 0))] * 4
    program = Program(memplan.solve(trace_of(steps)))
    for turn in range(90):
        program.step(*range(5000 + 100 * turn, 5000 + 100 * turn + 40))
        program.wait()
    noted = [one.step for one in program.replanner.replans]
    assert {one.reason for one in program.replanner.replans} == {"different"}
    # Between two, as many recorded steps, and a patience that doubles each time; at its
    # end the plan is tried again, and is given up again.
    waits = np.diff([0, *noted])
    assert np.diff(waits)[1:3].tolist() == [2 * PATIENCE, 4 * PATIENCE]
    assert len(program.replanner.given_up) >= len(noted)
    assert {one.reason for one in program.replanner.given_up} == {"different"}
    assert program.replanner.given_up[0].step == UNPROVEN


def test_a_plan_of_another_program_is_given_up_and_nothing_stays_resident() -> None:
    steps = [(Made(64, 0),)] + [(Made(1 << 20, 1), Made(1 << 18, 0))] * 4
    program = Program(memplan.solve(trace_of(steps)))
    replay = program.served.replay
    for _ in range(2):
        program.step(1 << 20, 1 << 18)
    assert replay.resident_bytes > 0
    kept = program.served.ask(1 << 20)
    for _ in range(PATIENCE + 1):
        program.step(*range(5000, 5040))
    assert replay.aside
    assert program.step(1 << 20, 64) == [None, None]
    assert replay.resident_bytes <= (1 << 20) + 2 * (16 << 10)
    program.served.drop(kept)
    program.step(64)
    program.step(64)
    assert replay.resident_bytes == replay.live_bytes == 0


def test_the_warm_up_is_not_looked_at() -> None:
    program = Program(elastic_plan(4))
    for _ in range(3):
        program.step(5000, 5000)
        program.wait()
    assert reasons(program) == []
    assert program.served.replay.warmup_counts()["fallback"] == 6


def log_of(*steps: list[tuple[int, int, int]]) -> bytes:
    """Steps of (action, address, size), with a boundary after each."""
    rows = [row for step in steps for row in [*step, (Action.STEP, 0, 0)]]
    table = np.zeros(len(rows), dtype=ROW)
    for name, values in zip(("action", "address", "size"), zip(*rows, strict=True),
                            strict=True):  # fmt: skip
        table[name] = values
    table["mark"] = np.where(table["action"] == Action.STEP, Mark.OPTIMIZER, 0)
    table["stack"] = -1
    return table.tobytes()


ONE = [(Action.ALLOC, 1, 500), (Action.ALLOC, 2, 300), (Action.FREE_COMPLETED, 1, 0),
       (Action.FREE_COMPLETED, 2, 0)]  # fmt: skip


def test_the_log_makes_a_plan_without_a_warm_up() -> None:
    # What is freed first was made before the log was opened.
    old = [(Action.FREE_COMPLETED, 77, 0)]
    plan = from_log(elastic_plan(), log_of(old, ONE, ONE, ONE, ONE, []))
    assert not plan.elastic
    assert plan.warmup is None
    assert plan.hot.requests is not None
    assert plan.hot.requests.size.tolist()[:2] == [500, 300]
    assert memplan.verify(plan) == []


@pytest.mark.parametrize(
    "log",
    [
        b"",
        log_of(ONE, ONE)[: -ROW.itemsize * 6],
        log_of(ONE)[: ROW.itemsize * 4],
        log_of(ONE, ONE[:2], [], ONE[2:], ONE),
    ],
    ids=["empty", "one step", "no step", "nothing repeats"],
)
def test_a_log_in_which_nothing_repeats_makes_none(log: bytes) -> None:
    with pytest.raises(NoPlanError):
        from_log(elastic_plan(), log)


# After some steps the batch grows for good, with another layer in the model's way.
CHANGING = """\
import os, sys, threading
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Linear(64, 64) for _ in range(4)]
head = torch.nn.Linear(64, 10)
parameters = [p for layer in [*layers, head] for p in layer.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
said = []
for step in range(int(sys.argv[1])):
    batch = 16 if step < 12 else 40
    if step == int(sys.argv[2]):
        child = os.fork()
        if child == 0:  # another program, which nothing watches
            for _ in range(5):
                loss = (layers[0](torch.randn(30, 64)) ** 2).sum()
                loss.backward()
                optimizer.step()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    x = torch.randn(batch, 64)
    for layer in layers if step < 12 else [*layers, *layers]:
        x = torch.relu(layer(x))
    loss = torch.nn.functional.cross_entropy(head(x), torch.arange(batch) % 10)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    said.append(loss.item().hex())
    for thread in threading.enumerate():  # planning takes no steps
        if thread.name == "memplan-replan":
            thread.join()
print(said)
"""


@pytest.mark.parametrize("fork", [0, 18])
def test_a_program_that_changes_for_good_is_planned_again(
    memplan: Run, plan_of: Callable[..., Path], tmp_path: Path, fork: int
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(CHANGING)
    plan = plan_of(CHANGING, "8", "999")
    alone = memplan("record", "-q", "-o", "u.parquet", "program.py", "150", "999")
    arguments = [plan, "program.py", "150", str(fork or 999)]
    done = memplan("apply", "--report", "r.json", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout == alone.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    adopted = [one for one in report["replans"] if one["adopted"]]
    assert {one["reason"] for one in adopted} == {"different"}
    assert adopted[-1]["arena_bytes"] == report["arena_bytes"]
    departed = report["online_requests"] + report["fallback_requests"]
    # From the change until the plan holds: 3 steps, 7 in the log, and a few until the
    # blocks left behind are gone.
    assert departed <= 0.2 * report["requests"]
