"""What diff matches and what it names, of small traces."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import strategies as st

import memplan
from memplan.errors import UsageError
from memplan.reporting.align import align
from memplan.reporting.diff import By, Change, Diff, diff, responsible
from memplan.reporting.same_lines import same_lines
from memplan.trace.sites import Site
from tests.programs import Made, trace_of
from tests.reporting.asking import asking
from tests.reporting.lines_of_code import (
    BASE,
    MODEL,
    TRAINING,
    Asks,
    Code,
    each,
    running,
    shifted,
)
from tests.strategies import examples


def found(before: Code, after: Code, folder: str = "/branch/") -> Diff:
    return diff(running(before), running(after, folder))


def listed(changes: tuple[Change, ...]) -> list[str]:
    """Each change as "old place -> new place: delta"."""
    rows = []
    for change in changes:
        sides = zip(*((pair.before, pair.after) for pair in change.pairs), strict=True)
        ends = [_place(next(filter(None, sites), None)) for sites in sides]
        rows.append(f"{' -> '.join(ends)}: {change.delta:+}")
    return rows


def _place(site: Site | None) -> str:
    if site is None:
        return "nothing"
    return f"{site.file.rpartition('/')[2]}:{site.line} {site.function}"


def without(code: Code, place: str) -> Code:
    return tuple(asks for asks in code if asks.place != place)


def twice(asks: Asks) -> Asks:
    grown = asks.operator in ("linear", "relu", "randn")
    return replace(asks, size=2 * asks.size) if grown else asks


def resized(code: Code, module: str, by: int) -> Code:
    return each(
        code, lambda a: replace(a, size=by * a.size) if a.module == module else a
    )


ADAM = tuple(
    Asks("train.py:8 step", module, f"zeros_like_{i}", size)
    for module, size in (("fc1", 40_000), ("fc2", 20_000))
    for i in (1, 2)
)
NORM = Asks("model.py:10 forward", "norm", "layer_norm", 8000)
REGRESSIONS = {
    "a bigger layer": (
        resized(BASE, "fc2", 10),
        [
            "model.py:6 __init__ -> model.py:6 __init__: +180000",
            "train.py:8 step -> train.py:8 step: +180000",
            "model.py:11 forward -> model.py:11 forward: +36000",
        ],
    ),
    "a kept tensor": (
        (*shifted(BASE, "train.py", 8), Asks("train.py:9 step", "", "clone", 500)),
        ["nothing -> train.py:9 step: +500"],
    ),
    "a list of activations": (
        each(BASE, lambda a: replace(a, keeps=9) if a.line == 11 else a),
        ["model.py:11 forward -> model.py:11 forward: +32000"],
    ),
    "another optimizer": (
        (*without(BASE, "train.py:8 step"), *ADAM),
        ["train.py:8 step -> train.py:8 step: +60000"],
    ),
    "a batch twice as large": (
        each(BASE, twice),
        [
            "model.py:9 forward -> model.py:9 forward: +8000",
            "model.py:10 forward -> model.py:10 forward: +8000",
            "train.py:3 batch -> train.py:3 batch: +6400",
            "model.py:11 forward -> model.py:11 forward: +4000",
            "model.py:12 forward -> model.py:12 forward: +4000",
        ],
    ),
    "a new function": (
        (*BASE, Asks("train.py:20 evaluate", "fc1", "linear", 8000)),
        ["nothing -> train.py:20 evaluate: +8000"],
    ),
    "a renamed function": (
        each(
            shifted(resized(BASE, "fc2", 2), "train.py", 0, 4),
            lambda a: a.at(function="train_one") if a.function == "step" else a,
        ),
        [
            "model.py:6 __init__ -> model.py:6 __init__: +20000",
            "train.py:8 step -> train.py:12 train_one: +20000",
            "model.py:11 forward -> model.py:11 forward: +4000",
        ],
    ),
    "a moved file": (
        each(resized(MODEL, "fc1", 2), lambda a: a.at("nets/resnet.py", a.line + 30))
        + TRAINING,
        [
            "model.py:5 __init__ -> resnet.py:35 __init__: +40000",
            "model.py:9 forward -> resnet.py:39 forward: +8000",
        ],
    ),
    "swapped lines": (
        (
            BASE[1].at(line=5),
            replace(BASE[0].at(line=6), keeps=2),
            *BASE[2:],
        ),
        ["model.py:5 __init__ -> model.py:6 __init__: +40000"],
    ),
    "a call that is made twice": (
        (*shifted(BASE, "model.py", 10), BASE[3].at(line=11)),
        ["nothing -> model.py:11 forward: +8000"],
    ),
    "a layer between others": (
        (*shifted(BASE, "model.py", 9), NORM),
        ["nothing -> model.py:10 forward: +8000"],
    ),
}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_regression_is_named_by_its_lines(name: str) -> None:
    after, rows = REGRESSIONS[name]
    result = found(BASE, after)
    assert listed(result.by("line")) == rows
    back = diff(result.after.trace, result.before.trace)
    assert [row.delta for row in back.by("line")] == [
        -row.delta for row in result.by("line")
    ]


def test_the_same_program_elsewhere_has_no_changes() -> None:
    after = each(BASE, lambda a: a.at(line=a.line + 7))
    assert found(BASE, after).sites == ()
    assert found(BASE, after).moves == ()
    packages = "/v/lib/python3.11/site-packages/nets/"
    both = found(BASE, BASE, packages), found(BASE, BASE, "")
    assert [each.sites for each in both] == [(), ()]


@pytest.mark.parametrize(
    ("after", "moves"),
    [
        (
            each(BASE, lambda a: a.at("run.py") if a.file == "train.py" else a),
            ["moved /main/train.py  -> /branch/run.py "],
        ),
        (
            each(BASE, lambda a: a.at("nets/model.py") if a.file == "model.py" else a),
            ["moved /main/model.py  -> /branch/nets/model.py "],
        ),
        (
            each(BASE, lambda a: a.at(function="data") if a.function == "batch" else a),
            ["renamed /main/train.py batch -> /branch/train.py data"],
        ),
        (
            each(BASE, lambda a: a.at("data.py", 40) if a.function == "batch" else a),
            ["moved /main/train.py batch -> /branch/data.py batch"],
        ),
        (  # one line, to a function of its own
            each(BASE, lambda a: a.at("model.py", 30, "f") if a.line == 9 else a),
            [
                "moved /main/model.py forward -> /branch/model.py f",
                "moved /main/train.py step -> /branch/model.py f",
            ],
        ),
    ],
    ids=["file", "folder", "function", "function to a file", "lines"],
)
def test_what_moved_is_no_change(after: Code, moves: list[str]) -> None:
    code = each(BASE, lambda a: replace(a, keeps=1))
    result = found(code, each(after, lambda a: replace(a, keeps=1)))
    assert result.sites == ()
    shown = [
        f"{m.move} {m.before.file} {m.before.name} -> {m.after.file} {m.after.name}"
        for m in result.moves
    ]
    assert shown == moves


@pytest.mark.parametrize("name", ["net.{}", "{}.inner", "other_{}"])
def test_renamed_modules_are_the_same(name: str) -> None:
    after = each(BASE, lambda a: replace(a, module=a.module and name.format(a.module)))
    assert found(BASE, after).sites == ()
    # Of other sizes, too, where a wrapper's name is all that is new.
    (row, *more) = found(BASE, resized(after, name.format("fc1"), 2)).by("module")
    assert row.name == name.format("fc1")
    assert bool(more) == (name != "net.{}")


def test_what_only_looks_alike_stays_apart() -> None:
    # Two functions that might each be the one that is gone.
    old = (Asks("a.py:1 f", "", "zeros", 64), Asks("a.py:9 main", "", "ones", 32))
    new = (
        Asks("a.py:1 g", "", "zeros", 64),
        Asks("a.py:4 h", "", "zeros", 64),
        Asks("a.py:9 main", "", "ones", 32),
    )
    assert listed(found(old, new).sites) == [
        "a.py:1 f -> nothing: -64",
        "nothing -> a.py:1 g: +64",
        "nothing -> a.py:4 h: +64",
    ]
    # Other files, whose names and requests differ.
    other = each(old, lambda a: replace(a.at("b.py"), size=2 * a.size))
    assert len(found(old, other).sites) == 4
    # Another operator is another site, on the same line.
    changed = (replace(old[0], operator="empty", size=96), old[1])
    assert len(found(old, changed).sites) == 2
    assert listed(found(old, changed).by("line")) == ["a.py:1 f -> a.py:1 f: +32"]


def test_a_line_that_is_gone_is_not_the_one_that_has_its_number() -> None:
    gone = Asks("a.py:5 f", "", "zeros", 64)
    stays = Asks("a.py:6 f", "", "ones", 32)
    new = Asks("a.py:3 f", "", "full", 16)
    result = diff(running((gone, stays)), running((new, stays.at(line=5))))
    assert listed(result.by("line")) == [
        "a.py:5 f -> nothing: -64",
        "nothing -> a.py:3 f: +16",
    ]
    grown = replace(stays.at(line=5), keeps=2)
    result = diff(running((gone, stays)), running((new, grown)))
    assert [row.delta for row in result.by("line")] == [-64, 32, 16]
    assert [row.name for row in result.by("line")][:2] == ["/main/a.py:5"] * 2


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("a1 a2", "a2 a1", {1: 0}),  # the other one is found by its size
        ("a64 a32 a16", "a128 a64 a32", {0: 0, 1: 1, 2: 2}),
        ("a64 a32 a16", "a128 a64 a32 a16", {0: 1, 1: 2, 2: 3}),
        ("a64 a32", "a1 a64 a99", {0: 1, 1: 2}),
        ("a1 b1 c1", "a1 c1", {0: 0, 2: 1}),
        ("a1 b1 c1", "a1 d1 c1", {0: 0, 1: 1, 2: 2}),
        ("a1 b1", "c1 d1", {}),
        ("a1", "b2", {0: 0}),
        ("a1", "a1 a1", {0: 0}),
        ("", "a1", {}),
    ],
)
def test_lines_are_aligned_in_order(
    before: str, after: str, same: dict[int, int]
) -> None:
    old, new = (
        {i: {text[0]: text[1:]} for i, text in enumerate(each.split())}
        for each in (before, after)
    )
    assert same_lines(old, new) == same


def test_long_functions_are_aligned_as_far_as_they_are_equal() -> None:
    lines = {i: {"a": i % 7} for i in range(5000)}
    assert len(same_lines(lines, {i + 3: each for i, each in lines.items()})) == 5000
    ends = {i: each for i, each in lines.items() if not 10 <= i < 4990}
    other = {i + 1: {"b": i} for i in range(10, 4990)}
    shifted_ends = {i + (i > 20): each for i, each in ends.items()}
    assert len(same_lines(lines, other | shifted_ends)) == 5000


PLACES = st.builds(
    lambda file, line, function: f"{file}.py:{line} {function}",
    st.sampled_from(["a", "b", "x/a", "y/a"]),
    st.integers(1, 12),
    st.sampled_from(["f", "g"]),
)
CODE = st.lists(
    st.builds(
        Asks,
        PLACES,
        st.sampled_from(["", "m", "m.0", "m.1"]),
        st.sampled_from(["add", "mul"]),
        st.sampled_from([8, 16, 32]),
        st.integers(0, 2),
    ),
    max_size=14,
).map(tuple)


@examples(
    60, CODE, st.lists(st.integers(0, 3), min_size=12, max_size=12), st.booleans()
)
def test_shifted_moved_and_renamed_code_has_no_changes(
    code: Code, blanks: list[int], renamed: bool
) -> None:
    def elsewhere(asks: Asks) -> Asks:
        name = "new" if renamed and asks.file == "a.py" else asks.file[:-3]
        return asks.at(f"{name}.py", asks.line + sum(blanks[: asks.line]))

    assert found(code, each(code, elsewhere)).sites == ()


@examples(60, CODE, CODE, st.sampled_from(["/main/", "/branch/"]))
def test_the_deltas_sum_to_that_of_the_moment(
    before: Code, after: Code, folder: str
) -> None:
    result = found(before, after, folder)
    for kind in get_args(By):
        assert sum(row.delta for row in result.by(kind)) == result.delta
    assert sum(site.delta for site in result.sites) == result.delta
    pairs = [pair for change in result.every for pair in change.pairs]
    for side, stats in (("before", result.before), ("after", result.after)):
        sites = [site for pair in pairs if (site := getattr(pair, side))]
        assert len(set(sites)) == len(sites)
        assert set(stats.at.sites()) <= set(sites)


def test_all_kinds_are_those_of_stats() -> None:
    result = found(BASE, each(BASE, twice))
    assert [row.name for row in result.by("function")] == ["forward", "batch"]
    assert {row.name for row in result.by("op")} == {"linear", "relu", "randn"}
    assert result.by("category") == result.categories
    gone = found(BASE, without(BASE, "train.py:3 batch"))
    (row,) = gone.by("module")
    assert (row.name, row.before - row.after) == ("unknown", 6400)


def test_a_moment_is_one_of_both() -> None:
    one, other = asking(3), asking(5, kept=1024)
    result = diff(one, other, "2")
    assert (result.before.at.step, result.after.at.step) == (2, 2)
    assert result.delta == result.after.at.bytes - result.before.at.bytes == 1536
    with pytest.raises(UsageError, match="BEFORE: at '4': the trace has steps 0 to 3"):
        diff(one, other, "4")
    with pytest.raises(UsageError, match="AFTER: at '4': the trace has steps 0 to 3"):
        diff(other, one, "4")
    assert memplan.diff(one, one, "0.001s").sites == ()


@pytest.mark.parametrize(
    ("deltas", "named"),
    [
        ([92, 8], (0, 0.92)),
        ([50, 25, 25], (0, 0.5)),
        ([50, 50], None),  # no single one
        ([49, 30, 21], None),
        ([80, 20, -50], (0, 0.8)),  # of what grew
        ([80, 20, -100], None),  # the total did not
        ([-10], None),
        ([], None),
    ],
)
def test_one_row_is_responsible_or_none(
    deltas: list[int], named: tuple[int, float] | None
) -> None:
    rows = [Change(str(i), 100, 100 + delta) for i, delta in enumerate(deltas)]
    result = responsible(rows)
    assert result == (named and (rows[named[0]], named[1]))
    unknown = [replace(row, name="unknown") for row in rows]
    assert responsible(unknown) is None


def test_traces_without_sites_are_compared_as_a_whole() -> None:
    one, other = trace_of([(Made(64, None),)]), trace_of([(Made(96, None),)])
    (row,) = diff(one, other).by("line")
    assert (row.name, row.site, responsible([row])) == ("unknown", Site(), None)
    assert align({}, {}) == []
