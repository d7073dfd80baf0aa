"""One measured run: its environment, its step hook, its figures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20


def rows(*steps: tuple[float, int, int, int, float]) -> dict[str, Any]:
    return {"rows": list(steps), "peak_before_reset": 70, "was_reset": True}


def test_a_run_counts_only_the_steps_after_its_warm_up() -> None:
    from bench.child import summarise

    noted = rows(
        (10.0, 500, 5, 60, 1.0),
        (20.0, 900, 5, 70, 2.0),
        (21.0, 910, 5, 30, 2.5),
        (23.0, 912, 5, 40, 3.0),
        (26.0, 921, 5, 45, 6.5),
    )
    run = summarise(noted, 2, 50, 30.0, "d")
    assert run.step_seconds == 2.0
    assert run.step_faults == 7.0
    assert run.cpu_seconds == 1.5
    assert run.steady_peak_bytes == 45
    assert run.peak_bytes == 70


@pytest.mark.parametrize(("max_resident", "peak"), [(80, 80), (60, 70)])
def test_the_whole_run_peaks_where_either_side_of_the_reset_does(
    max_resident: int, peak: int
) -> None:
    from bench.child import summarise

    noted = rows((1.0, 0, 0, 70, 0.0), (2.0, 0, 0, 40, 0.0))
    assert summarise(noted, 1, max_resident, 1.0, "d").peak_bytes == peak


def test_without_a_reset_there_is_no_steady_peak() -> None:
    from bench.child import summarise

    noted = {**rows((1.0, 0, 0, 70, 0.0), (2.0, 0, 0, 70, 0.0)), "was_reset": False}
    assert summarise(noted, 1, 70, 1.0, "d").steady_peak_bytes is None


def test_a_run_of_warm_up_steps_alone_is_refused() -> None:
    from bench.child import BenchError, summarise

    with pytest.raises(BenchError, match="2 steps seen, 2 of them warm-up"):
        summarise(rows((1.0, 0, 0, 70, 0.0), (2.0, 0, 0, 70, 0.0)), 2, 70, 1.0, "d")


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


def test_a_childs_peak_is_its_own(scripts_on_path: Path) -> None:
    # In a process of its own: a child's peak starts from what its parent holds.
    done = subprocess.run(
        [sys.executable, "-c", PEAKS],
        cwd=scripts_on_path,
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
