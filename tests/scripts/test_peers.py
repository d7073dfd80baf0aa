"""Other projects' solvers are asked fairly, checked, and none is needed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem

TWO = Problem.of([0, 1], [2, 3], [100, 50])

# Answers as MiniMalloc does: stacks in order; says no where that is above the capacity.
FAKE = """#!{python}
import csv, re, sys
options = dict(re.match("--(.*?)=(.*)", a).groups() for a in sys.argv[1:])
rows = list(csv.DictReader(open(options["input"])))
assert options["timeout"].endswith("s")
top, out = 0, []
for row in rows:
    out.append((row["id"], row["lower"], row["upper"], row["size"], top))
    top += int(row["size"])
if top > int(options["capacity"]):
    sys.exit(1)
with open(options["output"], "w") as stream:
    writer = csv.writer(stream)
    writer.writerow(["id", "lower", "upper", "size", "offset"])
    writer.writerows(out)
"""


def _stack(problem: Problem, seconds: float) -> Int64Array:
    return np.cumsum(problem.padded) - problem.padded


def _collide(problem: Problem, seconds: float) -> Int64Array:
    return np.zeros(len(problem), dtype=np.int64)


def _nothing(problem: Problem, seconds: float) -> None:
    return None


def _fail(problem: Problem, seconds: float) -> Int64Array:
    raise RuntimeError("out of\nluck")


def _crash_later(problem: Problem, seconds: float) -> Int64Array:
    if problem.peak(np.zeros(2, dtype=np.int64)) > 2:
        os._exit(3)
    return _stack(problem, seconds)


def _linger(problem: Problem, seconds: float) -> Int64Array:
    if problem.peak(np.zeros(2, dtype=np.int64)) > 2:
        time.sleep(600)
    return _stack(problem, seconds)


@pytest.mark.parametrize(
    ("function", "ratio", "why"),
    [
        (_stack, 1.0, ""),
        (_collide, None, "collides"),
        (_nothing, None, "none"),
        (_fail, None, "RuntimeError: out of luck"),
        (_crash_later, None, "crashed"),
        (_linger, None, "too slow"),
    ],
)
def test_answers_are_checked(
    function: object, ratio: float | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peer_table import ask
    from peers import Peer

    monkeypatch.setattr("peer_table.GRACE", 0.5)
    answer = ask(Peer("some", "numpy", function), "two", TWO, 0.1)  # type: ignore[arg-type]
    assert (answer.ratio, answer.why) == (ratio, why)


def test_a_peer_is_not_asked_for_more_than_it_was_made_for() -> None:
    from peer_table import ask
    from peers import Peer

    answer = ask(Peer("some", "numpy", _fail, most=1), "two", TWO, 0.1)
    assert answer.text == "too large"


def test_who_is_missing(tmp_path: Path) -> None:
    from peers import Peer, peers

    assert Peer("some", "numpy", _stack).missing() == ""
    assert "not installed" in Peer("some", "no_such_package", _stack).missing()
    nowhere = str(tmp_path / "minimalloc")
    last = peers(nowhere)[-1]
    assert last.missing() == f"no executable {nowhere}"
    (tmp_path / "minimalloc").write_text(FAKE.format(python=sys.executable))
    (tmp_path / "minimalloc").chmod(0o755)
    assert last.missing() == ""


def test_memplan_is_asked_as_the_others_are() -> None:
    from generated import generated
    from peers import peers

    problem = generated("geometric", "flat", 50)
    for peer in peers()[:3]:
        offsets = peer.ask(problem, 0.05)
        assert offsets is not None
        assert problem.peak(offsets) >= lower_bound(problem)


def test_minimalloc_is_asked_for_less_and_less(tmp_path: Path) -> None:
    from peers import run_minimalloc

    executable = tmp_path / "minimalloc"
    executable.write_text(FAKE.format(python=sys.executable))
    executable.chmod(0o755)
    found = run_minimalloc(str(executable), TWO, 20.0)
    assert found is not None
    assert found.tolist() == [0, 100]
    # Here a stack is never low enough.
    apart = Problem.of([0, 2], [2, 4], [100, 50])
    assert run_minimalloc(str(executable), apart, 20.0) is None


def test_minimalloc_that_does_not_know_an_option_is_an_error(tmp_path: Path) -> None:
    from generated import generated
    from peers import run_minimalloc

    executable = tmp_path / "minimalloc"
    executable.write_text("#!/bin/sh\necho 'ERROR: Unknown flag' >&2\nexit 1\n")
    executable.chmod(0o755)
    with pytest.raises(RuntimeError, match="Unknown flag"):
        run_minimalloc(str(executable), generated("crowded", "flat", 60), 5.0)


def test_table_and_plot(tmp_path: Path) -> None:
    from peer_table import Answer, draw, table

    answers = [
        Answer("one", "A", 1.0, 0.5, 1.21),
        Answer("one", "A", 5.0, 5.0, 1.1),
        Answer("one", "B", 1.0, 0.0, None, "too slow"),
        Answer("two", "A", 1.0, 0.5, 1.1),
        Answer("two", "B", 1.0, 0.01, 1.0),
    ]
    lines = table(answers).splitlines()
    assert lines[0] == "| | A | B |"
    assert lines[2] == "| one | 1.1000 (5.0 s) | too slow |"
    assert lines[-1] == "| geometric mean | 1.1000 of 2 | 1.0000 of 1 |"
    draw(answers, tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    assert text.startswith("<?xml")


@pytest.mark.parametrize("sizes", ["log-uniform", "flat", "few"])
@pytest.mark.parametrize("kind", ["uniform", "geometric", "heavy", "nested", "crowded"])
def test_generated_problems_are_repeatable(kind: str, sizes: str) -> None:
    from generated import generated

    problem = generated(kind, sizes, 300, seed=3)
    assert len(problem) == 300
    again = generated(kind, sizes, 300, seed=3)
    assert problem.fingerprint() == again.fingerprint()
    other = generated(kind, sizes, 300, seed=4)
    assert problem.fingerprint() != other.fingerprint()
