"""Paired ratios and their table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

MIB = 1 << 20


def a_run(**changes: Any) -> Any:
    from bench.child import Run

    run = Run(
        peak_bytes=1000 * MIB,
        steady_peak_bytes=900 * MIB,
        step_seconds=0.5,
        step_faults=60_000.0,
        seconds=9.0,
        digest="a" * 64,
    )
    return replace(run, **changes)


@given(st.lists(st.floats(0.1, 1e9), min_size=1))
def test_the_spread_lies_within_the_values(values: list[float]) -> None:
    from bench.ratios import spread

    found = spread(values)
    assert found is not None
    assert (found.low, found.high) == (min(values), max(values))
    assert found.low <= found.median <= found.high


@pytest.mark.parametrize("values", [[], [None], [1.0, None]])
def test_there_is_no_spread_of_values_that_are_missing(
    values: list[float | None],
) -> None:
    from bench.ratios import spread

    assert spread(values) is None


def test_ratios_are_taken_round_by_round() -> None:
    from bench.ratios import METRICS, paired_ratios

    seconds = next(metric for metric in METRICS if metric.field == "step_seconds")
    base = [a_run(step_seconds=s) for s in (1.0, 10.0)]
    runs = [a_run(step_seconds=s) for s in (0.5, 20.0)]
    assert paired_ratios(seconds, runs, base) == [0.5, 2.0]


@pytest.mark.parametrize(
    ("above", "below"), [(None, 5), (5, None), (None, None), (5, 0)]
)
def test_there_is_no_ratio_to_nothing(above: int | None, below: int | None) -> None:
    from bench.ratios import METRICS, paired_ratios

    steady = next(metric for metric in METRICS if metric.field == "steady_peak_bytes")
    runs = [a_run(steady_peak_bytes=above)], [a_run(steady_peak_bytes=below)]
    assert paired_ratios(steady, *runs) == [None]


def test_rounds_that_do_not_pair_up_are_refused() -> None:
    from bench.ratios import METRICS, paired_ratios

    with pytest.raises(ValueError, match="longer"):
        paired_ratios(METRICS[0], [a_run()], [a_run(), a_run()])


def test_each_is_compared_with_the_default_and_memplan_with_each() -> None:
    from bench.ratios import comparisons

    assert comparisons(["default", "memplan", "jemalloc"]) == [
        ("memplan", "default"),
        ("jemalloc", "default"),
        ("memplan", "jemalloc"),
    ]
    assert comparisons(["default", "jemalloc"]) == [("jemalloc", "default")]


def test_losses_that_differ_fail_and_name_who_differs() -> None:
    from bench.child import BenchError
    from bench.ratios import require_equal_losses

    same = {"default": [a_run(), a_run()], "memplan": [a_run()]}
    require_equal_losses("gpt2", same)
    other = {**same, "memplan": [a_run(), a_run(digest="b" * 64)]}
    with pytest.raises(BenchError, match=r"gpt2: .*\n.*default: a{12}\n.*b{12}"):
        require_equal_losses("gpt2", other)


def test_the_losses_of_other_allocators_may_differ() -> None:
    from bench.ratios import require_equal_losses

    runs = {"default": [a_run()], "memplan": [a_run()], "jemalloc": [a_run()]}
    assert require_equal_losses("gpt2", runs) == {}
    runs["jemalloc"] = [a_run(digest="c" * 64)]
    found = require_equal_losses("gpt2", runs)
    assert list(found) == ["jemalloc"]
    assert "cccccccccccc" in found["jemalloc"]


def test_the_geometric_means_are_of_the_medians() -> None:
    from bench.ratios import geometric_means

    def runs(*peaks: int) -> dict[str, list[Any]]:
        ours = [a_run(peak_bytes=peak * MIB, step_seconds=0.0) for peak in peaks]
        return {"default": [a_run()] * len(peaks), "memplan": ours}

    found = geometric_means({"a": runs(400, 100, 900), "b": runs(1600)})
    assert found["memplan/default"]["peak_bytes"] == pytest.approx(0.8)
    assert found["memplan/default"]["cpu_seconds"] is None
    assert found["memplan/default"]["step_seconds"] is None
    assert geometric_means({}) == {}


def everything() -> dict[str, list[Any]]:
    return {
        "default": [a_run(), a_run(), a_run(step_seconds=123.4567)],
        "memplan": [a_run(peak_bytes=850 * MIB, step_faults=0.5)] * 3,
        "jemalloc": [a_run(step_faults=6_000_000.0, steady_peak_bytes=None)] * 3,
    }


def test_the_table_fits_80_columns_and_shows_every_figure() -> None:
    from bench.ratios import METRICS, table

    lines = table(everything()).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 2 + len(METRICS) * 5
    figures = [line.split() for line in lines]
    assert ["memplan", *["850.0"] * 3, *["0.850"] * 3] in figures
    assert ["memplan", *["0.5"] * 3, *["<0.001"] * 3] in figures
    assert ["jemalloc", *["-"] * 6] in figures
    assert ["memplan/jemalloc", *["0.850"] * 3] in figures
    assert ["jemalloc", *["6,000,000"] * 3, *["100.000"] * 3] in figures
    assert ["default", "0.5000", "0.5000", "123.4567"] in figures


def test_the_ratios_as_json_name_comparison_and_field() -> None:
    from bench.ratios import to_json

    found = json.loads(json.dumps(to_json(everything())))
    assert set(found) == {"memplan/default", "jemalloc/default", "memplan/jemalloc"}
    expected = {"low": 0.85, "median": 0.85, "high": 0.85}
    assert found["memplan/default"]["peak_bytes"] == expected
    assert found["jemalloc/default"]["steady_peak_bytes"] is None
