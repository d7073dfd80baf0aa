"""README and docs match the code: their commands, names, links and files exist."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import memplan
from memplan.cli import cli
from tests.conftest import ROOT, Run

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in PAGES}


def blocks(page: str) -> list[str]:
    """The code blocks without a language; a backslash continues a line."""
    joined = re.sub(r" *\\\n\s+", " ", page)
    found = re.findall(r"^```(\w*)\n(.*?)^```$", joined, re.M | re.S)
    return [text for language, text in found if not language]


def readme_commands() -> list[str]:
    """The shell commands of the README after its `make` targets, in order."""
    parts = re.split(r"^(?=memplan |cat )", "".join(blocks(README)[1:]), flags=re.M)
    return [part for part in parts if part]


def commands() -> list[str]:
    """The memplan commands in code blocks of all pages."""
    found: set[str] = set()
    for text in TEXTS.values():
        for block in blocks(text):
            found |= set(re.findall(r"^memplan (\w+ .*?)(?:\s+#.*)?$", block, re.M))
    return sorted(found)


def names(group: click.Group, before: str = "") -> list[str]:
    """All commands; one in a group has the group's name before its own."""
    found = []
    for name in group.list_commands(click.Context(group)):
        inner = group.get_command(click.Context(group), name)
        found.append(before + name)
        if isinstance(inner, click.Group):
            found += names(inner, f"{before}{name} ")
    return found


def command(name: str) -> click.Command:
    found: click.Command | None = cli
    for word in name.split():
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), word)
    assert found is not None, name
    return found


def test_the_readme_shows_every_command() -> None:
    shown = set(re.findall(r"memplan\s+(\w+)", README))
    assert set(cli.list_commands(click.Context(cli))) <= shown


def test_the_readme_names_only_files_that_it_made() -> None:
    made: set[str] = set()
    for line in readme_commands():
        if line.startswith("cat "):
            made.add(line.split()[2])
            continue
        words = shlex.split(line, comments=True)
        for flag, word in itertools.pairwise(words):
            name = word.partition(":")[0]
            if flag in ("-o", "--plot", "--emit"):
                made.add(word)
            elif re.search(r"\.[a-z]+$", name):
                assert name in made, line


@pytest.mark.parametrize(
    "slow", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["memory", "all"]
)
def test_the_readme_runs_in_an_empty_folder(
    slow: bool, memplan: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path / "cache"))
    for line in readme_commands():
        later = re.match(r"memplan (fit|chunk|fuse|compile|blocking|plot)", line)
        if later and not slow:
            continue
        if line.startswith("memplan "):
            done = memplan(*shlex.split(line, comments=True)[1:], cold=slow)
        else:
            words = ["bash", "-ec", line]
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, line + done.stderr


@pytest.mark.parametrize("line", commands())
def test_a_command_on_a_page_parses(line: str) -> None:
    name, *arguments = shlex.split(line)
    if isinstance(command(name), click.Group):
        name, arguments = f"{name} {arguments[0]}", arguments[1:]
    context = command(name).make_context(name, arguments, resilient_parsing=False)
    assert context.params


@pytest.mark.parametrize("name", names(cli))
def test_every_command_has_help_with_an_example(name: str) -> None:
    text = command(name).get_help(click.Context(command(name), info_name=name))
    assert f"Example: memplan {name}" in text or isinstance(command(name), click.Group)
    if " " in name:  # in a group, whose help has the first sentence
        assert command(name).get_short_help_str(200).endswith(".")
    assert max(map(len, text.splitlines())) <= 80


# What the reader of a page has: a program's training, a model and its inputs.
READERS_OWN = """\
import torch

def train(steps: int = 1) -> None: ...

model = torch.nn.Linear(8, 8)
inputs = longest = shorter = torch.ones(4, 8)
head, hidden, ids, targets = model, inputs, inputs.long(), torch.ones(4).long()
"""


def test_python_on_the_pages_type_checks(tmp_path: Path) -> None:
    files = []
    for page, text in TEXTS.items():
        parts = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
        if parts:  # later ones on a page go on with the names of earlier ones
            name = page.removesuffix(".md").replace("/", "_")
            files.append(tmp_path / f"{name}.py")
            files[-1].write_text(READERS_OWN + "".join(parts))
    assert files
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml")]
    options += ["--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", TEXTS)
def test_python_names_on_a_page_are_public(page: str) -> None:
    assert set(re.findall(r"memplan\.(\w+)\(", TEXTS[page])) <= set(memplan.__all__)


@pytest.mark.parametrize("page", TEXTS)
def test_links_and_pictures_on_a_page_are_there(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)(.*?)\)", TEXTS[page]):
        path, _, heading = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if heading:
            assert heading in headings(file.read_text(encoding="utf-8")), target


def headings(text: str) -> set[str]:
    """Link targets: lower case, no punctuation, hyphens for spaces."""
    found = set()
    for line in re.findall(r"^#+ (.*)$", text, re.M):
        kept = re.sub(r"[^\w\- ]", "", line.lower())
        found.add(kept.replace(" ", "-"))
    return found


def test_files_the_readme_names_are_there() -> None:
    for path in re.findall(r"`([\w/.-]+\.(?:md|json|py))`", README):
        assert (ROOT / path).exists() or "/" not in path, path


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_targets_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"(?:^|`)make ([a-z -]+?)(?:\s{2,}|`|;|$)", text, re.M)
    named = {target for line in lines for target in line.split()}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.M))


def test_every_room_is_on_the_architecture_page() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w ]+)` \|", page))
    rooms = {path.name.removesuffix(".py") for path in ROOT.glob("memplan/[a-z]*")}
    assert rooms - {"py.typed"} == {room for name in named for room in name.split()}


def test_the_two_commands_stand_at_the_top() -> None:
    head = README.split("##")[0].split("cat >")[0]
    assert "make demo" in head
    assert "make test" in head
