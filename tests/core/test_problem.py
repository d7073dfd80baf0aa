"""Problems and gaps: what is let in, what is refused, and in which words."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from memplan.core.problem import FREE, Buffer, Gaps, Problem, join, pieces
from memplan.errors import InputError
from tests.gap_samples import gapped, window
from tests.strategies import examples, problems

BIG = 1 << 62


def test_scalars_are_broadcast() -> None:
    problem = Problem.of([0, 1], [2, 3], [4, 5], alignment=64)
    assert problem.alignment.tolist() == [64, 64]
    assert problem.fixed.tolist() == [FREE, FREE]
    assert problem.length is None


def test_arrays_are_int64_copies_that_cannot_be_changed() -> None:
    lower = np.array([0, 1], dtype=np.uint8)
    size = np.array([4, 5])
    problem = Problem.of(lower, (2, 3), size)
    size[0] = 99
    assert problem.size.tolist() == [4, 5]
    for name in ("lower", "upper", "size", "alignment", "fixed"):
        array = getattr(problem, name)
        assert array.dtype == np.int64
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_no_buffers() -> None:
    problem = Problem.of([], [], [])
    assert len(problem) == 0
    assert problem.granularity == 1
    assert problem.padded.tolist() == []


def test_rows_and_labels() -> None:
    problem = Problem.of([0, 1], [2, 3], [4, 5], labels=["x", "y"])
    assert list(problem) == [Buffer("x", 0, 2, 4), Buffer("y", 1, 3, 5)]
    assert problem.label(1) == "y"
    assert Problem.of([0], [2], [4]).label(0) == "0"


def test_sizes_are_padded_to_what_all_alignments_share() -> None:
    problem = Problem.of([0, 0, 0], [1, 1, 1], [1, 8, 9], alignment=[16, 24, 8])
    assert problem.granularity == 8
    assert problem.padded.tolist() == [8, 8, 16]


def test_the_fingerprint_is_of_sizes_and_lifespans() -> None:
    rows = b"".join(v.to_bytes(8, "little") for v in (7, 0, 3, 9, 1, 4))
    problem = Problem.of([0, 1], [3, 4], [7, 9])
    assert problem.fingerprint() == hashlib.sha256(rows).hexdigest()
    labelled = Problem.of([0, 1], [3, 4], [7, 9], labels=["a", "b"])
    assert labelled.fingerprint() == problem.fingerprint()
    other = Problem.of([0, 1], [3, 4], [7, 8])
    assert other.fingerprint() != problem.fingerprint()


@examples(30, problems())
def test_padding_is_less_than_the_granularity(problem: Problem) -> None:
    waste = problem.padded - problem.size
    assert ((waste >= 0) & (waste < problem.granularity)).all()
    assert (problem.padded % problem.granularity == 0).all()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([0], [1], [0]), {}, "buffer 0: size is 0, and must be at least 1 byte"),
        (([-1], [1], [1]), {}, "lower is -1, and must not be negative"),
        (([2], [2], [1]), {}, "lower and upper are both 2: it never lives"),
        (([0, 3], [1, 2], [1, 1]), {}, "buffer 1: lower 3 comes after upper 2"),
        (([3], [-1], [1]), {"length": 9}, "upper is -1, and must not be negative"),
        (([0], [9], [1]), {"length": 8}, "lifespan leaves the period of 8"),
        (([9], [1], [1]), {"length": 8}, "lifespan leaves the period of 8"),
        (([8], [1], [1]), {"length": 8}, "lower 8 is the end of the clock"),
        (([0], [1], [1]), {"length": 0}, "a period of 0 is not 1 to 2.62 ticks"),
        (([], [], []), {"length": BIG + 1}, f"a period of {BIG + 1} is not 1 to"),
        (([0], [1], [1]), {"alignment": 0}, "alignment 0 is not at least 1"),
        (([0], [1], [1]), {"alignment": [-8]}, "alignment -8 is not at least 1"),
        (([0], [1], [1]), {"fixed": -2}, "fixed offset -2 is negative"),
        (
            ([0], [1], [1]),
            {"fixed": 3, "alignment": 2},
            "fixed offset 3 is not a multiple of its alignment 2",
        ),
        (([0, 0], [1, 1], [BIG, 1 << 20]), {}, r"add up to 4.61e\+18 bytes, more than"),
        (([0], [1], [1]), {"fixed": BIG + (1 << 20)}, "more than 2.62"),
        (([0], [1], [1]), {"alignment": BIG + (1 << 20)}, "more than 2.62"),
        (([0], [1], [1, 2]), {}, "lower has 1 entries, size has 2"),
        (([0, 1], [1], [1, 2]), {}, "upper has 1 entries, size has 2"),
        (([0], [1], [1]), {"labels": ["a", "b"]}, "labels has 2 entries, size has 1"),
        (([0], [1], [1]), {"alignment": [1, 2]}, "alignment: expected 1 entries, got"),
        (([0], [1], [1]), {"fixed": [[1]]}, "fixed: expected 1 entries, got shape"),
        (([0], [1], 1), {}, r"size: expected one dimension, got shape \(\)"),
        (([0], [1], [[1]]), {}, r"size: expected one dimension, got shape \(1, 1\)"),
        (([0.5], [1], [1]), {}, "lower: expected integers, got float64"),
        (([True], [1], [1]), {}, "lower: expected integers, got bool"),
        ((["a"], [1], [1]), {}, "lower: expected integers, got <U1"),
        (([0], [1 << 64], [1]), {}, "upper: expected integers, got object .integers b"),
        (([0], [1 << 63], [1]), {}, "upper: 9223372036854775808 does not fit in 63"),
        (([[0], [1, 2]], [1], [1]), {}, "lower: not an array of integers"),
        (([0], [None], [1]), {}, "upper: expected integers, got object"),
    ],
)
def test_what_is_refused(
    arguments: tuple[object, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Problem.of(*arguments, **options)  # type: ignore[arg-type]


def test_the_first_bad_buffer_is_named_by_its_label() -> None:
    with pytest.raises(InputError, match="buffer conv2: size is -3"):
        Problem.of([0] * 3, [1] * 3, [1, -3, -5], labels=["conv1", "conv2", "fc"])


@pytest.mark.parametrize("length", [None, BIG])
def test_the_largest_numbers_allowed(length: int | None) -> None:
    problem = Problem.of([0, BIG - 1], [1, BIG], [BIG >> 1, 1], length=length)
    assert problem.padded.tolist() == [BIG >> 1, 1]


# ---- gaps in lifespans: what is allowed, and what of a buffer is used when


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
