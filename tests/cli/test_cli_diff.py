"""memplan diff, as a user sees it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import memplan as package
from memplan.trace.trace import Trace
from tests.conftest import Command
from tests.programs import Made, trace_of
from tests.reporting.asking import asking
from tests.reporting.lines_of_code import BASE, TRAINING, Asks, each, running, shifted


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with traces: of steps, of code, and of the same code changed elsewhere:
    a larger layer in a renamed function, a file moved, a line added and one gone."""
    changed = each(
        shifted(BASE, "train.py", 0, 4),
        lambda a: replace(a, size=3 * a.size) if a.operator == "zeros_like" else a,
    )
    changed = each(changed, lambda a: a.at(function=a.function.replace("step", "run")))
    changed = each(
        changed, lambda a: a.at("net.py", a.line) if a.file == "model.py" else a
    )
    relu = "net.py:12 forward"
    after = [asks for asks in changed if asks.place != relu]
    after += [Asks("train.py:30 main", "", "zeros", 1000)]
    larger = each(BASE, lambda a: replace(a, keeps=2) if a.line == 3 else a)
    traces: dict[str, Trace] = {
        "steady": asking(steps=12, kept=0),
        "grows": asking(steps=12),
        "before": running(BASE),
        "after": running(after, "/branch/"),
        "larger": running(larger),
        "training": running(TRAINING),
        "bare": trace_of([(Made(64, None),)]),
    }
    for name, trace in traces.items():
        package.write_trace(trace, tmp_path / f"{name}.parquet")
    return tmp_path


def test_diff_tells_what_changed(command: Command, written: Path) -> None:
    done = command("diff", "steady.parquet", "grows.parquet")
    assert "peak live    5.0 KiB -> 11.0 KiB: +6.0 KiB (+120.57 %)" in done.out
    assert "at the peak, by line" in done.out
    assert re.search(r"train.py:20 main .*clone +0 B +6.0 KiB +\+6.0 KiB", done.out)
    last = done.out.splitlines()[-1]
    assert last == "  /code/train.py:20 main is responsible for 100 % of the growth"
    same = command("diff", "steady.parquet", "steady.parquet")
    assert "no change" in same.out
    assert "responsible" not in same.out
    back = command("diff", "grows.parquet", "steady.parquet")
    assert "-6.0 KiB" in back.out
    assert "responsible" not in back.out


def test_diff_says_where_code_was_before(command: Command, written: Path) -> None:
    done = command("diff", "before.parquet", "after.parquet")
    assert re.search(r"moved +/main/model.py -> /branch/net.py\n", done.out)
    assert re.search(
        r"renamed +/main/train.py step -> /branch/train.py run\n", done.out
    )
    rows = done.out.split("by line\n")[1].splitlines()
    assert re.match(r"where +was +module +operator +before +after +change", rows[0])
    assert rows[1].startswith("/branch/train.py:12 run")
    assert "renamed from" in rows[1]
    table = "\n".join(rows)
    assert re.search(r"/main/model.py:12 forward +gone .* 3.9 KiB +0 B +-3.9", table)
    assert re.search(r"/branch/train.py:30 main +new .* 0 B +1000 B +\+1000 B", table)
    assert rows[-1] == "  /branch/train.py:12 run is responsible for 99 % of the growth"
    few = command("diff", "before.parquet", "after.parquet", "-n", "1").out
    assert "2 others" in few


@pytest.mark.parametrize(
    ("kind", "row", "last"),
    [
        ("function", r"run +renamed from /main/train.py step ", "function run is"),
        ("module", r"fc1 +85.9 KiB", "module fc1 is"),
        ("op", r"zeros_like +58.6 KiB", "op zeros_like is"),
        ("category", r"activations +\d", "category activations is"),
    ],
)
def test_diff_groups_as_stats_does(
    kind: str, row: str, last: str, command: Command, written: Path
) -> None:
    done = command("diff", "before.parquet", "after.parquet", "--by", kind)
    assert re.search(rf"at the peak, by {kind}\n{kind} ", done.out)
    assert re.search(rf"^{row}", done.out, re.M)
    assert done.out.splitlines()[-1].startswith(f"  {last} responsible for ")


def test_diff_has_the_moments_of_stats(command: Command, written: Path) -> None:
    done = command("diff", "steady.parquet", "grows.parquet", "--at", "2")
    assert re.search(r"  live +5.0 KiB -> 6.5 KiB: \+1.5 KiB", done.out)
    assert "at the largest moment of step 2, by line" in done.out
    late = command("diff", "steady.parquet", "grows.parquet", "--at", "40ms")
    assert (late.code, late.out) == (2, "")
    assert "BEFORE: --at 40ms: the trace ends after 0.037 seconds" in late.err


def test_diff_as_json_has_the_same(command: Command, written: Path) -> None:
    done = command("diff", "before.parquet", "after.parquet", "--json", "--by", "op")
    found = json.loads(done.out)
    for name in ("sites", "rows"):
        assert sum(each["delta"] for each in found[name]) == found["delta_bytes"]
    first = found["sites"][0]
    assert (first["line"], first["before_site"]["line"]) == (12, 8)
    assert first["before_site"]["function"] == "step"
    assert (first["after_site"]["function"], first["move"]) == ("run", "renamed")
    gone = next(each for each in found["sites"] if each["after_site"] is None)
    assert (gone["file"], gone["line"], gone["move"]) == ("/main/model.py", 12, "")
    new = next(each for each in found["sites"] if each["before_site"] is None)
    assert (new["function"], new["before"], new["after"]) == ("main", 0, 1000)
    assert [(each["move"], each["after"]) for each in found["moves"]] == [
        ("moved", {"file": "/branch/net.py", "function": ""}),
        ("renamed", {"file": "/branch/train.py", "function": "run"}),
    ]
    assert found["by"] == "op"
    assert found["responsible"]["name"] == found["rows"][0]["name"] == "zeros_like"
    early = command("diff", "steady.parquet", "grows.parquet", "--json", "--at", "2")
    at = json.loads(early.out)
    assert (at["before"]["at"]["step"], at["delta_bytes"]) == (2, 1536)


def test_diff_says_that_the_devices_differ(command: Command, written: Path) -> None:
    trace = asking(steps=12)
    on_gpu = replace(trace, info=replace(trace.info, device="cuda"))
    package.write_trace(on_gpu, written / "gpu.parquet")
    done = command("diff", "grows.parquet", "gpu.parquet")
    assert "BEFORE is of cpu memory, AFTER of cuda" in done.err
    found = json.loads(command("diff", "grows.parquet", "gpu.parquet", "--json").out)
    assert (found["before"]["device"], found["after"]["device"]) == ("cpu", "cuda")
    assert found["same_device"] is False
    same = command("diff", "steady.parquet", "grows.parquet")
    assert "BEFORE is of" not in same.err


def test_diff_says_which_trace_has_no_lines(command: Command, written: Path) -> None:
    done = command("diff", "before.parquet", "bare.parquet")
    assert "AFTER: the trace does not say who asked" in done.err
    assert "BEFORE:" not in done.err
    by_category = command("diff", "before.parquet", "bare.parquet", "--by", "category")
    assert not by_category.err
    unknown = command("diff", "bare.parquet", "training.parquet")
    assert "unknown is responsible" not in unknown.out


def test_a_line_with_another_operator_is_named_as_it_is_now(
    command: Command, tmp_path: Path
) -> None:
    old = Asks("a.py:4 f", "", "zeros", 9000), Asks("a.py:5 f", "", "mul", 64)
    new = replace(old[0].at(line=7), operator="empty", size=1000), old[1].at(line=8)
    package.write_trace(running(old), tmp_path / "old.parquet")
    package.write_trace(running(new, "/branch/"), tmp_path / "new.parquet")
    table = command("diff", "old.parquet", "new.parquet").out.split("by line\n")[1]
    row = r"/branch/a.py:7 f +line 4 +zeros \+1 +8.8 KiB +1000 B +-7.8 KiB"
    assert re.search(row, table)
    assert len(table.splitlines()) == 2


def test_a_line_that_is_gone_is_named_as_it_was(
    command: Command, tmp_path: Path
) -> None:
    gone = Asks("train.py:12 step", "", "cat", 3000)
    code = each((*BASE, gone), lambda a: replace(a, keeps=1))
    renamed = each(code, lambda a: a.at(function=a.function.replace("step", "run")))
    package.write_trace(running(code), tmp_path / "old.parquet")
    package.write_trace(running(renamed[:-1]), tmp_path / "new.parquet")
    done = command("diff", "old.parquet", "new.parquet").out
    assert re.search(r"^/main/train.py:12 step +gone +cat +2.9 KiB +0 B", done, re.M)
    by_function = command("diff", "old.parquet", "new.parquet", "--by", "function").out
    assert re.search(r"^run +renamed from /main/train.py step ", by_function, re.M)
