"""What all commands do alike: -q, -v, --json, help, completion, near misses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from memplan.cli import WIDEST, cli
from memplan.cli.completion import SHELLS
from memplan.cli.group import VARIABLE
from tests.conftest import ROOT, Run

SAMPLE = ROOT / "traces/infer_resnet50.parquet"


def leaves(group: click.Group) -> dict[str, click.Command]:
    """All commands that are no groups, by their words."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        inner = group.get_command(context, name)
        assert inner is not None
        if isinstance(inner, click.Group):
            found |= {f"{name} {rest}": one for rest, one in leaves(inner).items()}
        else:
            found[name] = inner
    return found


@pytest.mark.parametrize("name", leaves(cli))
def test_every_command_can_be_quiet_and_verbose(name: str) -> None:
    options = {flag for param in leaves(cli)[name].params for flag in param.opts}
    assert {"-q", "--quiet", "-v", "--verbose"} <= options


@pytest.mark.parametrize(
    "words",
    [
        ["solve", SAMPLE, "-o", "out"],
        ["report", SAMPLE, "-o", "out"],
        ["convert", SAMPLE, "out.pickle"],
        ["plot", SAMPLE, "-o", "out.png"],
    ],
    ids=lambda words: words[0],
)
def test_quiet_is_nothing_but_json(memplan: Run, words: list[str | Path]) -> None:
    done = memplan(*words, "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = memplan(*words, "-q", "--json", "--force")
    assert done.stderr == ""
    assert json.loads(done.stdout)["version"] == 1
    done = memplan(*words, "--force")
    assert done.stdout or done.stderr


def test_quiet_still_says_what_went_wrong(memplan: Run) -> None:
    done = memplan("solve", "-q", "none.parquet")
    assert done.returncode == 3
    assert done.stderr == "memplan: none.parquet: no such file; check the path\n"


NO_GAIN = "memplan: the plan does not pay in memory: "


@pytest.mark.parametrize("words", [("solve", "-q"), ("-q", "solve")])
def test_quiet_still_warns(memplan: Run, words: tuple[str, str]) -> None:
    """Of a plan that is of no use, and of nothing else; wherever -q stands."""
    sample = ROOT / "traces/train_googlenet.parquet"
    done = memplan(*words, sample, "--method", "bestfit", "-o", "p.json")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(NO_GAIN)
    assert done.stderr.count("\n") == 1


def test_quiet_still_says_what_a_check_found(memplan: Run) -> None:
    done = memplan("check", SAMPLE, "--max", "1KiB", "-q")
    assert done.returncode == 1
    assert done.stderr.startswith("memplan: check failed: peak live ")
    limit = ("--max", "1KiB", "--format", "github")
    assert memplan("check", SAMPLE, *limit, "-q").stdout.startswith("::error ")
    assert memplan("check", SAMPLE, "--max", "1TiB", "-q").stderr == ""
    memplan("solve", SAMPLE, "-o", "p.json", "-q")
    other = ROOT / "traces/train_googlenet.parquet"
    assert "made for another trace" in memplan("verify", "p.json", other, "-q").stdout


def test_options_of_all_commands_stand_before_them_too(memplan: Run) -> None:
    done = memplan("-q", "-v", "convert", SAMPLE, "out.pickle")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("memplan: took ")
    assert done.stderr.count("\n") == 1
    assert memplan("blocking", "-q", "layers").stdout == ""


def test_verbose_says_what_it_took(memplan: Run) -> None:
    done = memplan("convert", SAMPLE, "out.pickle", "-v")
    assert "memplan: took " in done.stderr and ", peak memory " in done.stderr
    assert "memplan: took " in memplan("verify", "none.json", "-v").stderr


def test_a_near_miss_is_told_what_is_near(memplan: Run) -> None:
    done = memplan("reprot")
    assert done.returncode == 2
    assert "No such command 'reprot'. Did you mean report" in done.stderr
    assert "Did you mean" not in memplan("xyzzy").stderr
    assert "Did you mean optimize?" in memplan("blocking", "optimise").stderr


def test_a_compiled_part_that_is_missing_is_told(tmp_path: Path) -> None:
    problem = tmp_path / "p.csv"
    problem.write_text("id,lower,upper,size\na,0,5,10\nb,3,8,10\n")
    source = "import sys; sys.modules['memplan.native._dsa'] = None\n"
    source += "from memplan.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", source, "solve", str(problem)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 5
    assert "cannot load memplan's native code" in done.stderr
    assert "reinstall memplan" in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize(("columns", "widest"), [("60", 60), ("140", WIDEST)])
def test_help_is_as_wide_as_the_terminal(
    memplan: Run, monkeypatch: pytest.MonkeyPatch, columns: str, widest: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    done = memplan("solve", "--help")
    widths = [len(line) for line in done.stdout.split("Methods:")[0].splitlines()]
    assert widest - 12 < max(widths) <= widest


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_printed_and_answers(memplan: Run, shell: str) -> None:
    printed = memplan("completion", shell).stdout
    assert VARIABLE in printed
    assert f"{shell}_complete" in printed
    words = {"COMP_WORDS": "memplan re", "COMP_CWORD": "1"}
    if shell == "fish":
        words["COMP_CWORD"] = "re"
    asked = {**os.environ, **words, VARIABLE: f"{shell}_complete"}
    done = subprocess.run(
        [sys.executable, "-m", "memplan"], env=asked, capture_output=True, text=True
    )
    assert done.returncode == 0
    for name in ("record", "recover", "report"):
        assert name in done.stdout
    assert "solve" not in done.stdout


def test_completion_knows_options_and_choices() -> None:
    for line, count, expected in (
        ("memplan solve --me", "2", "--method"),
        ("memplan solve --method ej", "3", "ejection"),
        ("memplan blocking opt", "2", "optimize"),
    ):
        asked = {"COMP_WORDS": line, "COMP_CWORD": count, VARIABLE: "bash_complete"}
        done = subprocess.run(
            [sys.executable, "-m", "memplan"],
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
        )
        assert f"plain,{expected}" in done.stdout.splitlines()
