"""The benchmark on a GPU, with programs that only say what one would."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import bench_gpu
from bench import gpu_runs
from bench.gpu_case import Case
from bench.gpu_largest import largest_batch
from bench.gpu_runs import BenchError, Clock, OutOfTimeError, Run, read_run
from bench.gpu_table import equal_losses, tables

OUTPUT = """\
step 1 loss 0x0p+0 0.0
loss-sha256 abc
seconds/step median 0.25
cuda {"on": "a GPU, torch 2", "reserved": 3000000000, "allocated": 2000000000, \
"driver": 4000000000, "num_device_alloc": 5, "num_device_free": 2, \
"num_sync_all_streams": 1}
"""


def options(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(bench_gpu.parse_arguments([])), **changes})


def test_what_a_program_says_is_read() -> None:
    sizes = 3_000_000_000, 2_000_000_000, 4_000_000_000
    expected = Run(*sizes, 7, 0.25, "abc", "a GPU, torch 2")
    assert read_run(OUTPUT) == expected
    with pytest.raises(BenchError, match="did not say"):
        read_run(OUTPUT.replace("loss-sha256", "loss"))


def trained(**changes: Any) -> Run:
    found = Run(3 * 10**9, 2 * 10**9, 4 * 10**9, 7, 0.2, "abc", "a GPU")
    return replace(found, **changes)


def figures(tmp_path: Path, runs: dict[str, list[Run]]) -> dict[str, Any]:
    case = Case("gpt2-medium", options(), tmp_path)
    case.runs.update(runs)
    return {"steps": 20, "free_gib": 24.0, "networks": {case.name: case.to_json()}}


def test_the_table_compares_the_three(tmp_path: Path) -> None:
    less = trained(reserved=2_500_000_000, calls=1234, seconds=1.5)
    runs = {"native": [trained()] * 2, "memplan": [less, replace(less, seconds=0.202)]}
    lines = tables(figures(tmp_path, runs))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert rows[2][:2] == ["gpt2-medium", "batch 8"]
    assert [" ".join(row) for row in rows[3:6]] == [
        "native 3.00 1.000 2.00 4.00 7 200.0 1.000",
        "expandable - - - - - - -",
        "memplan 2.50 0.833 2.00 4.00 1,234 851.0 4.255",
    ]
    assert {len(line) for line in lines[:6]} == {80}
    assert max(map(len, lines)) == 80
    said = " ".join(lines)
    assert "of native's: 0.833; at most 1 for all." in said
    assert "4.255; more than 1.01 for gpt2-medium 4.255." in said
    assert "expandable's" not in said  # there is nothing to compare with
    assert "trained 0 to 2 times" in said


@pytest.mark.parametrize(
    ("native", "memplan", "said"),
    [
        ("aa", "aa", "equal, bit for bit, for gpt2-medium."),
        ("aa", "ab", "gpt2-medium's differ from native's under memplan."),
        ("ab", "aa", "gpt2-medium's differ from run to run of native itself."),
        ("", "ab", "none to compare."),
    ],
)
def test_losses_that_differ_are_told(
    tmp_path: Path, native: str, memplan: str, said: str
) -> None:
    runs = {"native": native, "memplan": memplan}
    every = {
        mode: [trained(digest=each) for each in found] for mode, found in runs.items()
    }
    found = figures(tmp_path, every)
    assert " ".join(tables(found)).endswith(f"Losses: {said}")
    assert equal_losses(found) == (native == memplan == "aa")


def test_figures_are_kept_and_their_table_printed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(case: Case, mode: str, batch: int) -> Run:
        if (case.name, mode) == ("unet", "expandable"):
            raise BenchError("ended with 1", "Traceback")
        return trained(reserved=batch * 10**8)

    monkeypatch.setattr(Case, "plan", lambda *_: None)
    monkeypatch.setattr(Case, "train", train)
    kept = tmp_path / "f.json"
    command = ["bench_gpu.py", "--rounds", "2", "--output", str(kept)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        bench_gpu.main()
    assert end.value.code == 1
    first = capsys.readouterr()
    # What failed is told with its lines, once, and not tried again.
    assert first.err.count("unet, expandable: ended with 1\nTraceback") == 1
    networks = json.loads(kept.read_text())["networks"]
    assert networks["unet"]["runs"]["expandable"] == []
    assert len(networks["seq2seq"]["runs"]["memplan"]) == 2
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--table", str(kept)])
    bench_gpu.main()
    assert capsys.readouterr().out == first.out


def test_what_could_not_be_planned_is_trained_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(*_: object) -> None:
        raise BenchError("no plan")

    monkeypatch.setattr(Case, "plan", plan)
    monkeypatch.setattr(Case, "train", lambda *_: trained())
    command = ["bench_gpu.py", "--rounds", "1", "--networks", "unet"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        bench_gpu.main()
    assert end.value.code == 1
    out = capsys.readouterr().out
    assert "| native      |     3.00 |" in out
    assert "| memplan     |        - |" in out


def test_a_mode_has_its_own_setting_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    assert "PYTORCH_ALLOC_CONF" not in gpu_runs.environment("native")
    settings = gpu_runs.environment("expandable")
    assert settings["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_a_program_that_fails_is_told() -> None:
    program = ["-c", "import sys; print('x'); sys.exit('no memory')"]
    with pytest.raises(BenchError, match=r"ended with 1: .*no memory"):
        gpu_runs.run(program, "native", 60)
    with pytest.raises(BenchError, match=r"more than 0\.1 s"):
        gpu_runs.run(["-c", "import time; time.sleep(9)"], "native", 0.1)


def find(
    case: Case, monkeypatch: pytest.MonkeyPatch, most: int, limit: int, flat: bool
) -> tuple[tuple[int, bool], list[int]]:
    """What is found, and what was tried, where batches fit up to `limit`.

    flat: a run reserves all there is, whatever its batch is.
    """
    tried: list[int] = []

    def train(_: Case, mode: str, batch: int) -> Run:
        assert mode == "native"
        tried.append(batch)
        if batch > limit:
            raise BenchError("out of memory")
        return trained(reserved=int((1 << 30) * (1 if flat else batch / limit)))

    monkeypatch.setattr(Case, "train", train)
    largest_batch(case, "native", options(largest=1.0, most=most))
    return case.largest["native"], tried


@pytest.mark.parametrize(("trials", "code"), [(2, 1), (3, 0), (9, 0)])
def test_it_ends_well_with_a_figure_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int, code: int
) -> None:
    """Of three modes, when there is time for so many trials."""
    made: list[str] = []

    def train(_: Case, mode: str, batch: int) -> Run:
        if len(made) == trials:
            raise OutOfTimeError
        made.append(mode)
        return trained()

    monkeypatch.setattr(Case, "plan", lambda *_: None)
    monkeypatch.setattr(Case, "train", train)
    command = ["bench_gpu.py", "--networks", "unet", "--seconds", "60"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        bench_gpu.main()
    assert end.value.code == code
    assert made == (["native", "expandable", "memplan"] * 3)[:trials]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("known", [0, 1, 30, 37, 64])
@pytest.mark.parametrize(("limit", "most"), [(0, 64), (5, 64), (37, 64), (200, 100)])
def test_the_largest_batch_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    most: int,
    known: int,
    flat: bool,
) -> None:
    case = Case("gpt2-medium", options(), tmp_path)
    if known:
        case.largest["expandable"] = known, True
    (found, sure), tried = find(case, monkeypatch, most, limit, flat)
    assert sure
    assert min(limit, most) * 31 // 32 <= found <= min(limit, most)
    assert len(set(tried)) == len(tried) <= (14 if flat else 10)
    assert all(1 <= batch <= most for batch in tried)


def test_what_is_about_known_takes_few_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("unet", options(), tmp_path)
    (found, _), tried = find(case, monkeypatch, 1024, 120, False)
    assert found in range(117, 121)
    assert len(tried) <= 5
    case.largest = {"expandable": (116, True)}
    (found, _), tried = find(case, monkeypatch, 1024, 120, False)
    assert found in range(117, 121)
    assert len(tried) <= 3


def test_what_was_found_is_kept_when_time_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(_: Case, mode: str, batch: int) -> Run:
        if batch > 8:
            raise OutOfTimeError
        return trained(reserved=1 << 29)

    monkeypatch.setattr(Case, "train", train)
    case = Case("gpt2-medium", options(), tmp_path)
    with pytest.raises(OutOfTimeError):
        largest_batch(case, "native", options(largest=1.0))
    found = {"steps": 6, "free_gib": 1.0, "networks": {case.name: case.to_json()}}
    assert "| gpt2-medium |    ≥ 8 |          - |       - |" in tables(found)


def test_nothing_is_begun_that_would_not_end_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(gpu_runs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    clock = Clock(1000, 60)
    assert clock.timeout() == 60
    with clock.turn("long"):
        now[0] = 400
    with clock.turn("long"):
        now[0] = 800
    with pytest.raises(OutOfTimeError), clock.turn("long"):
        raise AssertionError
    with pytest.raises(BenchError), clock.turn("short"):
        raise BenchError
    now[0] = 970
    assert clock.timeout() == 30
    # A program that was stopped for want of time did not fail.
    with pytest.raises(OutOfTimeError), clock.turn("short"):
        now[0] = 1000
        raise BenchError
