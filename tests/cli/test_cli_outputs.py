"""Where commands write: to files, to standard output, and to nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memplan.core.planfile import load_plan
from tests.cli.conftest import Command
from tests.cli.samples import LAYER, STRING, write_all
from tests.conftest import ROOT, Run
from tests.trace.trace_samples import journal_blocks, sample, write_journal

BLOCKING = {
    "optimize": ["blocking", "optimize", "--layer", LAYER],
    "codesign": ["blocking", "codesign", "--layer", LAYER],
    "emit": ["blocking", "emit", "--layer", LAYER, "--string", STRING],
}
# Each writes one file where the last argument says.
WRITING = {
    "solve": ["solve", "p.csv", "--force", "-o"],
    "convert": ["convert", "p.csv", "--force"],
    "plot": ["plot", "p.json", "--force", "-o"],
    "report": ["report", "t.json", "--force", "-o"],
    "record": ["record", "--force", "-o"],
    "recover": ["recover", "t.journal", "--force", "-o"],
    "apply": ["apply", "p.json", "--force", "--report"],
    "chunk": ["chunk", "m.py:factory", "--budget", "20%", "--force", "-o"],
    **{name: [*words, "--force", "-o"] for name, words in BLOCKING.items()},
}
SUFFIXES = {"convert": ".csv", "plot": ".svg", "record": ".json", "recover": ".json"}
NEEDS_A_SCRIPT = ("record", "apply")


def words(name: str, output: str) -> list[str]:
    script = ["s.py"] if name in NEEDS_A_SCRIPT else []
    return [*WRITING[name], output, *script]


@pytest.fixture(autouse=True)
def samples(tmp_path: Path) -> None:
    write_all(tmp_path)


@pytest.mark.parametrize("name", WRITING)
def test_what_is_no_file_is_not_replaced(
    command: Command, tmp_path: Path, name: str
) -> None:
    path = tmp_path / f"out{SUFFIXES.get(name, '.json')}"
    path.mkdir()
    said = command(*words(name, path.name))
    assert said.code == 2
    # Absolute where the program that is run may go to another folder.
    shown = path if name in NEEDS_A_SCRIPT else path.name
    assert said.err == f"memplan: {shown} is a folder; name a file\n"
    assert said.out == ""
    assert path.is_dir()


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("p.csv", ["convert", "OWN", "OWN", "--force"]),
        ("t.journal", ["recover", "OWN", "-o", "OWN", "--force"]),
    ],
)
def test_what_is_replaced_by_force_has_been_read_whole(
    command: Command, tmp_path: Path, kind: str, line: list[str]
) -> None:
    suffix = ".csv" if kind == "p.csv" else ".json"
    write_journal(tmp_path / "t.journal", journal_blocks(sample()))
    shutil.copy(tmp_path / kind, tmp_path / f"own{suffix}")
    wanted = [*line[:1], kind, *line[2:]]
    for words_, name in ((wanted, "other"), (line, "own")):
        assert command(*[w.replace("OWN", f"{name}{suffix}") for w in words_]).code == 0
    other = (tmp_path / f"other{suffix}").read_bytes()
    assert (tmp_path / f"own{suffix}").read_bytes() == other


def test_a_plan_goes_to_standard_output(command: Command, tmp_path: Path) -> None:
    for output in ("-", "/dev/stdout"):
        said = command("solve", "p.csv", "-o", output)
        assert said.code == 0, said.err
        assert len(load_plan(said.out.encode()).problem) == 5
        assert "memplan: planned /dev/stdout" in said.err
        assert "next:" not in said.err
    assert not (tmp_path / "-").exists()


def test_results_in_json_keep_out_of_its_way(command: Command) -> None:
    said = command("solve", "p.csv", "-o", "-", "--json")
    assert json.loads(said.out)["schema"] == "memplan.plan"
    assert '"memplan.solve-result"' in said.err


def test_a_problem_goes_to_standard_output(command: Command, tmp_path: Path) -> None:
    said = command("convert", "p.csv", "-")
    assert said.code == 0
    assert said.out == (tmp_path / "p.csv").read_text()
    assert said.err == "memplan: wrote 5 buffers to /dev/stdout\n"


@pytest.mark.parametrize("name", ["optimize", "codesign"])
def test_blocking_plans_go_to_standard_output(command: Command, name: str) -> None:
    said = command(*BLOCKING[name], "-o", "-")
    assert said.code == 0, said.err
    assert json.loads(said.out)["schema"] == "memplan.blocking-plan"
    assert "Energy, pJ per MAC" in said.err
    assert "next:" not in said.err


def test_code_goes_to_standard_output(command: Command) -> None:
    plain, named = command(*BLOCKING["emit"]), command(*BLOCKING["emit"], "-o", "-")
    assert (plain.code, plain.err) == (0, "")
    assert "int main" in plain.out
    assert named.out == plain.out


@pytest.mark.parametrize("name", ["solve", "emit"])
def test_a_reader_that_goes_ends_it_quietly(tmp_path: Path, name: str) -> None:
    line = [sys.executable, "-m", "memplan", *words(name, "-")]
    done = subprocess.run(
        ["bash", "-c", '"$@" 2>err | true; exit ${PIPESTATUS[0]}', "-", *line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 141
    said = (tmp_path / "err").read_text()
    assert "Broken" not in said and "Error" not in said


# What is closed, and then the command.
CLOSED = {"out": ">&-", "err": "2>&-", "all": "<&- >&- 2>&-"}
CODES = [
    (["--help"], 0),
    (["solve", "p.csv", "-o", "x.json"], 0),
    (["solve", "missing.csv"], 3),
    (["solve", "p.csv", "--capacity", "1", "--json"], 4),
    (["verify", "p.json"], 0),
    (["verify", "p.json", "t.json"], 1),
    (["plot", "p.json", "-o", "x.svg"], 0),
    (["blocking", "evaluate", "--layer", LAYER, "--string", STRING], 0),
    (BLOCKING["emit"], None),
]


@pytest.mark.parametrize(
    ("arguments", "code", "closed"),
    [
        *((*case, "all") for case in CODES),
        *((*case, closed) for case in CODES[1::7] for closed in ("out", "err")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_closed_streams_change_nothing_but_what_is_heard(
    tmp_path: Path, arguments: list[str], code: int | None, closed: str
) -> None:
    line = [sys.executable, "-m", "memplan", *arguments]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {CLOSED[closed]}', "-", *line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if code is None:  # a file that goes nowhere is no success
        code = 0 if closed == "err" else 5
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "internal" not in done.stderr
    assert done.stdout == "" or closed == "err"
    assert done.stderr == "" or closed == "out"
    for path in tmp_path.glob("x.*"):  # what was printed did not get into the file
        text = path.read_text()
        assert text.startswith(("{", "id,", "<?xml"))
        assert "memplan: " not in text


@pytest.mark.parametrize(
    ("arguments", "code"), [(["frobnicate"], 2), (["solve", "missing.csv"], 3)], ids=str
)
def test_errors_that_nobody_can_hear(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "memplan", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=full,
        )
    assert done.returncode == code


def test_a_program_under_closed_streams_runs(memplan: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "s.py").write_text(
        "import torch\nprint('ran')\nopen('made', 'w').write('whole')\n"
    )
    line = [sys.executable, "-m", "memplan", "record", "-o", "r.json", "s.py"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- 2>&-', "-", *line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0
    assert (tmp_path / "made").read_text() == "whole"
    assert json.loads((tmp_path / "r.json").read_text())["schema"] == "memplan.trace"
