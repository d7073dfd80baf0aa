"""The benchmark of apply: its statistics, its pairing, its table, and its hook."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

SCRIPTS = Path(__file__).parents[2] / "scripts"
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def scripts_on_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield


@pytest.fixture
def bench() -> ModuleType:
    import bench_apply

    return bench_apply


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


def rows(*steps: tuple[float, int, int, int]) -> dict[str, Any]:
    return {"rows": list(steps), "peak_before_reset": 70, "was_reset": True}


def test_a_run_counts_only_the_steps_after_its_warm_up() -> None:
    from bench.child import summarise

    noted = rows(
        (10.0, 500, 5, 60),
        (20.0, 900, 5, 70),
        (21.0, 910, 5, 30),
        (23.0, 912, 5, 40),
        (26.0, 921, 5, 45),
    )
    run = summarise(noted, 2, 50, 30.0, "d")
    assert run.step_seconds == 2.0
    assert run.step_faults == 7.0
    assert run.steady_peak_bytes == 45
    assert run.peak_bytes == 70


@pytest.mark.parametrize(("max_resident", "peak"), [(80, 80), (60, 70)])
def test_the_whole_run_peaks_where_either_side_of_the_reset_does(
    max_resident: int, peak: int
) -> None:
    from bench.child import summarise

    noted = rows((1.0, 0, 0, 70), (2.0, 0, 0, 40))
    assert summarise(noted, 1, max_resident, 1.0, "d").peak_bytes == peak


def test_without_a_reset_there_is_no_steady_peak() -> None:
    from bench.child import summarise

    noted = {**rows((1.0, 0, 0, 70), (2.0, 0, 0, 70)), "was_reset": False}
    assert summarise(noted, 1, 70, 1.0, "d").steady_peak_bytes is None


def test_a_run_of_warm_up_steps_alone_is_refused() -> None:
    from bench.child import BenchError, summarise

    with pytest.raises(BenchError, match="2 steps seen, 2 of them warm-up"):
        summarise(rows((1.0, 0, 0, 70), (2.0, 0, 0, 70)), 2, 70, 1.0, "d")


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


def test_a_library_is_found_in_the_first_folder_that_has_it(tmp_path: Path) -> None:
    from bench.programs import find_library

    folders = [tmp_path / name for name in "abc"]
    for folder in folders[1:]:
        folder.mkdir()
        (folder / "lib.so").touch()
    assert find_library("lib.so", folders) == tmp_path / "b" / "lib.so"
    assert find_library("other.so", folders) is None


def test_an_allocator_not_installed_is_left_out_with_the_reason(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    jemalloc = Path("/lib/libjemalloc.so.2")
    monkeypatch.setattr(
        bench, "find_library", lambda name: jemalloc if "jemalloc" in name else None
    )
    chosen, skipped = bench.allocators(vs=True, no_plan=False)
    assert [of.name for of in chosen] == ["default", "memplan", "jemalloc"]
    assert chosen[2].preload == jemalloc
    assert skipped == {"tcmalloc": "libtcmalloc_minimal.so.4 is not installed"}
    chosen, skipped = bench.allocators(vs=False, no_plan=True)
    assert ([of.name for of in chosen], skipped) == (["default"], {})


def test_a_child_has_no_allocator_setting_but_the_one_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bench.child import environment

    for name in ("LD_PRELOAD", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "MALLOC_CONF"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("KEPT", "yes")
    found = environment(Path("/lib/one.so"))
    assert found["KEPT"] == "yes"
    assert found["LD_PRELOAD"] == "/lib/one.so"
    assert {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "MALLOC_CONF"}.isdisjoint(found)
    assert "LD_PRELOAD" not in environment()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit('no such luck')", r"exit code 1: .*\n  no such luck"),
        ("import time; time.sleep(60)", "killed after 0.5 s"),
    ],
)
def test_a_child_that_fails_or_hangs_ends_the_benchmark(
    program: str, message: str
) -> None:
    from bench.child import BenchError, environment, run_child

    seconds = 0.5 if "sleep" in program else 60.0
    with pytest.raises(BenchError, match=message):
        run_child([sys.executable, "-c", program], environment(), seconds)


def test_a_library_that_cannot_be_preloaded_ends_the_benchmark(tmp_path: Path) -> None:
    from bench.child import BenchError, environment, run_child

    command = [sys.executable, "-c", "pass"]
    with pytest.raises(BenchError, match="cannot be preloaded"):
        run_child(command, environment(tmp_path / "absent.so"), 60.0)


PEAKS = """
import sys
from bench.child import environment, run_child
for program in ("b = bytearray(96 << 20); b[::4096] = bytes(96 << 8)", "pass"):
    print(run_child([sys.executable, "-c", program], environment(), 60.0)[2])
"""


def test_a_childs_peak_is_its_own() -> None:
    # In a process of its own: a child's peak starts from what its parent holds.
    done = subprocess.run(
        [sys.executable, "-c", PEAKS],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    large, small = map(int, done.stdout.split())
    assert 80 * MIB < large - small < 110 * MIB


@pytest.fixture
def measured(tmp_path: Path) -> Callable[[str], Any]:
    """Measures a program, given as text, with two warm-up steps."""
    pytest.importorskip("torch")
    from bench.child import measure

    def run(text: str) -> Any:
        script = tmp_path / "program.py"
        script.write_text(f"import torch\n{text}\nprint('loss-sha256 ' + 'c' * 64)\n")
        return measure([sys.executable, str(script)], None, 2, 120.0)

    return run


OPTIMIZER = """
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for step in range(6):
    if step == 1:
        spike = torch.ones(64 << 18); del spike
    if step >= 2:
        kept.append(torch.ones(4 << 18))
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_the_hook_marks_optimizer_steps_and_sees_a_peak_on_either_side(
    measured: Callable[[str], Any],
) -> None:
    run = measured(OPTIMIZER)
    assert run.digest == "c" * 64
    # 64 MiB in the warm-up, 4 MiB more after each of the four steps that count.
    assert run.peak_bytes - run.steady_peak_bytes > 40 * MIB
    assert 1000 < run.step_faults < 1200
    assert 0 < run.step_seconds < run.seconds


def test_the_hook_marks_calls_of_the_outermost_module_where_none_optimizes(
    measured: Callable[[str], Any],
) -> None:
    run = measured(
        "kept = []\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))\n"
        "for _ in range(6):\n"
        "    model(torch.ones(2, 4))\n"
        "    kept.append(torch.ones(4 << 18))\n"
    )
    # A mark per inner module would cut the faults per mark to a third.
    assert 1000 < run.step_faults < 1200


def test_a_program_without_steps_or_digest_ends_the_benchmark(
    measured: Callable[[str], Any], tmp_path: Path
) -> None:
    from bench.child import BenchError, measure

    with pytest.raises(BenchError, match="saw no step"):
        measured("")
    silent = tmp_path / "silent.py"
    silent.write_text("import torch\n" + OPTIMIZER)
    with pytest.raises(BenchError, match="no loss-sha256"):
        measure([sys.executable, str(silent)], None, 2, 120.0)


@pytest.mark.parametrize(
    "arguments",
    [["--repeats", "0"], ["--steps", "5", "--warmup", "5"], ["--warmup", "0"]],
)
def test_options_that_leave_nothing_to_measure_are_refused(
    bench: ModuleType, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(arguments)
    assert stop.value.code == 2
    assert "must be at least 1" in capsys.readouterr().err


def test_the_whole_benchmark_of_a_tiny_program(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "runs.json"
    size = ["--tiny", "--repeats", "1", "--steps", "8", "--warmup", "4"]
    rest = ["--programs", "gpt2", "--threads", "1", "--json", str(file)]
    code = bench.main([*size, *rest])
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    assert "losses equal bit for bit" in output.out
    written = json.loads(file.read_text())
    assert written["schema"] == "memplan.bench-apply"
    runs = written["programs"]["gpt2"]["runs"]
    assert [len(runs[name]) for name in ("default", "memplan")] == [1, 1]
    assert runs["memplan"][0]["report"]["planned_requests"] > 0
    assert runs["default"][0]["digest"] == runs["memplan"][0]["digest"]


def test_a_failing_run_ends_with_1_and_says_why(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise bench.BenchError("gpt2: losses differ")

    monkeypatch.setattr(bench, "bench_program", fail)
    assert bench.main(["--tiny"]) == 1
    assert capsys.readouterr().err == "bench_apply: gpt2: losses differ\n"
