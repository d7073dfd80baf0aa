"""Which free ends which allocation."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memplan.trace.trace import Action, Columns
from tests.partners import match_frees

A, F, S, R = Action.ALLOC, Action.FREE_COMPLETED, Action.STEP, Action.FREE_REQUESTED


def match(*events: tuple[Action, int] | tuple[Action, int, int]) -> list[int]:
    rows = [(*event, 0)[:3] for event in events]
    columns = Columns.of(
        action=[row[0] for row in rows],
        address=np.array([row[1] for row in rows], dtype=np.uint64),
        device=[row[2] for row in rows],
    )
    return match_frees(columns).tolist()


def test_addresses_of_64_bits_stay_apart():
    top = (1 << 64) - 1
    assert match((A, top), (A, top - 1), (F, top)) == [2, -1, 0]


def test_no_events_have_no_partners():
    partner = match_frees(Columns.of())
    assert partner.shape == (0,)
    assert partner.dtype == np.int64


@given(
    st.lists(
        st.tuples(st.sampled_from(Action), st.integers(0, 3), st.integers(0, 1)),
        max_size=40,
    )
)
def test_it_agrees_with_following_the_events_one_by_one(
    events: list[tuple[Action, int, int]],
):
    expected = [-1] * len(events)
    live: dict[tuple[int, int], int] = {}
    for row, (action, address, device) in enumerate(events):
        if action == A:
            live[address, device] = row
        elif action == F and (begin := live.pop((address, device), None)) is not None:
            expected[row], expected[begin] = begin, row
    assert match(*events) == expected
