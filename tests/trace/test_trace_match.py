"""Which free ends which allocation."""

from hypothesis import given
from hypothesis import strategies as st

from memplan.trace.trace import Action
from tests.partners import match_frees
from tests.programs import events_of

A, F, S, R = Action.ALLOC, Action.FREE_COMPLETED, Action.STEP, Action.FREE_REQUESTED


def match(*events: tuple[Action, int] | tuple[Action, int, int]) -> list[int]:
    rows = [(*event, 0)[:3] for event in events]
    return match_frees(events_of("action address device", rows)).tolist()


def test_addresses_of_64_bits_stay_apart():
    top = (1 << 64) - 1
    assert match((A, top), (A, top - 1), (F, top)) == [2, -1, 0]


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
