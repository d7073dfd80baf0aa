"""Problems: what is let in, what is refused, and in which words."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from memplan.core.problem import FREE, Problem
from memplan.errors import InputError
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


def test_labels() -> None:
    assert Problem.of([0, 1], [2, 3], [4, 5], labels=["x", "y"]).label(1) == "y"
    assert Problem.of([0], [2], [4]).label(0) == "0"


def test_sizes_are_padded_to_what_all_alignments_share() -> None:
    problem = Problem.of([0, 0, 0], [1, 1, 1], [1, 8, 9], alignment=[16, 24, 8])
    assert problem.granularity == 8
    assert problem.padded.tolist() == [8, 8, 16]


def test_wrap_around_lifespans() -> None:
    problem = Problem.of([5, 0, 5], [2, 8, 0], [1, 1, 1], length=8)
    assert problem.wraps.tolist() == [True, False, True]


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
