"""The benchmark of the paper's five networks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

MIB = 1 << 20
SAMPLE = Path(__file__).parents[2] / "traces" / "infer_resnet50.parquet"
DIGEST = "a" * 64


@pytest.fixture
def bench() -> ModuleType:
    import bench_paper

    return bench_paper


def solved(**changes: Any) -> dict[str, Any]:
    """What bench/paper_solve.py says, of a plan a little above its bound."""
    auto = {
        "method": "auto",
        "peak": 40 * MIB,
        "lower_bound": 39 * MIB,
        "status": "feasible",
        "seconds": 0.25,
        "note": "search, 3,000 orders",
    }
    return {
        "buffers": 1234,
        "elastic": False,
        "retained_bytes": 100 * MIB,
        "arena_bytes": 40 * MIB,
        "lower_bound": 39 * MIB,
        "auto": auto,
        "bestfit": {**auto, "method": "bestfit", "seconds": 0.00125, "note": ""},
        **changes,
    }


def a_result(batch_size: int | None = 32, **changes: Any) -> Any:
    from bench.paper import Case, Result

    report = {
        "requests": 5000,
        "planned_requests": 4990,
        "online_requests": 7,
        "fallback_requests": 3,
        "conflicts": 1,
        "replans": [{"step": 5}],
    }
    return Result(
        Case("inception_resnet", batch_size),
        solved(**changes),
        held={"default": 150 * MIB, "planned": 142 * MIB},
        base=220 * MIB,
        runs={"default": {}, "planned": {"report": report}},
    )


def rows(table: str) -> list[str]:
    """The lines of a table, one space between columns."""
    return [" ".join(line.split()) for line in table.splitlines()]


def a_run(peak: int, digest: str = DIGEST, **report: Any) -> Any:
    from bench.child import Run

    return Run(peak, peak - 5, 1.0, 1.0, 9.0, digest, report=report)


def cpu() -> Any:
    from bench.paper import Device

    return Device("cpu", "CPU")


def test_each_network_trains_with_its_batch_sizes_and_infers_one_input() -> None:
    from bench.paper import cases

    found = cases(["alexnet", "seq2seq"], None, tiny=False)
    expected = ["32", "64", "I"]
    assert [case.batch for case in found] == expected * 2
    assert [case.network for case in found] == ["alexnet"] * 3 + ["seq2seq"] * 3
    assert [case.batch for case in cases(["alexnet"], [3], tiny=True)] == ["3", "I"]
    script, *arguments = found[2].program().command(6, 1, tiny=False)
    assert Path(script).name == "infer_alexnet.py"
    assert " ".join(arguments) == "--batch-size 1 --steps 6 --threads 1"


def test_every_case_names_a_script_that_is_there(scripts_on_path: Path) -> None:
    from bench.paper import NETWORKS, cases

    for case in cases(list(NETWORKS), None, tiny=False):
        assert (scripts_on_path / case.program().script).is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "4"], "--steps must be at least 5"),
        (["--threads", "0"], "--threads 1"),
        (["--batch-sizes", "4", "0"], "--batch-sizes must be at least 1"),
        (["--prove-seconds", "0"], "--prove-seconds must be more than 0"),
        (["--plot", "bars.txt"], "name a .png, .svg, .pdf file"),
        (["--json", "absent/a.json"], "there is no folder absent"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    bench: ModuleType,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_one_step_of_a_loop_is_cut_where_the_step_ends() -> None:
    from bench.paper_solve import one_propagation

    from memplan.core.problem import Problem

    # Two steps of 10 ticks; of each, one buffer wraps around and one meets the other's.
    loop = Problem.of([1, 4, 8, 11, 14, 18], [3, 12, 13, 13, 2, 5], [64] * 6, length=20)
    one = one_propagation(loop, 2)
    assert one.length is None
    assert one.lower.tolist() == [1, 4, 8]
    assert one.upper.tolist() == [3, 10, 10]
    assert one_propagation(one, 1) is one


def test_the_solver_proves_a_bound_that_it_was_not_told() -> None:
    from bench.paper_solve import ask_solver

    from memplan.core.problem import Problem

    problem = Problem.of([0, 1, 2], [2, 3, 4], [64, 128, 192], alignment=64)
    found = ask_solver(problem, 30.0)
    assert (found["peak"], found["lower_bound"]) == (320, 320)
    assert found["status"] == "optimal"
    assert "2 pairs, no bound given" in found["note"]


def test_a_trace_is_planned_and_proved_in_a_process_of_its_own(
    tmp_path: Path, scripts_on_path: Path
) -> None:
    import memplan
    from memplan.trace.liveness import step_problem

    plan = tmp_path / "a.plan.json"
    script = scripts_on_path / "bench" / "paper_solve.py"
    done = subprocess.run(
        [sys.executable, str(script), str(SAMPLE), str(plan), "--prove", "0.5"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    step = step_problem(memplan.read_trace(SAMPLE))
    assert memplan.verify(memplan.read_plan(plan)) == []
    assert found["retained_bytes"] == step.persistent_bytes
    assert found["buffers"] == len(step.problem)
    assert found["lower_bound"] <= found["auto"]["peak"] <= found["bestfit"]["peak"]
    whole, alone = found["proofs"][:3], found["proofs"][3:]
    assert [row["method"] for row in whole] == ["bestfit", "exact", "mip"]
    assert [row["method"] for row in alone] == ["bestfit", "exact", "mip", "mip, asked"]
    assert {row["buffers"] for row in whole} == {len(step.problem)}
    assert {row["buffers"] for row in alone} == {len(step.problem) // step.unrolled}
    for row in found["proofs"]:
        assert row["lower_bound"] <= row["peak"]
        assert (row["status"] == "optimal") == (row["lower_bound"] == row["peak"])


def test_the_memory_table_tells_retained_from_released_in_100_columns() -> None:
    from bench.paper_tables import memory_table

    table = memory_table([a_result(), a_result(None)], cpu())
    assert max(map(len, table.splitlines())) <= 100
    figures = "100.0 150.0 142.0 0.947 50.0 40.0 39.0 0.800"
    assert f"inception_resnet 32 {figures}" in rows(table)
    assert f"inception_resnet I {figures}" in rows(table)
    text = " ".join(rows(table))
    assert "(training 220.0 MiB, inference 220.0 MiB)" in text
    assert "10,000 requests in hot steps, 9,980 served as planned, 14 elsewhere" in text
    assert "6 outside it; 2 conflicts; planned anew 2 times" in text


def test_the_memory_table_says_what_a_bound_means_where_steps_differ() -> None:
    from bench.paper_tables import memory_table

    told = "inception_resnet: steps differ in their sizes"
    assert told in memory_table([a_result(), a_result(elastic=True)], cpu())
    assert told not in memory_table([a_result()], cpu())


def test_what_was_not_run_has_no_figures() -> None:
    from bench.paper import Result
    from bench.paper_tables import memory_table

    done = a_result()
    table = memory_table([Result(done.case, done.solved)], cpu())
    assert "inception_resnet 32 100.0 - - - - 40.0 39.0 -" in rows(table)
    assert "Nothing was run." in table
    assert "held: " not in table


def test_more_than_nothing_has_no_ratio_to_less() -> None:
    from dataclasses import replace

    from bench.paper_tables import memory_table

    small = replace(a_result(), held={"default": -MIB, "planned": MIB})
    expected = "inception_resnet 32 100.0 -1.0 1.0 - -101.0 40.0 39.0 -"
    assert expected in rows(memory_table([small], cpu()))


def test_on_cuda_the_table_has_torchs_reserved_bytes_with_either_segments() -> None:
    from dataclasses import replace

    from bench.paper import Device
    from bench.paper_tables import memory_table

    held = {"default": 200 * MIB, "expandable": 160 * MIB, "planned": 141 * MIB}
    one = replace(a_result(), held=held, base=0)
    table = memory_table([one], Device("cuda", "CUDA, Some GPU"))
    assert max(map(len, table.splitlines())) <= 100
    assert "CUDA, Some GPU" in rows(table)[0]
    figures = "100.0 200.0 160.0 141.0 0.705 100.0 40.0 39.0 0.400"
    assert f"inception_resnet 32 {figures}" in rows(table)


def test_the_planning_table_has_times_peaks_and_how_they_were_found() -> None:
    from bench.paper_tables import solve_table

    lines = solve_table([a_result(), a_result(None)]).splitlines()
    assert max(map(len, lines)) <= 100
    figures = "1,234 1.25 40.0 250.00 40.0 39.0 feasible"
    assert f"inception_resnet 32 {figures}" in rows("\n".join(lines))
    how = "auto, inception_resnet 32, inception_resnet I: search, 3,000 orders"
    assert lines[-1] == how


def test_the_proofs_are_shown_where_there_are_any() -> None:
    from bench.paper_tables import proof_table

    proof = {
        "problem": "one step",
        "buffers": 55,
        "method": "mip, asked",
        "peak": 4_646_528,
        "lower_bound": 4_646_528,
        "status": "optimal",
        "seconds": 11.96,
        "note": "cbc, 119 pairs, no bound given: solved",
    }
    lines = proof_table([a_result(None, proofs=[proof])]).splitlines()
    assert max(map(len, lines)) <= 100
    shown = (
        "inception_resnet one step 55 mip, asked 4,646,528 4,646,528 optimal 11.9600"
    )
    assert shown.split() in [line.split() for line in lines]
    assert "119 pairs" in lines[-1]
    assert proof_table([a_result()]) == ""


def test_the_figure_stacks_released_on_retained_beside_the_plan() -> None:
    from bench.paper import Result
    from bench.paper_plot import figure

    planned_only = Result(a_result().case, a_result(None).solved)
    axes = figure([a_result(), planned_only], cpu()).axes[0]
    bars = [(bar.get_y() / MIB, bar.get_height() / MIB) for bar in axes.patches]
    plan = [(0, 100), (100, 40)]
    assert bars == [*plan, (0, 100), (100, 50), *plan]
    assert [set(line.get_ydata()) for line in axes.lines] == [{139 * MIB}] * 2
    assert axes.get_ylim()[1] >= 150 * MIB


def without_children(bench: ModuleType, patch: pytest.MonkeyPatch) -> list[Any]:
    """Lets the benchmark record and plan nothing, and not look for a GPU; the commands
    it would have recorded."""
    commands: list[Any] = []

    def record(command: list[str], trace: Path, *_: object) -> None:
        commands.append(command)
        trace.touch()

    patch.setattr(bench.paper, "find_device", lambda _: cpu())
    patch.setattr(bench.paper, "record", record)
    patch.setattr(bench.paper, "solve", lambda *_: solved())
    return commands


def test_a_plan_that_computes_something_else_ends_the_benchmark_with_1(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_children(bench, monkeypatch)
    monkeypatch.setattr(
        bench, "run_one", lambda of, *_: a_run(50, "b" * 64 if of.planned else DIGEST)
    )
    assert bench.main(["--programs", "seq2seq"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("bench_paper: seq2seq 32: losses differ\n")


def test_an_interrupted_benchmark_keeps_its_complete_cases(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    commands = without_children(bench, monkeypatch)
    runs = iter([a_run(MIB), *[a_run(300 * MIB, conflicts=0)] * 2])

    def run_one(*_: object) -> Any:
        found = next(runs, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(bench, "run_one", run_one)
    monkeypatch.setattr(bench, "show", lambda results, _: print(len(results)))
    file, plot = tmp_path / "a.json", tmp_path / "a.svg"
    files = ["--json", str(file), "--plot", str(plot)]
    assert bench.main(["--programs", "seq2seq", *files]) == 130
    assert capsys.readouterr().err == "bench_paper: interrupted\n"
    (one,) = json.loads(file.read_text())["results"]
    assert one["held_bytes"] == {"default": 299 * MIB, "planned": 299 * MIB}
    assert one["released_bytes"]["default"] == 199 * MIB
    assert plot.read_text().startswith("<?xml")
    # Recorded for as long as the plan is made from, run for longer.
    assert "--steps 10" in " ".join(commands[0])


def test_without_runs_it_only_records_and_plans(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_children(bench, monkeypatch)
    monkeypatch.delattr(bench, "run_one")
    assert bench.main(["--skip-runs", "--programs", "resnet50"]) == 0
    assert "Nothing was run." in capsys.readouterr().out


def test_on_cuda_a_case_has_what_torch_reserves_and_what_the_plan_does(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.paper import Case, Result

    devices = {"0": {"reserved_peak": 141}, "1": {"reserved_peak": 7}}
    monkeypatch.setattr(bench, "run_one", lambda *_: a_run(9, device_memory=devices))
    monkeypatch.setattr(
        bench, "reserved_bytes", lambda _, expandable, __: 160 if expandable else 200
    )
    options = bench.Options(5, 2, 1, 1, True, 60.0)
    case = Case("alexnet", 32)
    found = bench.run_on_cuda(Result(case, solved()), [], Path("p"), options)
    assert found.held == {"default": 200, "expandable": 160, "planned": 141}


@pytest.mark.parametrize("expandable", [False, True])
def test_reserved_bytes_are_read_from_the_output_of_the_launcher(
    tmp_path: Path, expandable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.child import BenchError
    from bench.paper_cuda import reserved_bytes

    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    script = tmp_path / "program.py"
    script.write_text(
        "import os\n"
        "assert 'PYTORCH_ALLOC_CONF' not in os.environ\n"
        "on = 'PYTORCH_CUDA_ALLOC_CONF' in os.environ\n"
        "print(f'cuda-reserved {123 if on else 456}')\n"
    )
    found = reserved_bytes([str(script)], expandable, 60.0)
    assert found == (123 if expandable else 456)
    script.write_text("pass\n")
    with pytest.raises(BenchError, match="no cuda-reserved"):
        reserved_bytes([str(script)], expandable, 60.0)


LAUNCH = """
import sys
from bench.paper_cuda import launch
launch(sys.argv[1], sys.argv[2:], device="cpu")
import torch
assert torch.get_default_device() == torch.device("cpu")
assert torch.Generator().device == torch.device("cpu")
"""


def test_the_launcher_changes_nothing_but_the_device(scripts_on_path: Path) -> None:
    pytest.importorskip("torch")
    script = str(scripts_on_path / "infer_seq2seq.py")
    size = "--steps 2 --threads 1 --words 3 --vocabulary 50 --width 16 --longest 12"
    outputs = [
        subprocess.run(
            [sys.executable, *start, script, *size.split()],
            cwd=scripts_on_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout.splitlines()[:3]
        for start in ([], ["-c", LAUNCH])
    ]
    assert len(outputs[0]) == 3
    assert outputs[0] == outputs[1]


def test_words_chosen_one_by_one_are_the_likeliest_of_the_whole_sentence() -> None:
    torch = pytest.importorskip("torch")
    from infer_seq2seq import Greedy
    from models.seq2seq import Seq2Seq

    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(0)
        model = Seq2Seq(vocabulary=30, width=16, layers=2)
        source = torch.randint(1, 30, (3, 7))
        source[1, 5:] = 0
        mean = Greedy(model, words=6)(source)
        words = torch.ones(3, 1, dtype=torch.int64)
        for _ in range(6):
            logits = model(source, words)
            words = torch.cat([words, logits[:, -1:].argmax(2)], 1)
    likeliest = logits.log_softmax(2).max(2).values
    np.testing.assert_allclose(mean.numpy(), likeliest.mean().numpy(), rtol=1e-5)


def test_the_whole_benchmark_of_a_tiny_network(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("it would run on the GPU")
    file, plot = tmp_path / "a.json", tmp_path / "a.png"
    size = ["--tiny", "--programs", "seq2seq", "--steps", "5", "--threads", "1"]
    code = bench.main([*size, "--json", str(file), "--plot", str(plot)])
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    assert "measured on: CPU" in output.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    written = json.loads(file.read_text())
    assert written["schema"] == "memplan.bench-paper"
    assert [one["mode"] for one in written["results"]] == ["training", "inference"]
    for one in written["results"]:
        default, planned = one["runs"]["default"], one["runs"]["planned"]
        assert default["digest"] == planned["digest"]
        assert planned["report"]["planned_requests"] > 0
        assert one["solved"]["lower_bound"] <= one["solved"]["arena_bytes"]
        assert one["base_bytes"] > 50 * MIB
