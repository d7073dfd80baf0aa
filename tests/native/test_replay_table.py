"""The native table is made of arrays; what would lead the matcher astray is refused."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.native import _alloc
from tests.applying.served import column, flags


def make(**changes: Any) -> _alloc.Table:
    """Of two requests in as many steps, the second of which repeats."""
    arrays: dict[str, Any] = {
        "sizes": [64, 100],
        "offsets": [0, -1],
        "starts": [0, 1],
        "loop_begin": 1,
        "loop_end": 2,
        "elastic": [False, True],
        "sparse": [True, False],
        "arena_bytes": 1024,
        "online_bytes": 1024,
        **changes,
    }
    for name in ("sizes", "offsets", "starts"):
        arrays[name] = column(arrays[name])
    for name in ("elastic", "sparse"):
        arrays[name] = flags(arrays[name])
    return _alloc.table(**arrays)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"offsets": [0]}, "sizes, offsets, sparse and brief differ in length"),
        ({"sparse": [True]}, "sizes, offsets, sparse and brief differ in length"),
        ({"elastic": [True]}, "starts and elastic differ in length"),
        ({"sizes": [64, 0]}, "a size is not positive"),
        ({"sizes": [-64, 64]}, "a size is not positive"),
        ({"offsets": [32, 64]}, "an offset is not a multiple of 64"),
        ({"starts": [1, 1]}, "starts must begin with 0"),
        ({"starts": [], "elastic": [], "loop_begin": 0, "loop_end": 0}, "begin with 0"),
        ({"starts": [0, 3]}, "starts must ascend"),
        ({"starts": [0, -1]}, "starts must ascend"),
        ({"loop_begin": 2}, "the steps that repeat must be some"),
        ({"loop_begin": 2, "loop_end": 1}, "the steps that repeat must be some"),
        ({"loop_end": 3}, "the steps that repeat must be some, and reach beyond none"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"starts": [0, 0]},
        {"starts": [0, 2]},
        {"loop_begin": 0, "loop_end": 1},
        {"sparse": []},
        {"offsets": [1 << 40, 1 << 40]},
    ],
)
def test_what_makes_sense_is_taken(changes: dict[str, Any]) -> None:
    replay = _alloc.make_replay(make(**changes), 1024)
    replay.next_step()
    assert replay.largest() == [0, 0]


def test_without_steps_every_request_is_a_departure() -> None:
    names = ("sizes", "offsets", "starts", "elastic", "sparse")
    nothing: dict[str, Any] = {name: [] for name in names}
    replay = _alloc.make_replay(make(**nothing, loop_begin=0, loop_end=0), 1024)
    assert replay.allocate(64) == replay.base
    assert replay.hot_counts()["online"] == 1
