"""Steps of other kinds than the hot one: short last batches, evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import memplan
from memplan.core.tables import joined, replay_arrays
from memplan.native import _alloc
from tests.applying.served import Served, add_up, replay_of, table_of
from tests.conftest import Run
from tests.programs import Made, Step, programs_of_kinds, trace_of
from tests.strategies import examples

# Two hot steps (A, B), then two other kinds; every request has a place of its own.
A, B, SHORT, LONG = (64, 128), (64, 192), (64, 128, 256), (320,)
STEPS = (A, B, SHORT, LONG)
PLACES = [
    (size, 512 * i) for i, size in enumerate(size for step in STEPS for size in step)
]
STARTS = (0, 2, 4, 7)


def served(loop: tuple[int, int] = (0, 2)) -> Served:
    return Served(_alloc.make_replay(table_of(PLACES, STARTS, loop), 1 << 16))


def places(step: int, first: int = 0) -> list[int | None]:
    begin = STARTS[step] + first
    return [512 * i for i in range(begin, begin + len(STEPS[step]) - first)]


def test_a_step_of_another_kind_is_recognised_by_its_first_request() -> None:
    program = served()
    assert program.use(*A) == places(0)
    assert program.step(*LONG) == places(3)
    assert program.step(*B) == places(1)  # which was to come next
    assert program.step(*A) == places(0)
    assert program.replay.hot_counts()["planned"] == 7


def test_every_step_is_counted_with_the_kind_it_was_of() -> None:
    program = served()
    program.use(*A)
    program.step(*LONG)
    program.step(*B)
    program.step()
    steps = program.replay.take_steps()
    assert [step for step, _ in steps] == [0, 3, 1]
    assert [counts["planned"] for _, counts in steps] == [2, 1, 2]
    assert program.replay.take_steps() == []


@examples(50, programs_of_kinds(), soak=200)
def test_whatever_steps_come_no_two_blocks_overlap(steps: list[Step]) -> None:
    trace = trace_of(steps)
    plan = memplan.solve(trace)
    assert memplan.verify(plan) == []
    program = Served(replay_of(plan))
    hot = program.run(trace)
    assert all(map(add_up, hot))
    assert add_up(program.replay.warmup_counts())


def test_kinds_seen_in_the_recording_are_all_but_planned() -> None:
    """Blocks reach over boundaries, and kinds begin alike, as they happen to."""
    rng = np.random.default_rng(5)

    def step(count: int) -> Step:
        lives = np.minimum(rng.geometric(0.4, count) - 1, count + 2)
        sizes = rng.integers(1, 9, count) * 64
        return tuple(Made(int(s), int(a)) for s, a in zip(sizes, lives, strict=True))

    planned = requests = 0
    for _ in range(60):
        kinds = [step(int(rng.integers(10, 40))) for _ in range(3)]
        order = rng.choice([0, 0, 0, 0, 1, 2], 30)
        trace = trace_of([kinds[0]] * 5 + [kinds[i] for i in order] + [kinds[0]])
        plan = memplan.solve(trace)
        for counts in Served(replay_of(plan)).run(trace):
            planned += counts["planned"] + counts["unplanned"]
            requests += counts["requests"]
    assert planned >= 0.95 * requests


def test_what_kinds_have_in_common_lies_where_the_hot_step_has_it() -> None:
    """Until its third request an evaluation cannot be told from a training step."""
    hot = (Made(64, 3), Made(128, 2), Made(256, 0), Made(640, 0))
    other = (Made(64, 4), Made(128, 0), Made(999, 2), Made(128, 1), Made(999, 0))
    trace = trace_of([*[hot] * 5, other, hot, other, hot, hot])
    plan = memplan.solve(trace)
    assert len(plan.kinds) == 1
    assert plan.kinds[0].offsets[:2].tolist() == plan.offsets[:2].tolist()
    program = Served(replay_of(plan))
    assert all(counts["conflicts"] == 0 for counts in program.run(trace))


@examples(25, programs_of_kinds(), programs_of_kinds(), soak=50)
def test_joined_tables_are_accepted_and_served(
    steps: list[Step], others: list[Step]
) -> None:
    one, two = (memplan.solve(trace_of(program)) for program in (steps, others))
    first, second = (replay_arrays(plan, warmup=False) for plan in (one, two))
    both = joined(first, joined(second, first))
    # Elastic steps are told by nothing, and cannot be other kinds.
    told = first.elastic.count(False) + second.elastic.count(False)
    assert len(both.starts) == len(first.starts) + told
    arena = max(one.arena_bytes, two.arena_bytes, 64)
    replay = _alloc.make_replay(both.table(arena, arena), arena)
    for trace in (trace_of(others), trace_of(steps)):
        Served(replay).run(trace)
    assert add_up(replay.hot_counts())


def test_elastic_steps_do_not_become_another_kind() -> None:
    first = (Made(64, 0),)
    hot = [(Made(64, 1), Made(128, 0))] * 4
    sizes = [(Made(100 * i + 7, 0), Made(100 * i, 0)) for i in range(1, 9)]
    told, elastic = (
        replay_arrays(memplan.solve(trace_of([first, *steps])), warmup=False)
        for steps in (hot, sizes)
    )
    assert elastic.elastic == [True]
    both = joined(told, elastic)
    assert both.sizes.tolist() == told.sizes.tolist()
    assert both.starts.tolist() == told.starts.tolist()


# Epochs with a short last batch, and an evaluation after each.
EPOCHS = """\
import sys
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 96), torch.nn.BatchNorm1d(96), torch.nn.ReLU(),
    torch.nn.Dropout(0.2), torch.nn.Linear(96, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
said = []
for epoch in range(int(sys.argv[1])):
    model.train()
    for size in (*[32] * 9, 10):
        x, y = torch.randn(size, 64), torch.randint(10, (size,))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item().hex())
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            said.append(float(model(torch.randn(50, 64)).sum()).hex())
print(said)
"""


def test_epochs_with_evaluations_are_planned(memplan: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "epochs.py").write_text(EPOCHS)
    alone = memplan("record", "-q", "-o", "short.parquet", "epochs.py", "3")
    assert alone.returncode == 0, alone.stderr
    solved = memplan("solve", "--json", "short.parquet", "-o", "p.json")
    assert json.loads(solved.stdout)["kinds"] >= 2
    whole_run = memplan("record", "-q", "-o", "long.parquet", "epochs.py", "6")
    done = memplan("apply", "--report", "r.json", "p.json", "epochs.py", "6")
    assert done.returncode == 0, done.stderr
    assert done.stdout == whole_run.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["planned_requests"] >= 0.95 * report["requests"]
    assert report["replans"] == []
