"""Buffers of which a program touches only a part."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import strategies as st

import memplan
from memplan.applying.replan import HUGE_PAGE, solved_apart, sparse_buffers
from memplan.core.plan import Plan
from memplan.native import _alloc
from tests.applying.served import Served, column, replay_of, table_of
from tests.programs import Made, Step, programs, programs_of_kinds, trace_of
from tests.strategies import examples

MIB = 1 << 20
RESERVE = 64 * MIB


def served(
    *requests: tuple[int, int],
    sparse: tuple[int, ...] = (),
    elastic: bool = False,
    unsettled: bool = False,
) -> Served:
    table = table_of(list(requests), arena=RESERVE, sparse=sparse, elastic=elastic)
    replay = _alloc.make_replay(table, RESERVE)
    replay.unsettle(unsettled)
    return Served(replay)


def touch(program: Served, offset: int, size: int, value: int = 7) -> None:
    ctypes.memset(program.replay.base + offset, value, size)


def first_byte(program: Served, offset: int) -> int:
    return int(ctypes.c_uint8.from_address(program.replay.base + offset).value)


def use(program: Served, size: int, touched: int) -> int:
    """Offset of a block that is asked for, touched in part, and freed."""
    offset = program.ask(size)
    assert offset is not None
    touch(program, offset, touched)
    program.drop(offset)
    return offset


def test_the_part_that_was_touched_is_known_when_a_block_is_freed() -> None:
    requests = (4 * MIB, 0), (4 * MIB, 4 * MIB), (1000, 8 * MIB)
    program = served(*requests, unsettled=True)
    use(program, 4 * MIB, MIB)
    assert program.replay.touched() == [pytest.approx(0.25, abs=0.26), -1, -1]
    program.replay.next_step()
    use(program, 4 * MIB, MIB)
    use(program, 4 * MIB, 4 * MIB)
    use(program, 1000, 1000)  # too small to be worth a look
    part, whole, small = program.replay.touched()
    assert (part < 0.6, whole, small) == (True, 1.0, -1.0)


def test_what_an_earlier_block_touched_is_not_counted() -> None:
    program = served((4 * MIB, 0), (4 * MIB, 0))
    use(program, 4 * MIB, 4 * MIB)
    assert program.replay.touched() == [-1, -1]
    program.replay.unsettle(True)
    use(program, 4 * MIB, 4096)
    assert program.replay.touched()[1] < 0.6


def test_a_sparse_block_gives_its_pages_back_and_no_others() -> None:
    program = served((4 * MIB, 0), (4 * MIB, 4 * MIB), sparse=(0,))
    for step in range(9):
        below, above = program.ask(4 * MIB), program.ask(4 * MIB)
        assert (below, above) == (0, 4 * MIB)
        touch(program, 0, 4 * MIB)
        touch(program, 4 * MIB, 4 * MIB)
        program.drop(0)
        # In one step of four.
        assert first_byte(program, 0) == (0 if step % 4 == 0 else 7)
        assert first_byte(program, 4 * MIB) == 7
        program.drop(4 * MIB)
        program.replay.next_step()
    assert first_byte(program, 4 * MIB) == 7


def test_only_some_blocks_are_looked_at_in_each_step() -> None:
    program = served(*[(4 * MIB, 0)] * 3, unsettled=True)
    for step in range(3):
        assert program.replay.touched().count(-1) == 3 - step
        for _ in range(3):
            use(program, 4 * MIB, 4 * MIB)
        program.replay.next_step()
    assert program.replay.touched() == [1.0] * 3


def test_pages_that_no_step_uses_any_more_go_back() -> None:
    table = table_of([(8 * MIB, 0)], arena=RESERVE)
    program = Served(_alloc.make_replay(table, RESERVE, 3))
    kept = program.ask(8 * MIB)
    assert kept == 0
    other = program.ask(8 * MIB)
    assert other == 8 * MIB
    for offset in (kept, other):
        touch(program, offset, 8 * MIB)
    program.drop(other)
    for _ in range(6):
        program.replay.next_step()
    assert program.replay.returned_bytes == 8 * MIB
    assert first_byte(program, other) == 0
    assert first_byte(program, kept) == 7


def large_plan() -> Plan:
    """A workspace of 8 MiB beside two full buffers, one after the other."""
    step = (Made(8 * MIB, 1), Made(3 * MIB, 0), Made(8 * MIB, 0))
    return memplan.solve(trace_of([(Made(64, 0),), *[step] * 4]))


def test_what_is_touched_in_part_is_sparse_where_that_is_worth_while() -> None:
    plan = large_plan()
    assert plan.hot.requests is not None
    assert plan.hot.requests.buffer.tolist() == [0, 1, 2]
    assert sparse_buffers(plan, [0.1, 1.0, 1.0]).tolist() == [True, False, False]
    assert not sparse_buffers(plan, [0.9, 1.0, 1.0]).any()
    assert not sparse_buffers(plan, [-1, -1, -1]).any()
    # Apart they would take 0.7 * 8 + 8 MiB, and together they take 11.
    assert not sparse_buffers(plan, [0.7, 1.0, 1.0]).any()


@examples(40, st.one_of(programs(), programs_of_kinds()), st.data(), soak=150)
def test_a_plan_with_some_kept_apart_verifies(
    steps: list[Step], data: st.DataObject
) -> None:
    plan = memplan.solve(trace_of(steps))
    count = len(plan.problem)
    flags = st.lists(st.booleans(), min_size=count, max_size=count)
    sparse = column(data.draw(flags)) > 0
    apart = solved_apart(plan, sparse)
    assert memplan.verify(apart) == []
    assert len(apart.kinds) == len(plan.kinds)
    tops = (apart.offsets + apart.problem.size)[~sparse]
    assert (apart.offsets[sparse] >= tops.max(initial=0)).all()
    assert apart.offsets[sparse].min(initial=1 << 62) % HUGE_PAGE == 0
    if not sparse.any():
        assert apart.peak >= apart.lower_bound
        assert apart.proved_optimal or apart.peak > apart.lower_bound
    parts = np.where(sparse, 0.1, 1.0)
    assert plan.hot.requests is not None
    rows = np.append(parts, -1)[plan.hot.requests.buffer]
    found = sparse_buffers(plan, rows.tolist())
    assert not (found & ~sparse).any()
    Served(replay_of(apart)).run(trace_of(steps))
