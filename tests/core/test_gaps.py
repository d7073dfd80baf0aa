"""Gaps in lifespans: what is allowed, and what of a buffer is used when."""

from __future__ import annotations

import numpy as np
import pytest

from memplan.core.problem import Gaps, Problem, join, pieces
from memplan.errors import InputError
from tests.gap_samples import gapped, window
from tests.strategies import examples, problems


def rows(gaps: Gaps | None) -> list[tuple[int, ...]]:
    assert gaps is not None
    return list(zip(*(column.tolist() for column in gaps.columns), strict=True))


def test_gaps_are_kept_by_buffer_and_time_and_read_only() -> None:
    gaps = Gaps.of([1, 0, 1], [5, 2, 1], [6, 3, 4], [2, 0, 7], [9, 4, 7])
    assert rows(gaps) == [(0, 2, 3, 0, 4), (1, 1, 4, 0, 0), (1, 5, 6, 2, 9)]
    assert gaps.partial.tolist() == [True, False, True]
    assert len(gaps) == 3
    for column in gaps.columns:
        assert column.dtype == np.int64
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_some_buffers_gaps_more_buffers_and_both() -> None:
    gaps = Gaps.of([0, 2, 2], [1, 2, 6], [2, 3, 9], 0, [4, 0, 0])
    assert rows(gaps.among(np.array([1, 2]))) == [(1, 2, 3, 0, 0), (1, 6, 9, 0, 0)]
    assert gaps.among(np.array([1])) is None
    later = gaps.shifted(3, 10)
    assert rows(later)[0] == (3, 11, 12, 0, 4)
    assert rows(join(later, None, gaps)) == rows(gaps) + rows(later)
    assert join(None, None) is None


def test_gaps_by_buffer() -> None:
    gaps = Gaps.of([2, 0, 2], [6, 1, 2], [9, 2, 3], [0, 0, 1], [0, 4, 3])
    assert gaps.by_buffer(3) == [[(1, 2, 0, 4)], [], [(2, 3, 1, 3), (6, 9)]]


def test_no_gaps_are_none() -> None:
    problem = Problem.of([0], [1], [1], gaps=Gaps.of([], [], []))
    assert problem.gaps is None


@pytest.mark.parametrize(
    ("gap", "message"),
    [
        ((1, 4, 5), "gaps: there is no buffer 1 among 1"),
        ((-1, 4, 5), "gaps: there is no buffer -1 among 1"),
        ((0, 5, 5), r"buffer conv: the gap \[5, 5\) is empty; it lives in \[2, 9\), 8"),
        ((0, 6, 5), r"the gap \[6, 5\) is empty"),
        ((0, 1, 5), r"the gap \[1, 5\) leaves its lifespan; it lives in \[2, 9\)"),
        ((0, 5, 10), r"the gap \[5, 10\) leaves its lifespan"),
        ((0, 3, 4, 5, 4), r"with bytes \[5, 4\) has a window that ends before it"),
        ((0, 3, 4, -1, 4), r"with bytes \[-1, 4\) has a window beyond its bytes"),
        ((0, 3, 4, -1, -1), "has a window beyond its bytes"),
        (
            (0, 3, 4, 0, 9),
            r"with bytes \[0, 9\) has a window beyond its bytes; .* 8 by",
        ),
    ],
)
def test_a_gap_that_is_not_allowed_names_its_buffer(
    gap: tuple[int, ...], message: str
) -> None:
    gaps = Gaps.of(*([value] for value in gap))
    with pytest.raises(InputError, match=message):
        Problem.of([2], [9], [8], labels=["conv"], gaps=gaps)


def test_gaps_of_one_buffer_share_no_tick() -> None:
    touching = Gaps.of([0, 0, 1], [2, 4, 3], [4, 6, 5])
    assert len(Problem.of([0, 0], [9, 9], [8, 8], gaps=touching)) == 2
    gaps = Gaps.of([1, 0, 1], [4, 2, 2], [6, 9, 5])
    with pytest.raises(
        InputError, match=r"buffer 1: the gap \[4, 6\) begins before the gap before it"
    ):
        Problem.of([0, 0], [9, 9], [8, 8], gaps=gaps)


def test_gaps_need_a_linear_clock() -> None:
    with pytest.raises(InputError, match="gaps need a linear clock"):
        Problem.of([0], [9], [8], length=9, gaps=Gaps.of([0], [1], [2]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0], [1], [2, 3]), "gaps: upper: expected 1 entries, got shape"),
        (([0], [1.5], [2]), "gaps: lower: expected integers, got float64"),
        (([0], [1], [2], [0, 0]), "gaps: begin: expected 1 entries"),
        ((["a"], [1], [2]), "gaps: buffer: expected integers"),
        (([0], [1], [2], 0, [1 << 64]), "gaps: end: expected integers, got object"),
    ],
)
def test_what_are_no_gaps_at_all(columns: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Gaps.of(*columns)  # type: ignore[arg-type]


def test_the_fingerprint_tells_gaps_apart() -> None:
    def fingerprint(*gap: int) -> str:
        gaps = Gaps.of(*([value] for value in gap)) if gap else None
        return Problem.of([0, 0], [9, 9], [8, 8], gaps=gaps).fingerprint()

    told = [(), (0, 2, 3), (1, 2, 3), (0, 1, 3), (0, 2, 4), (0, 2, 3, 0, 1)]
    assert len({fingerprint(*gap) for gap in told}) == len(told)
    assert fingerprint(0, 2, 3, 5, 5) == fingerprint(0, 2, 3)


def test_pieces_between_around_and_in_gaps() -> None:
    gaps = Gaps.of([0, 0, 0, 1], [2, 3, 7, 0], [3, 5, 9, 4], [0, 1, 0, 0], [0, 4, 0, 0])
    found = pieces(Problem.of([0, 0, 4], [9, 4, 6], [8, 5, 3], gaps=gaps))
    columns = (found.owner, found.lower, found.upper, found.begin, found.end)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (0, 0, 2, 0, 8),
        (0, 3, 5, 1, 4),
        (0, 5, 7, 0, 8),
        (2, 4, 6, 0, 3),
    ]


@examples(80, gapped())
def test_pieces_tick_by_tick(problem: Problem) -> None:
    found = pieces(problem)
    assert (found.lower < found.upper).all()
    assert (found.begin < found.end).all()
    order = np.lexsort((found.lower, found.owner))
    assert order.tolist() == list(range(len(found)))
    for i in range(len(problem)):
        mine = found.owner == i
        for tick in range(int(problem.upper.max()) + 1):
            here = mine & (found.lower <= tick) & (tick < found.upper)
            windows = list(zip(found.begin[here], found.end[here], strict=True))
            begin, end = window(problem, i, tick)
            assert windows == ([(begin, end)] if begin < end else [])


@examples(30, problems())
def test_without_gaps_there_is_a_piece_for_each_buffer(problem: Problem) -> None:
    found = pieces(problem)
    assert found.owner.tolist() == list(range(len(problem)))
    assert found.lower.tolist() == problem.lower.tolist()
    assert found.upper.tolist() == problem.upper.tolist()
    assert not found.begin.any()
    assert found.end.tolist() == problem.size.tolist()
