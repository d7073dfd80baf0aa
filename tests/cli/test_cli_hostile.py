"""What files and their names hold cannot write over a terminal or break a picture."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from memplan.blocking.planfile import write_plan as write_blocking_plan
from memplan.core.planfile import write_plan
from memplan.trace.write import write_trace
from tests.cli import samples
from tests.cli.conftest import Command, Said

EVIL = (
    "$\\frac{$\x1b]0;owned\x07\x1b[31m[bold red]x[/bold red][/] :skull:\r\n"
    "memplan: all is well\x9b2J\u202e\x00\x7f"
)
NAME = "n\x1b[31m\r\nmemplan: all is well\x9b[bold]$_{$:skull:\u202e"


def harmless(said: Said) -> Said:
    """Fails if a character gets through that is not meant to be seen."""
    for heard in (said.out, said.err):
        assert all(line.isprintable() for line in heard.split("\n")), heard
        assert "memplan: all is well" not in heard.split("\n")
        assert "\U0001f480" not in heard  # what rich makes of :skull:
        assert "Traceback" not in heard and "internal error" not in heard
    return said


def drawn(path: Path) -> None:
    """Fails if an SVG file is no XML, or holds a control character."""
    data = path.read_bytes()
    ET.fromstring(data)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", data.decode())


@pytest.fixture(autouse=True)
def hostile(tmp_path: Path) -> None:
    """Files that say EVIL wherever they may."""
    samples.write_all(tmp_path)
    for name, recorded in (("labels.json", False), ("requests.json", True)):
        write_plan(samples.named_plan(EVIL, recorded=recorded), tmp_path / name)
    write_trace(samples.named_trace(EVIL), tmp_path / "evil.json")
    plan = samples.blocking_plan(EVIL, EVIL, EVIL)
    write_blocking_plan(plan, tmp_path / "evil.blocking.json")
    name = json.dumps(EVIL)[1:-1].replace("\x7f", "\\u007f")
    (tmp_path / "evil.toml").write_text(samples.TOML.format(name=name))
    lines = samples.CSV.replace("a,", "\x1b[31m[bold]\x9b:skull:\u202e,", 1)
    (tmp_path / "evil.csv").write_text(lines)


@pytest.mark.parametrize("form", ["facts", "json"])
@pytest.mark.parametrize("source", ["evil.json", "evil.csv"])
def test_solve(command: Command, source: str, form: str) -> None:
    step = ["--step", "all"] * (source == "evil.json")
    json_ = ["--json"] * (form == "json")
    said = harmless(command("solve", source, *step, *json_, "-o", "x.json"))
    assert said.code == 0
    if source == "evil.json" and form == "facts":
        assert "memplan apply x.json " in said.out
        assert r"\x1b]0;owned\x07\x1b[31m[bold red]x" in said.out


@pytest.mark.parametrize("plan", ["labels.json", "requests.json"])
def test_verify(command: Command, plan: str) -> None:
    assert harmless(command("verify", plan)).code in (0, 1)
    assert harmless(command("verify", plan, "p.csv")).code == 1
    assert harmless(command("verify", plan, "evil.json")).code == 1


def test_convert(command: Command) -> None:
    assert harmless(command("convert", "labels.json", "x.csv")).code == 3
    assert harmless(command("convert", "evil.csv", "y.csv")).code == 0


@pytest.mark.parametrize(
    "source", ["labels.json", "requests.json", "evil.json", "evil.blocking.json"]
)
def test_plot(command: Command, tmp_path: Path, source: str) -> None:
    said = harmless(command("plot", source, "-o", "x.svg"))
    assert said.code == 0, said.err
    drawn(tmp_path / "x.svg")
    assert harmless(command("plot", source, "-o", "x.pdf")).code == 0


def test_apply(command: Command) -> None:
    pytest.importorskip("torch")
    said = harmless(command("apply", "requests.json", "s.py"))
    assert said.code == 3
    assert r"made for $\frac{$\x1b]0;owned" in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "--layer", samples.LAYER, "--string", samples.STRING, "--memory"],
        ["optimize", "--layer", samples.LAYER, "--memory"],
        ["network", "tiny", "--threads", "1", "--memory"],
    ],
    ids=lambda words: words[0],
)
def test_blocking(command: Command, tiny: str, arguments: list[str]) -> None:
    said = harmless(command("blocking", *arguments, "evil.toml"))
    assert said.code == 0, said.err
    if "network" not in arguments:
        assert r"\x1b]0;owned\x07\x1b[31m[bold red]x[/bold red][/] :skull:" in (
            said.out.replace("\n", "").replace("  ", "")
        )


OPTIMIZE = f"blocking optimize --layer {samples.LAYER}"
EMIT = f"blocking emit --layer {samples.LAYER} --string '{samples.STRING}' -o X"
# Commands on a file that has a hostile name, and a sample to put there.
NAMED = [
    ("solve X", "p.csv", ".csv"),
    ("solve X", "t.json", ".json"),
    ("verify X", "p.json", ".json"),
    ("verify p.json X", "t.json", ".json"),
    ("convert p.csv X", "p.csv", ".csv"),
    ("plot X -o x.svg", "p.json", ".json"),
    ("plot X -o x.svg", "t.json", ".json"),
    ("plot p.json -o X", None, ".svg"),
    ("plot p.json -o X", None, ".gif"),
    ("recover X", "p.csv", ".journal"),
    ("record X", None, ".py"),
    ("record -m X", None, ""),
    ("apply X s.py", "b.json", ".json"),
    ("blocking network X", None, ""),
    ("X", None, ""),
    ("blocking optimize --layer X", None, ""),
    (f"{OPTIMIZE} -o X", None, ".json"),
    (f"{OPTIMIZE} --memory X", "m.toml", ".toml"),
    (EMIT, None, ".cpp"),
    (f"blocking evaluate --layer {samples.LAYER} --string X", None, ""),
]


@pytest.mark.parametrize(("line", "sample", "suffix"), NAMED)
def test_names_of_files(
    command: Command, tmp_path: Path, line: str, sample: str | None, suffix: str
) -> None:
    name = NAME + suffix
    if sample is not None:
        shutil.copy(tmp_path / sample, tmp_path / name)
    said = harmless(command(*[word.replace("X", name) for word in shlex.split(line)]))
    assert said.code in (0, 1, 2, 3, 4)
    if (tmp_path / "x.svg").exists():
        drawn(tmp_path / "x.svg")


def test_a_name_that_is_no_text(command: Command, tmp_path: Path) -> None:
    name = "\udcff\udcfe.csv"  # the bytes ff and fe
    shutil.copy(tmp_path / "p.csv", tmp_path / name)
    said = harmless(command("solve", name))
    assert said.code == 0
    assert r"memplan: planned \udcff\udcfe.plan.json" in said.out
    plan = (tmp_path / f"{name[:-4]}.plan.json").read_bytes()
    assert rb'"name": "\\xff\\xfe.csv"' in plan
    assert harmless(command("solve", "missing\udcff")).code == 3
    assert harmless(command("plot", f"{name[:-4]}.plan.json", "-o", "x.svg")).code == 0
    drawn(tmp_path / "x.svg")
