"""memplan compile: what it prints, and the plan that it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memplan.units import parse_bytes  # noqa: E402
from tests.cli.conftest import Command, OnModel  # noqa: E402

MODEL = """\
import torch
from torch import nn
from tests.chunking import models

torch.set_num_threads(1)
def both(): return models.attention(64)
def alone(): return models.attention()[0]
def inputs(): return (torch.randn(1, 64, 16),)
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = models.attention(64)[0]
    def forward(self, x):
        y = self.inner(x)
        return y if y.sum() > 0 else -y
def odd(): return Odd().eval(), (torch.randn(1, 64, 16),)
def tiny(): return nn.ReLU().eval(), (torch.randn(2),)
"""
ANY = ("--max-slowdown", "1e9")


@pytest.fixture
def compiled(on_model: OnModel) -> Command:
    """Runs `memplan compile ARGS` in a folder with m.py."""
    return on_model("compile", MODEL)


def test_the_plan_is_written_and_verifies(compiled: Command, command: Command) -> None:
    said = compiled("m.py:both", *ANY, "-o", "arena.json")
    assert said.code == 0, said.err
    assert "wrote arena.json" in said.err
    assert "lower bound" in said.out or "proved minimal" in said.out
    assert re.search(r"fullest in +\w+ at .*\.py:\d+", said.out), said.out
    assert command("verify", "arena.json").code == 0
    again = compiled("m.py:both", *ANY, "-o", "arena.json")
    assert again.code != 0
    assert "exists" in again.err


def test_the_result_as_json(compiled: Command, tmp_path: Path) -> None:
    arguments = ("m.py:alone", "--inputs", "m.py:inputs", *ANY, "--json")
    said = compiled(*arguments, "-o", "arena.json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert (found["schema"], found["output"]) == ("memplan.compile", "arena.json")
    written = json.loads((tmp_path / "arena.json").read_text())
    assert found["plan"]["peak"] == written["peak"] >= found["plan"]["lower_bound"]
    assert found["bytes_after"] <= found["bytes_before"]


def test_the_front_is_a_table(compiled: Command) -> None:
    said = compiled("m.py:both", "--front")
    assert said.code == 0, said.err
    title, head, own, *rows = said.out.splitlines()
    assert title.startswith("memplan: Attention, ")
    assert title.endswith(" a call, and the measured plans that no other beats")
    assert head.split() == ["activations", "share", "time", "loops", "not", "kept"]
    assert "100 %" in own
    assert "1.00" in own
    assert rows
    needed = [parse_bytes(" ".join(row.split()[2:4])) for row in rows]
    assert needed == sorted(needed, reverse=True)


def test_the_front_as_json(compiled: Command) -> None:
    said = compiled("m.py:both", "--front", "--json")
    found = json.loads(said.out)
    assert found["schema"] == "memplan.front"
    assert min(each["bytes_after"] for each in found["front"]) < found["bytes_before"]


def test_the_levels_are_a_table_and_a_picture(
    compiled: Command, tmp_path: Path
) -> None:
    said = compiled("m.py:both", *ANY, "--levels", "--plot", "l.svg")
    assert said.code == 0, said.err
    assert "drew l.svg" in said.err
    assert (tmp_path / "l.svg").read_bytes().startswith(b"<?xml")
    title = "each pass on top of those above it"
    head, own, first, *others = said.out.partition(title)[2].splitlines()[1:]
    assert head.split() == ["activations", "share", "requests", "time"]
    assert own.split()[:2] == ["the", "model"]
    assert own.split()[-1] == "1.00"
    assert first.startswith("one arena ")
    assert others
    for options, why in (
        (("--levels", "--plot", "l.svg"), "l.svg exists"),
        (("--plot", "m.svg"), "add --levels"),
        (("--levels", "--plot", "m.txt"), ".txt"),
    ):
        said = compiled("m.py:both", *ANY, *options)
        assert said.code == 2
        assert why in said.err


def test_the_levels_as_json(compiled: Command) -> None:
    said = compiled("m.py:both", *ANY, "--levels", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["levels"][0]["name"] == "one arena"
    assert found["levels"][-1]["bytes_after"] == found["bytes_after"]
    assert compiled("m.py:tiny", "--levels").code == 4


def test_a_program_is_written(compiled: Command, tmp_path: Path) -> None:
    said = compiled("m.py:both", *ANY, "--emit", "p.py", "-o", "arena.json")
    assert said.code == 0, said.err
    assert "wrote p.py and p.pt" in said.err
    assert "wrote arena.json" in said.err
    assert "import memplan" not in (tmp_path / "p.py").read_text()
    assert (tmp_path / "p.pt").exists()
    again = compiled("m.py:both", *ANY, "--emit", "p.py")
    assert again.code != 0
    assert "exists" in again.err
    forced = compiled("m.py:both", *ANY, "--emit", "p.py", "--force", "--json")
    found = json.loads(forced.out)["emitted"]
    assert (found["path"], found["weights"]) == ("p.py", "p.pt")
    assert found["bytes_after"] > 0
    assert found["slowdown"] > 0


def test_a_program_that_is_not_written(compiled: Command, tmp_path: Path) -> None:
    for name in ("tiny", "odd"):
        said = compiled(f"m.py:{name}", *ANY, "--emit", "p.py")
        assert said.code == 0, said.err
        assert "so p.py was not written" in said.err
    for others in (("--pack",), ("--reuse-outputs",), ("--levels",), ("--front",)):
        said = compiled("m.py:tiny", "--emit", "p.py", *others)
        assert said.code == 2
        assert "it does not go with" in said.err
    said = compiled("m.py:tiny", "--emit", "p.txt")
    assert said.code == 2
    assert "ends in .py" in said.err
    assert not list(tmp_path.glob("p.*"))


@pytest.mark.parametrize(
    "other", [("--budget", "50%"), ("-o", "arena.json"), ("--levels",)]
)
def test_a_front_has_many_plans(compiled: Command, other: tuple[str, ...]) -> None:
    said = compiled("m.py:tiny", "--front", *other)
    assert said.code == 2
    assert "--front lists many plans" in said.err


def test_parts_of_a_model_are_a_table(compiled: Command, tmp_path: Path) -> None:
    said = compiled("m.py:odd", *ANY, "-o", "arena.json")
    assert said.code == 0, said.err
    assert said.out.startswith("memplan: Odd runs, 1 of its parts in one arena")
    assert "torch.export cannot take this model" in said.out
    assert said.out.splitlines()[-1].startswith("inner ")
    assert "its parts have a plan each, so arena.json was not written" in said.err
    assert not (tmp_path / "arena.json").exists()
    found = json.loads(compiled("m.py:odd", *ANY, "--json").out)
    assert [each["path"] for each in found["parts"]] == ["inner"]
    assert (found["status"], found["plan"]) == ("compiled", None)


def test_a_search_that_is_cut_off_says_so(compiled: Command) -> None:
    said = compiled("m.py:both", *ANY, "--budget", "4200", "--time-limit", "1e-9")
    assert said.code == 4
    assert "the search ended at its time limit of 1e-09 s" in said.err
    whole = compiled("m.py:both", *ANY, "--budget", "4200")
    assert whole.code == 4
    assert "time limit" not in whole.err
    assert compiled("m.py:both", "--time-limit", "0").code == 2


def test_a_limit_of_time_is_a_number(compiled: Command) -> None:
    said = compiled("m.py:tiny", "--max-slowdown", "nan")
    assert said.code == 2
    assert "'nan' is not a number" in said.err


def test_a_model_that_gains_nothing_runs_unchanged(
    compiled: Command, tmp_path: Path
) -> None:
    said = compiled("m.py:tiny", "-o", "arena.json")
    assert said.code == 0, said.err
    assert "stays unchanged" in said.out
    assert "arena.json was not written" in said.err
    assert not (tmp_path / "arena.json").exists()
