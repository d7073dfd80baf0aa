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


def test_a_free_ends_the_allocation_at_its_address():
    assert match((A, 64), (A, 128), (F, 64), (F, 128)) == [2, 3, 0, 1]


def test_an_address_may_be_reused():
    assert match((A, 64), (F, 64), (A, 64), (F, 64)) == [1, 0, 3, 2]


def test_an_allocation_over_one_whose_free_was_missed_leaves_that_one_open():
    assert match((A, 64), (A, 64), (F, 64)) == [-1, 2, 1]


def test_a_free_without_an_allocation_has_no_partner():
    assert match((F, 64), (A, 64), (F, 64), (F, 64)) == [-1, 2, 1, -1]


def test_a_requested_free_ends_nothing():
    assert match((A, 64), (R, 64), (F, 64)) == [2, -1, 0]


def test_steps_have_no_partner_even_at_an_allocations_address():
    assert match((A, 0), (S, 0), (F, 0)) == [2, -1, 0]


def test_devices_have_addresses_of_their_own():
    assert match((A, 64, 0), (A, 64, 1), (F, 64, 0), (F, 64, 1)) == [2, 3, 0, 1]


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
