"""A leak is told with its site, and nothing is said where nothing grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import memplan  # noqa: E402
from memplan.reporting.leak import Leak, find_leak  # noqa: E402
from memplan.trace.lives import lives_of  # noqa: E402
from tests.programs import Made, trace_of  # noqa: E402
from tests.reporting import leak_programs  # noqa: E402


def found_in(program: Callable[[], None], tmp_path: Path) -> Leak | None:
    path = tmp_path / "t.parquet"
    with memplan.record(path, device="cpu", steps="all"):
        program()
    return find_leak(lives_of(memplan.read_trace(path)))


# Of programs that leak: bytes a step, the function and the operator.
TOLD = {
    "losses": (4, "losses", "clone"),
    "hooks": (16 * 64 * 4, "<lambda>", "clone"),
    "cache": (16 * 32 * 4, "cache", "mul"),
    "loader": (16 * 32 * 4, "__getitem__", "randn"),
}


@pytest.mark.parametrize(("program", "leaks"), list(leak_programs.programs()))
def test_a_leak_is_told_by_its_slope_and_its_site(
    program: Callable[[], None], leaks: bool, tmp_path: Path
) -> None:
    leak = found_in(program, tmp_path)
    assert (leak is not None) == leaks
    if leak is not None and program.__name__ in TOLD:
        told = leak.bytes_per_step, leak.site.function, leak.site.operator
        assert told == TOLD[program.__name__]


def test_a_cache_that_has_filled_is_no_leak() -> None:
    filling = [(Made(64, 0), Made(29, None))] * 14
    full = [(Made(64, 0),)] * 10
    assert find_leak(lives_of(trace_of([*filling, *full]))) is None
    assert find_leak(lives_of(trace_of([*filling, *filling]))) is not None
