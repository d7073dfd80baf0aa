"""Columns from array-likes: nothing is rounded, wrapped around or guessed."""

import pytest

from memplan.errors import InputError
from memplan.trace.stacks import NO_STACK
from memplan.trace.trace import Action, Columns, Mark, Trace


def test_columns_left_out_are_zero_and_stacks_none():
    columns = Columns.of(address=[1, (1 << 64) - 1])
    assert columns.address.tolist() == [1, (1 << 64) - 1]
    assert columns.size.tolist() == [0, 0]
    assert columns.stack.tolist() == [NO_STACK, NO_STACK]
    assert all(
        getattr(columns, name).dtype == dtype for name, dtype in Columns.DTYPES.items()
    )


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"size": [1.5]}, "size: expected integers, got float64"),
        ({"size": [True]}, "size: expected integers, got bool"),
        ({"size": ["1"]}, "size: expected integers"),
        ({"action": [256]}, "action: a value is not from 0 to 255"),
        ({"address": [-1]}, "address: a value is not from 0 to 18446744073709551615"),
        ({"size": [1 << 63]}, "size: a value is not from"),
        ({"size": [1 << 64]}, "size: a value is not from"),
        ({"device": [1 << 15]}, "device: a value is not from -32768 to 32767"),
        ({"size": [[1], [2]]}, "size: expected one dimension, got shape"),
        ({"size": [[1], [2, 3]]}, "size: not an array of integers"),
        ({"size": 3}, "size: expected one dimension"),
        ({"size": [1], "stack": [1, 2]}, "trace columns differ in length"),
        ({"sizes": [1]}, "unknown trace columns: sizes"),
    ],
)
def test_what_is_no_column_is_refused(columns, problem):
    with pytest.raises(InputError) as caught:
        Columns.of(**columns)
    assert problem in str(caught.value)


def test_a_data_frame_names_actions_and_marks():
    events = Columns.of(action=[0, 2], mark=[0, 3], address=[(1 << 64) - 1, 0])
    frame = Trace(events).to_pandas()
    assert frame["action"].tolist() == [a.name.lower() for a in (Action(0), Action(2))]
    assert frame["mark"].tolist() == [m.name.lower() for m in (Mark(0), Mark(3))]
    assert frame["address"].tolist() == [(1 << 64) - 1, 0]
