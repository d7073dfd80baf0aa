"""The benchmark of apply as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench() -> ModuleType:
    import bench_apply

    return bench_apply


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
    assert "losses, equal bit for bit" in output.out
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
        raise bench.BenchError("exit code 1: python train.py")

    monkeypatch.setattr(bench, "measure", fail)
    assert bench.main(["--no-plan"]) == 1
    assert capsys.readouterr().err == "bench_apply: exit code 1: python train.py\n"


def test_an_interrupted_benchmark_keeps_its_complete_rounds(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from bench.child import Run

    runs = iter([Run(10, 10, 1.0, 1.0, 1.0, "a" * 64)] * 3)

    def measure(*_: object) -> Run:
        found = next(runs, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(bench, "measure", measure)
    file = tmp_path / "runs.json"
    assert bench.main(["--no-plan", "--json", str(file)]) == 130
    output = capsys.readouterr()
    assert output.err == "bench_apply: interrupted\n"
    assert "page faults a step" in output.out
    programs = json.loads(file.read_text())["programs"]
    # One round warmed up, two were complete, the rest never ran.
    assert len(programs["resnet50"]["runs"]["default"]) == 2


def test_losses_that_differ_end_the_benchmark_with_1(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from bench.child import Run

    digests = iter("aaab")

    def measure(*_: object) -> Run:
        return Run(10, 10, 1.0, 1.0, 1.0, next(digests) * 64)

    monkeypatch.setattr(bench, "measure", measure)
    assert bench.main(["--no-plan"]) == 1
    output = capsys.readouterr()
    assert output.err.startswith("bench_apply: resnet50: losses differ\n  default: aa")
    assert "page faults a step" in output.out


def test_another_allocators_losses_may_differ_and_are_said_to(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from bench.child import Run

    jemalloc = Path("/lib/libjemalloc.so.2")
    monkeypatch.setattr(
        bench, "find_library", lambda name: jemalloc if "jemalloc" in name else None
    )

    def measure(_: object, preload: Path | None, *__: object) -> Run:
        digest = ("b" if preload else "a") * 64
        return Run(10, 10, 1.0, 1.0, 1.0, digest, 2.0 if preload else 4.0)

    monkeypatch.setattr(bench, "measure", measure)
    file = tmp_path / "runs.json"
    some = ["--programs", "gpt2", "gan", "--repeats", "2"]
    assert bench.main(["--no-plan", "--vs", "--json", str(file), *some]) == 0
    output = capsys.readouterr().out
    assert "losses, equal bit for bit but for jemalloc: aaaa" in output
    assert "jemalloc computed other losses than the default's (bbbbbbbbbbbb)" in output
    assert "all programs (2: gpt2, gan)" in output
    assert "of fixed steps (1: gpt2)" in output
    assert "jemalloc/default: peak_bytes 1.000" in output
    means = json.loads(file.read_text())["geometric_means"]
    assert means["jemalloc/default"]["cpu_seconds"] == pytest.approx(0.5)


def test_without_warming_every_round_counts(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.child import Run

    warmups: list[int] = []

    def measure(_: object, __: object, warmup: int, *___: object) -> Run:
        warmups.append(warmup)
        return Run(10, 10, 1.0, 1.0, 1.0, "a" * 64)

    monkeypatch.setattr(bench, "measure", measure)
    some = ["--programs", "gan", "--repeats", "2", "--warmup", "3"]
    assert bench.main(["--no-plan", "--no-warming", *some]) == 0
    assert warmups == [6, 6]  # two optimizers a step


def test_memplan_runs_with_another_allocator_and_with_its_own(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from bench.child import Run

    tcmalloc = Path("/lib/libtcmalloc_minimal.so.4")
    monkeypatch.setattr(
        bench, "find_library", lambda name: tcmalloc if "tcmalloc" in name else None
    )
    monkeypatch.setattr(bench, "make_plan", lambda *_: tmp_path / "p.json")
    ran: list[tuple[str, Path | None]] = []

    def measure(command: list[str], preload: Path | None, *_: object) -> Run:
        own = "--malloc" in command
        ran.append(("apply" * ("apply" in command) + "+malloc" * own, preload))
        (tmp_path / "p.report.json").write_text("{}")
        return Run(10, 10, 1.0, 1.0, 1.0, "a" * 64)

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench.apply_tables, "plan_facts", lambda _: [])
    some = ["--programs", "gan", "--repeats", "1", "--no-warming"]
    assert bench.main(["--both", "--malloc", *some]) == 0
    assert ran == [
        ("", None),
        ("apply", None),
        ("", tcmalloc),
        ("apply", tcmalloc),
        ("apply+malloc", None),
    ]
    with pytest.raises(SystemExit):
        bench.main(["--no-plan", "--malloc"])
