"""Plans to write and read, and plan files to tamper with."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from memplan.core.plan import (
    UNPLANNED,
    Plan,
    Program,
    Provenance,
    Requests,
    RunStats,
    Source,
    StepKind,
    Warmup,
)
from memplan.core.planfile import dump_plan
from memplan.core.problem import FREE, Gaps, Problem
from tests.gap_samples import gapped
from tests.plans import changed
from tests.solving.exact_oracle import stacked
from tests.strategies import problems as random_problems

Fields = dict[str, Any]


def recorded(problem: Problem, skipped: list[int], steps: int = 1) -> Requests:
    """The requests of `problem`, with unplanned ones of the sizes `skipped` between."""
    total = len(problem) + len(skipped)
    buffer = np.full(total, UNPLANNED)
    size = np.empty(total, dtype=np.int64)
    places = [i for i in range(total) if i % 3 != 1][: len(problem)]
    places += sorted(set(range(total)) - set(places))[: len(problem) - len(places)]
    order = np.argsort(problem.lower, kind="stable")
    buffer[sorted(places)] = order
    size[sorted(places)] = problem.size[order]
    size[buffer == UNPLANNED] = skipped
    return Requests(tuple(i * total // steps for i in range(steps)), size, buffer)


def sample() -> Plan:
    """A small plan that uses everything a file can hold, and verifies."""
    problem = Problem.of(
        [0, 2, 5, 9],
        [4, 6, 8, 3],
        [100, 64, 200, 50],
        alignment=64,
        length=12,
        rounding=64,
    )
    warmup = Problem.of([0, 3], [6, 90], [64, 30], alignment=64, rounding=64)
    return changed(
        Plan.of(problem, np.array([0, 128, 256, 512]), Provenance("bestfit", 7)),
        source=Source("run.parquet", "ab" * 32, "hot"),
        program=Program("train.py", "cd" * 32, "2.13.0", 2, "optimizer"),
        recorded=RunStats(123456, 17.25, 0.001234567),
        requests=recorded(problem, [9, 0], steps=2),
        warmup=Warmup(warmup, np.array([0, 192]), recorded(warmup, [5]), ticks=10),
    )


def with_kinds() -> Plan:
    """The same with steps of other kinds, all of them elastic."""
    one = Problem.of([0, 1, 4], [6, 3, 5], [64, 100, 30], alignment=64, rounding=64)
    two = Problem.of([0], [2], [5000], alignment=64, rounding=64)
    return changed(
        sample(),
        elastic=True,
        kinds=(
            StepKind(one, np.array([0, 64, 64]), recorded(one, [7, 9]), seen=3),
            StepKind(two, np.array([128]), recorded(two, [])),
        ),
    )


def with_gaps() -> Plan:
    """A plan of an imported problem, of which one lies in the gap of another."""
    gaps = Gaps.of([0, 0, 2], [2, 5, 3], [4, 7, 4], [0, 1, 0], [0, 6, 0])
    problem = Problem.of(
        [0, 2, 3], [9, 4, 8], [8, 8, 5], labels=["a", "b", "c"], gaps=gaps
    )
    return Plan.of(problem, np.array([0, 0, 8]), "bestfit")


@st.composite
def problems(
    draw: st.DrawFn, *, periodic: bool, labelled: bool, rounded: bool = True
) -> Problem:
    """rounded: buffers take up whole blocks, as those that serve requests do."""
    found = draw(random_problems(periodic=periodic, max_size=8, fixed=True))
    n, scale = len(found), draw(st.sampled_from([1, 1 << 31]))
    labels = st.lists(st.text(max_size=5), min_size=n, max_size=n, unique=True)
    return Problem.of(
        found.lower,
        found.upper,
        found.size * scale,
        alignment=found.alignment,
        fixed=np.where(found.fixed == FREE, FREE, found.fixed * scale),
        length=found.length,
        labels=draw(labels) if labelled else None,
        rounding=(math.gcd(*found.alignment.tolist()) or 1) if rounded else 1,
    )


@st.composite
def step_kinds(draw: st.DrawFn) -> StepKind:
    problem = draw(problems(periodic=False, labelled=False))
    skipped = draw(st.lists(st.integers(0, 1 << 62), max_size=4))
    seen = draw(st.integers(1, 1 << 40))
    return StepKind(problem, stacked(problem), recorded(problem, skipped), seen)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan that a file can hold; none is wrong, but the bound may be."""
    if draw(st.integers(0, 3)) == 0:
        problem = draw(gapped(fixed=True))
        return Plan.of(problem, stacked(problem), "bestfit")
    is_recorded = draw(st.booleans())
    labelled = not is_recorded and draw(st.booleans())
    periodic = draw(st.booleans())
    problem = draw(problems(periodic=periodic, labelled=labelled, rounded=is_recorded))
    lifespan = 0
    plan = Plan.of(problem, stacked(problem), draw(st.text(max_size=8)))
    if is_recorded:
        skipped = st.lists(st.integers(0, 1 << 62), max_size=4)
        steps = draw(st.integers(1, 3))
        plan = changed(plan, requests=recorded(problem, draw(skipped), steps))
        if draw(st.booleans()):
            before = draw(problems(periodic=False, labelled=False))
            requests = recorded(before, draw(skipped))
            ticks = int(before.lower.max(initial=0)) + draw(st.integers(1, 9))
            warmup = Warmup(before, stacked(before), requests, ticks)
            plan = changed(plan, warmup=warmup)
        plan = changed(plan, elastic=draw(st.booleans()))
        lifespan = draw(st.sampled_from([0, 1, 1 << 62]))
    others = draw(st.lists(step_kinds(), max_size=3))
    small = st.integers(0, 1 << 50)
    return changed(
        plan,
        seed=draw(st.integers(0, (1 << 63) - 1)),
        proved_optimal=draw(st.booleans()),
        kinds=tuple(others),
        lifespan_bytes=lifespan,
        device="cuda" if lifespan else draw(st.sampled_from(["cpu", "cuda"])),
        source=Source(draw(st.text()), draw(st.text()), draw(st.text())),
        program=Program(draw(st.text()), "", "2.13", draw(small), "forward"),
        recorded=RunStats(draw(small), draw(small) / 1e3, draw(small) / 1e9),
    )


def assert_same(one: Any, other: Any) -> None:
    """Two dataclasses with the same values, but for what files do not hold."""
    for field in fields(one):
        if field.name in ("stated", "seconds", "labels", "rounding"):
            continue
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        assert type(mine) is type(theirs), field.name
        if is_dataclass(mine):
            assert_same(mine, theirs)
        elif field.name == "kinds":
            for each, its in zip(mine, theirs, strict=True):
                assert_same(each, its)
        else:
            assert np.array_equal(mine, theirs), field.name


def signed(value: Fields) -> bytes:
    """`value` in the layout of a plan file, with the checksum it ought to have."""

    def laid_out(table: Fields) -> bytes:
        lines = ",\n".join(f'"{k}": {json.dumps(table[k])}' for k in sorted(table))
        return f"{{\n{lines}\n}}\n".encode()

    rest = {key: value[key] for key in value if key != "checksum"}
    return laid_out(rest | {"checksum": hashlib.sha256(laid_out(rest)).hexdigest()})


def edited(plan: Plan, change: Callable[[Fields], object]) -> bytes:
    """The plan's file after `change`, correctly signed."""
    value = json.loads(dump_plan(plan))
    change(value)
    return signed(value)


def put(path: str, new: object) -> Callable[[Fields], None]:
    """A change: set the field at a path such as ``buffers.2.size``."""
    return _at(path, lambda place, key: place.__setitem__(key, new))


def without(path: str) -> Callable[[Fields], None]:
    """A change: remove the field at the path."""
    return _at(path, lambda place, key: place.__delitem__(key))


def _at(path: str, change: Callable[[Any, Any], object]) -> Callable[[Fields], None]:
    def changed_there(value: Fields) -> None:
        *way, last = path.split(".")
        place: Any = value
        for key in way:
            place = place[int(key) if key.isdigit() else key]
        change(place, last if isinstance(place, dict) else int(last))

    return changed_there
