"""The benchmark runner: rounds in turn, ratios within a round, records kept."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest


def constant(value: float, seen: list[str], name: str):  # type: ignore[no-untyped-def]
    def run() -> dict[str, float]:
        seen.append(name)
        return {"seconds": value * (1 + len(seen) // 2)}

    return run


def test_contenders_take_turns_and_ratios_are_those_of_a_round() -> None:
    from bench.runner import Contender, Spread, compare

    seen: list[str] = []
    contenders = [
        Contender(name, constant(value, seen, name))
        for name, value in (("a", 1.0), ("b", 3.0))
    ]
    found = compare("case", contenders, repeats=4, warmups=1)
    assert len(seen) == 10
    rounds = [seen[at : at + 2] for at in range(0, 10, 2)]
    assert all(sorted(turn) == ["a", "b"] for turn in rounds)
    assert rounds[0] != rounds[1]
    assert all(len(figures) == 4 for figures in found.figures.values())
    values = [found.values(name, "seconds") for name in "ab"]
    ratios = sorted(b / a for a, b in zip(*values, strict=True) if a and b)
    spread = found.ratio("b", "seconds")
    assert spread is not None
    assert (spread.low, spread.high) == (ratios[0], ratios[-1])
    assert Spread.of([1.0, None]) is None


def test_a_failed_contender_leaves_and_says_why() -> None:
    from bench.runner import BenchError, Contender, Metric, compare, table

    runs = itertools.count()

    def fails() -> dict[str, float]:
        if next(runs) == 2:
            raise BenchError("no memory")
        return {"seconds": 1.0}

    found = compare(
        "case", [Contender("a", lambda: {"seconds": 2.0}), Contender("b", fails)]
    )
    assert list(found.figures) == ["a"]
    shown = table(found, [Metric("seconds", "ms", 1e3, 0)])
    assert "| a | 2,000 |" in shown
    assert "b left out: no memory" in shown


def test_records_are_read_again_and_a_cut_line_is_replaced(tmp_path: Path) -> None:
    from bench.runner import Comparison, append_record, read_records

    file = tmp_path / "runs.jsonl"
    assert read_records(file) == {}
    one = Comparison("one", "a", {"a": [{"seconds": 1.0}]})
    two = Comparison("two", "a", {"a": []}, {"b": "why"})
    append_record(file, one)
    with file.open("a") as stream:
        stream.write('{"case": "tw')
    append_record(file, two)
    assert read_records(file) == {"one": one, "two": two}


def test_a_child_that_fails_is_a_benchmark_error() -> None:
    from bench.runner import BenchError, run_child

    done = run_child([sys.executable, "-c", "print('here')"])
    assert done.output == "here\n"
    assert done.peak_bytes > 0
    with pytest.raises(BenchError, match=r"exit code 3.*\n  why"):
        run_child(
            [
                sys.executable,
                "-c",
                "print('why', file=__import__('sys').stderr);exit(3)",
            ]
        )
    with pytest.raises(BenchError, match="killed after"):
        run_child([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.1)
