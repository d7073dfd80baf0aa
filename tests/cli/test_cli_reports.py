"""memplan stats and check, as a user sees them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import memplan as package
from memplan.cli.site_table import module_pattern, percentages
from memplan.errors import UsageError
from memplan.reporting.check import Limits, check
from tests.conftest import Run
from tests.programs import Made, trace_of
from tests.reporting.asking import ASKED, FILE, asking


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with a trace that grows, and of when that fails, one that does not, and
    a plan."""
    package.write_trace(asking(steps=12), tmp_path / "grows.parquet")
    package.write_trace(asking(steps=12, asked=ASKED), tmp_path / "failed.parquet")
    package.write_trace(asking(steps=12, kept=0), tmp_path / "steady.parquet")
    plan = package.solve(([0, 1], [2, 3], [64, 64]))
    package.write_plan(plan, tmp_path / "p.plan.json")
    return tmp_path


def test_stats_tells_who_makes_the_peak(memplan: Run, traces: Path) -> None:
    done = memplan("stats", "failed.parquet")
    assert done.returncode == 0, done.stderr
    assert "peak live      11.0 KiB at the peak" in done.stdout
    assert "activations 4.0 KiB" in done.stdout
    assert (
        "grows by 512 B a step over 8 steps; most made at /code/train.py:20 in main"
        in (done.stdout)
    )
    assert "1.0 TiB could not be had" in done.stdout
    assert "/code/train.py:21 in main (empty)" in done.stdout
    assert re.search(
        r"/code/train.py:12 forward +blocks.0.fc +linear +4.0 KiB", done.stdout
    )


@pytest.mark.parametrize("width", [60, 120])
def test_tables_keep_to_the_width_and_cut_no_number(
    width: int, memplan: Run, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = memplan("stats", "grows.parquet", "-n", "2")
    table = done.stdout.split("by line\n")[1].splitlines()[:-1]
    assert max(map(len, table)) <= max(width, 80)
    shares = [float(x) for x in re.findall(r"(\d+\.\d) %", "\n".join(table))]
    assert round(sum(shares), 1) == 100.0
    assert "1 others" in done.stdout


def test_stats_as_json_sums_to_the_peak(memplan: Run, traces: Path) -> None:
    found = json.loads(memplan("stats", "failed.parquet", "--json").stdout)
    assert sum(site["bytes"] for site in found["sites"]) == found["peak_bytes"]
    assert sum(site["share"] for site in found["sites"]) == pytest.approx(1)
    assert sum(found["categories"].values()) == found["peak_bytes"]
    assert found["leak"]["bytes_per_step"] == 512
    assert found["leak"]["site"]["line"] == 20
    assert found["oom"]["requested_bytes"] == ASKED
    early = json.loads(memplan("stats", "grows.parquet", "--at", "0", "--json").stdout)
    assert early["at"] == {"bytes": 5608, "seconds": 0.003, "step": 0}
    assert sum(site["bytes"] for site in early["sites"]) == 5608
    steady = json.loads(memplan("stats", "steady.parquet", "--json").stdout)
    assert steady["leak"] is None


def test_stats_takes_plans_and_many_traces(memplan: Run, traces: Path) -> None:
    trace = trace_of([(Made(64, None), Made(64, 0)), *[(Made(64, 0),)] * 4])
    package.write_plan(package.solve(trace), traces / "of.plan.json")
    found = json.loads(memplan("stats", "of.plan.json", "--json").stdout)
    assert found["script"] == "p.py"
    assert "planned peak  128 B" in memplan("stats", "p.plan.json").stdout
    for number in range(4):
        package.write_trace(asking(3), traces / f"trace.{number}.parquet")
    package.write_trace(asking(3, activation=1 << 20), traces / "trace.9.parquet")
    done = memplan("stats", "trace.*.parquet", "-n", "2")
    rows = done.stdout.splitlines()
    assert rows[0].startswith("5 traces, median peak 6.5 KiB; the 2 that differ most")
    assert rows[2].startswith("trace.9.parquet")
    assert sum(row.startswith("trace.") for row in rows) == 2
    assert memplan("stats", "grows.parquet", "--ray", "auto").returncode == 2


def test_a_damaged_one_of_many_is_named(memplan: Run, traces: Path) -> None:
    for number in range(4):
        package.write_trace(asking(3), traces / f"trace.{number}.parquet")
    whole = (traces / "trace.2.parquet").read_bytes()
    (traces / "trace.2.parquet").write_bytes(whole[:-100])
    done = memplan("stats", "trace.*.parquet")
    assert done.returncode == 3
    assert "trace.2.parquet: damaged" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("grows.parquet --max 11KiB", 0, "check passed: peak live 11.0 KiB"),
        (
            "grows.parquet --max 10KiB",
            1,
            "peak live 11.0 KiB is 1000 B, 9.8 %, above 10.0 KiB; most at "
            "/code/train.py:20 in main (clone)",
        ),
        ("steady.parquet --no-leak", 0, "check passed"),
        ("grows.parquet --no-leak", 1, "grows by 512 B a step, over 8 steps"),
        (
            "grows.parquet --baseline steady.parquet --tolerance 2%",
            1,
            "above the baseline's 5.0 KiB and 2 % of it; most of it at "
            "/code/train.py:20",
        ),
        ("steady.parquet --baseline steady.parquet", 0, "check passed"),
        ("grows.parquet --baseline steady.parquet --tolerance 200%", 0, "limit 14.9"),
        ("p.plan.json --max 127", 1, "arena 128 B is 1 B, 0.8 %, above 127 B"),
        ("p.plan.json --max 128", 0, "check passed"),
        ("steady.parquet --max 1 --of planned", 1, "planned and persist"),
        ("grows.parquet --max 8KiB --of planned", 1, "planned and persistent 11.0 KiB"),
        (
            "failed.parquet --max 2TiB",
            1,
            "a request for 1.0 TiB failed while 7.0 KiB were live; asked for at "
            "/code/train.py:21 in main (empty)",
        ),
    ],
)
def test_check_is_a_gate(
    arguments: str, code: int, said: str, memplan: Run, traces: Path
) -> None:
    done = memplan("check", *arguments.split())
    assert done.returncode == code, done.stderr
    assert said in (done.stderr if code else done.stdout)
    assert not (done.stdout if code else done.stderr)


def test_check_says_when_a_recording_was_cut_off(tmp_path: Path) -> None:
    whole = asking(12, kept=0)
    cut = replace(whole, info=replace(whole.info, complete=False))
    limits = Limits(most=1 << 20)
    assert check(whole, limits).message.endswith("limit 1.0 MiB")
    assert check(cut, limits).message.endswith("which is not to the end")


def test_check_of_a_plan_counts_all_its_lanes() -> None:
    plan = package.solve(([0, 1], [2, 3], [64, 64]))
    both = replace(plan, lanes=2)
    assert check(both, Limits(most=256)).passed
    assert check(both, Limits(most=255)).value == 256


def test_check_tells_github(
    memplan: Run, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = traces / "summary.md"
    monkeypatch.setenv("GITHUB_WORKSPACE", str(Path(FILE).parent))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for _ in range(2):
        done = memplan("check", "grows.parquet", "--max=10KiB", "--format=github")
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("::error file=train.py,line=20,title=memplan check::peak")
    assert "9.8 %25," in line
    text = summary.read_text()
    assert text.count("### memplan check") == 2
    assert "| grows.parquet | **failed** | 11.0 KiB | 10.0 KiB |" in text


def test_check_as_json(memplan: Run, traces: Path) -> None:
    done = memplan("check", "grows.parquet", "--max", "10KiB", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert (found["passed"], found["value"], found["limit"]) == (False, 11240, 10240)
    assert found["site"]["line"] == 20


def test_python_has_the_same() -> None:
    stats = package.summarize(asking(12))
    assert repr(stats) == "Stats(peak=11,240 bytes, steps=12)"
    assert "<table>" in stats._repr_html_()
    verdict = package.check(asking(12), package.Limits(most=1 << 20, no_leak=True))
    assert not verdict.passed
    with pytest.raises(UsageError):
        check(asking(2), Limits())
    assert package.diff(asking(2), asking(2)).sites == ()


def test_percentages_sum_to_a_hundred() -> None:
    for parts in ([1, 1, 1], [1] * 7, [10**9, 1, 1], [5], list(range(1, 40))):
        shown = [float(text.split()[0]) for text in percentages(parts)]
        assert round(sum(shown), 1) == 100.0
    assert percentages([0, 0]) == ["0.0 %", "0.0 %"]


def test_modules_of_one_kind_are_one_pattern() -> None:
    assert module_pattern(["h.0.fc", "h.11.fc"]) == "h.*.fc"
    assert module_pattern(["h.0.fc"]) == "h.0.fc"
    assert module_pattern(["", ""]) == ""
    assert module_pattern(["h.0.fc", "h.1.out", ""]) == "h.*.fc +1"
    assert module_pattern(["layer1.conv"]) == "layer1.conv"
