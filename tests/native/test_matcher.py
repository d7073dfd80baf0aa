"""How the native server follows a program: the limits of what it bears with."""

from __future__ import annotations

import pytest

from memplan.native import _alloc
from tests.applying.served import Served, column, flags, table_of

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


def test_an_entry_serves_once_in_a_step() -> None:
    program = served([(64, 0), (128, 64), (64, 256), (192, 512)])
    assert program.use(128, 64, 64, 64) == [64, 0, 256, 192]
    assert program.step(64, 128, 64, 192) == [0, 64, 256, 512]


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


def test_a_kind_that_differs_anywhere_before_is_not_followed() -> None:
    requests = [*[(64, -1)] * 4, *[(64, -1), (65, -1), (64, -1), (999, ODD)]]
    program = served(requests, (0, 4), (0, 1))
    assert program.use(64, 64, 64, 999) == [None, None, None, 0]


def test_a_kind_too_short_for_what_was_asked_is_not_followed() -> None:
    # The third request of a step is the first of the next: not of the kind.
    requests = [(64, -1), (64, -1), (64, -1), (64, -1), (64, -1), (999, ODD)]
    program = served(requests, (0, 3, 5), (0, 1))
    assert program.use(64, 64, 999) == [None, None, 0]


# An unrolled loop: two steps alike. Then two other kinds, which begin alike.
LOOP_AND_KINDS = [(64, 0), (64, 512), (320, 1024), (64, 2048), (320, 3072), (192, ODD)]


def looping() -> Served:
    return served(LOOP_AND_KINDS, (0, 1, 2, 4), (0, 2))


def test_a_kind_taken_for_another_is_set_right_and_the_loop_goes_on() -> None:
    program = looping()
    assert program.use(64) == [0]
    assert program.step(320, 192) == [1024, ODD]
    assert program.step(64) == [512]
    assert program.step(64) == [0]
    steps = [step for step, _ in program.replay.take_steps()]
    assert steps == [0, 3, 1]


def test_after_a_kind_the_step_it_stood_in_for_is_due() -> None:
    program = looping()
    assert program.use(320, 64) == [1024, 2048]
    assert program.step(320, 64) == [1024, 2048]
    assert program.step(64) == [0]
    assert program.step(320, 64) == [1024, 2048]
    assert program.step(64) == [512]


def test_a_step_may_be_taken_for_another_more_than_once() -> None:
    loop, one = [(64, 0), (128, 512)], [(64, 1024), (320, 2048), (64, 3072)]
    other = [(64, 5120), (320, 6144), (192, ODD)]
    program = served([*loop, *one, *other], (0, 2, 5), (0, 1))
    assert program.use(64, 320, 192) == [0, 2048, ODD]
    assert program.step(64, 128) == [0, 512]


def test_what_a_step_asked_for_before_it_was_recognised_is_past() -> None:
    loop, other = [(64, 0), (128, 512)], [(64, 1024), (320, 2048), (64, 3072)]
    program = served([*loop, *other], (0, 2), (0, 1))
    # The last one departs: the kind's first request is not to come any more.
    assert program.use(64, 320, 64, 64) == [0, 2048, 3072, 2368]


def test_of_steps_that_begin_alike_the_one_that_is_due_first_is_followed() -> None:
    program = served([(64, 0), (128, 512), (64, ODD)], (0, 1, 2), (0, 3))
    assert program.use(64) == [0]
    assert program.step(64) == [ODD]  # the one in between is left out


def test_a_step_in_another_order_is_forgotten_at_its_end() -> None:
    loop, other = [(64, 0), (128, 512), (192, 1024)], [(64, 2048), (256, ODD)]
    program = served([*loop, *other], (0, 3), (0, 1))
    assert program.use(128, 64, 192) == [512, 0, 1024]
    assert program.step(64, 128, 192) == [0, 512, 1024]


def test_a_step_of_the_loop_that_comes_instead_of_another_is_followed_by_its_own() -> (
    None
):
    requests = [(64 * (i + 1), 1024 * i) for i in range(3)]
    program = served(requests, (0, 1, 2), (0, 3))
    assert program.use(128) == [1024]
    assert program.step(192) == [2048]
    assert program.step(64) == [0]


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


def test_an_elastic_step_is_never_taken_for_another() -> None:
    steps, arena = column([0, 1]), 1 << 16
    table = _alloc.table(
        *(column([64, 128]), column([ODD, 1024]), steps, 0, 2),
        *(flags([True, False]), flags([False, False]), arena, arena),
    )
    program = Served(_alloc.make_replay(table, arena))
    assert program.use(64) == [ODD]
    assert program.step(64) == [0]
