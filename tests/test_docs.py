"""The README cannot rot: its commands, names and files are there."""

from __future__ import annotations

import re
import shlex

import click
import pytest

import memplan
from memplan.cli import cli
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"^memplan (\w+ .*?)(?:\s{2,}#.*)?$", README, re.M)))


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None, name
    return found


def test_the_readme_shows_every_command() -> None:
    listed = set(cli.list_commands(click.Context(cli)))
    assert listed <= set(re.findall(r"memplan (\w+)", README))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_in_the_readme_parses(line: str) -> None:
    name, *arguments = shlex.split(line)
    context = command(name).make_context(name, arguments, resilient_parsing=False)
    assert context.params


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command_has_help_with_an_example(name: str) -> None:
    text = command(name).get_help(click.Context(command(name), info_name=name))
    assert "Example: memplan " + name in text
    assert max(map(len, text.splitlines())) <= 80


def test_python_names_in_the_readme_are_public() -> None:
    assert set(re.findall(r"memplan\.(\w+)\(", README)) <= set(memplan.__all__)


def test_files_the_readme_names_are_there() -> None:
    for path in re.findall(r"!\[.*?\]\((.*?)\)|`([\w/]+\.(?:md|json|py))`", README):
        assert (ROOT / next(filter(None, path))).exists(), path


def test_the_two_commands_stand_at_the_top() -> None:
    head = README.split("##")[0]
    assert "make demo" in head
    assert "make test" in head
