"""The benchmark on a GPU, with programs that only say what one would."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import bench_gpu
from bench import gpu_runs
from bench.gpu_case import Case
from bench.gpu_largest import largest_batch
from bench.gpu_runs import BenchError, Clock, OutOfTimeError, Run, read_run
from bench_gpu import row

OUTPUT = """\
step 1 loss 0x0p+0 0.0
loss-sha256 abc
seconds/step median 0.25
cuda {"reserved": 3000000000, "allocated": 2000000000, "driver": 4000000000, \
"num_device_alloc": 5, "num_device_free": 2, "num_sync_all_streams": 1}
"""


def options(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(bench_gpu.parse_arguments([])), **changes})


def test_what_a_program_says_is_read() -> None:
    expected = Run(3_000_000_000, 2_000_000_000, 4_000_000_000, 7, 0.25, "abc")
    assert read_run(OUTPUT) == expected
    with pytest.raises(BenchError, match="did not say"):
        read_run(OUTPUT.replace("loss-sha256", "loss"))


def test_a_row_compares_the_three(tmp_path: Path) -> None:
    native = Run(3 * 10**9, 2 * 10**9, 4 * 10**9, 7, 0.2, "abc")
    planned = Run(2 * 10**9, 2 * 10**9, 3 * 10**9, 0, 0.3, "abc")
    case = Case("unet", options(), tmp_path)
    runs = {"native": [native, native], "expandable": [], "memplan": [planned] * 2}
    made = row(case, runs)
    assert made.startswith("| unet | 3.00 | 2.00 | 4.00 | 7 | 1.000 | - | - |")
    assert made.endswith("| 2.00 | 2.00 | 3.00 | 0 | 1.500 | equal |")
    assert made.count("|") == bench_gpu.header().splitlines()[0].count("|")
    runs["memplan"][1] = Run(2, 2, 2, 0, 0.3, "abd")
    assert row(case, runs).endswith("| 2 different |")


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


@pytest.mark.parametrize("first", [0, 1, 30, 37, 64])
@pytest.mark.parametrize(("limit", "most"), [(0, 64), (5, 64), (37, 64), (200, 100)])
def test_the_largest_batch_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    most: int,
    first: int,
) -> None:
    tried: list[int] = []

    def train(_: Case, mode: str, batch: int) -> None:
        assert mode == "native"
        tried.append(batch)
        if batch > limit:
            raise BenchError("out of memory")

    monkeypatch.setattr(Case, "train", train)
    case = Case("gpt2-medium", options(), tmp_path)
    found = largest_batch(case, "native", most, first)
    assert min(limit, most) * 31 // 32 <= found <= min(limit, most)
    assert len(set(tried)) == len(tried) <= 12


def test_what_is_about_known_takes_few_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def train(_: Case, mode: str, batch: int) -> None:
        tried.append(batch)
        if batch > 120:
            raise BenchError("out of memory")

    monkeypatch.setattr(Case, "train", train)
    case = Case("unet", options(), tmp_path)
    assert largest_batch(case, "native", 1024, 116) in range(117, 121)
    assert len(tried) <= 5


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
