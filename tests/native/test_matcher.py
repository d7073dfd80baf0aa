"""How the native server follows a program: the limits of what it bears with."""

from __future__ import annotations

import pytest

from memplan.native import _alloc
from tests.applying.served import Served, table_of

WINDOW = 64  # entries ahead of the last match, and behind it
HISTORY = 512  # requests of a step that may yet tell its kind
ODD = 4096  # where the request that is told apart is planned


def served(
    requests: list[tuple[int, int]],
    starts: tuple[int, ...] = (0,),
    loop: tuple[int, int] | None = None,
    *,
    elastic: bool = False,
) -> Served:
    table = table_of(requests, starts, loop, elastic=elastic)
    return Served(_alloc.make_replay(table, 1 << 16))


@pytest.mark.parametrize(("ahead", "place"), [(WINDOW - 1, ODD), (WINDOW, 0)])
def test_a_request_may_come_so_much_too_early(ahead: int, place: int) -> None:
    program = served([*[(64, -1)] * ahead, (128, ODD)])
    assert program.use(128) == [place]


@pytest.mark.parametrize("first", [10, 100])
def test_how_early_is_told_from_the_last_match(first: int) -> None:
    requests = [(64, -1)] * (first + WINDOW)
    requests[first + WINDOW - 1] = (128, ODD)
    program = served(requests)
    assert program.use(*[64] * (first - 1), 128) == [*[None] * (first - 1), 0]
    assert program.step(*[64] * first, 128) == [*[None] * first, ODD]


@pytest.mark.parametrize(("behind", "place"), [(WINDOW - 1, ODD), (WINDOW, 0)])
def test_a_request_may_come_so_much_too_late(behind: int, place: int) -> None:
    program = served([(128, ODD), *[(64, -1)] * 2 * WINDOW])
    assert program.use(*[64] * behind, 128) == [*[None] * behind, place]


def kinds_alike(alike: int) -> Served:
    """A loop of equal requests; steps of the other kind have an odd one after some."""
    loop = [(64, -1)] * (HISTORY + 100)
    other = [*[(64, -1)] * alike, (999, ODD), (64, -1)]
    return served([*loop, *other], (0, len(loop)), (0, 1))


@pytest.mark.parametrize(
    ("alike", "place"), [(0, ODD), (HISTORY - 1, ODD), (HISTORY, 0)]
)
def test_a_kind_is_told_by_so_many_requests(alike: int, place: int) -> None:
    program = kinds_alike(alike)
    assert program.use(*[64] * alike, 999) == [*[None] * alike, place]
    program.replay.next_step()
    kind = 1 if place == ODD else 0
    assert [step for step, _ in program.replay.take_steps()] == [kind]


def test_a_kind_too_short_for_what_was_asked_is_not_followed() -> None:
    # The third request of a step is the first of the next: not of the kind.
    requests = [(64, -1), (64, -1), (64, -1), (64, -1), (64, -1), (999, ODD)]
    program = served(requests, (0, 3, 5), (0, 1))
    assert program.use(64, 64, 999) == [None, None, 0]


def test_boundaries_alone_end_a_warm_up() -> None:
    program = served([(64, 0), (64, 128), (64, 256)], (0, 1, 2), (2, 3))
    assert not program.replay.next_step()
    assert program.replay.next_step()
    assert program.use(64) == [256]
    assert program.replay.take_steps() == []


def test_what_outgrows_an_elastic_step_is_noted_to_its_end() -> None:
    places = [(100, 0), (300, 128), (50, 448)]
    program = served(places, elastic=True)
    assert program.use(101, 300, 60) == [0, 128, 448]
    counts = program.replay.hot_counts()
    assert (counts["planned"], counts["online"]) == (0, 3)
    assert program.replay.largest() == [101, 300, 60]
    # Exactly as large as planned, and smaller after larger: both are as planned.
    assert program.step(100, 300, 50) == [0, 128, 448]
    assert program.replay.hot_counts()["planned"] == 3
    assert program.replay.largest() == [101, 300, 60]
