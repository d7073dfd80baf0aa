"""memplan chunk: every option, and every way to go wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.chunking.search import Search  # noqa: E402
from memplan.chunking.timing import Machine  # noqa: E402
from memplan.cli import show  # noqa: E402
from memplan.cli.chunk_report import MOST_OF_LINE, place  # noqa: E402
from tests.cli.conftest import Command, OnModel, Said  # noqa: E402

MODEL = """\
import torch
from tests.chunking import models

torch.set_num_threads(1)
def both(): return models.attention(64)
def alone(): return models.attention()[0]
def inputs(): return (torch.randn(1, 64, 16),)
def keywords(): return {"x": torch.randn(1, 64, 16)}
def training(): return models.Attention(), inputs()
class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(16, 4000)
    def forward(self, x, targets):
        return torch.nn.functional.cross_entropy(self.head(x), targets)
def loss(): return Loss(), (torch.randn(256, 16), torch.randint(0, 4000, (256,)))
def branching(): return models.Branching().eval(), inputs()
def opaque(): return models.Opaque().eval(), inputs()
def talks(): print("hello"); return both()
def seeded(): print(float(torch.rand(()))); return both()
def fails(): raise ValueError("not\\n today")
def guarded(): return both() if __name__ != "__main__" else 1 / 0
if __name__ == "__main__":
    raise SystemExit("run as a script")
"""
ANY = ("--max-slowdown", "1e9")


@pytest.fixture
def chunk(on_model: OnModel, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `memplan chunk ARGS` in a folder with m.py."""
    machine = Machine()  # the same everywhere
    monkeypatch.setattr("memplan.chunking.chunk.calibrated", lambda device: machine)
    return on_model("chunk", MODEL)


def result(said: Said, code: int = 0) -> dict[str, Any]:
    assert said.code == code, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_all_outputs(chunk: Command, tmp_path: Path) -> None:
    outputs = ("-o", "p.json", "--emit", "small.py", "--plot", "p.svg")
    said = chunk("m.py:both", "--budget", "30%", *ANY, *outputs)
    assert said.code == 0, said.err
    for words in ("Attention runs in chunks", "% saved", "peak was", "matmul", "m"):
        assert words in said.out
    assert said.err.splitlines() == [
        "memplan: wrote p.json",
        "memplan: drew p.svg",
        "memplan: wrote small.py",
    ]
    plan = memplan.read_chunk_plan(tmp_path / "p.json")
    assert plan.status == "chunked"
    assert "<svg" in (tmp_path / "p.svg").read_text()
    found = result(chunk("m.py:both", "--plan", "p.json", *ANY, "--json"))
    assert (found["status"], found["plan"]) == ("chunked", None)
    assert found["measured_bytes_after"] <= found["budget_bytes"]
    assert found["peak_bytes_after"] < found["peak_bytes_before"]
    assert found["max_relative_error"] <= 1e-5
    assert found["slowdown"] > 0 and found["search_seconds"] > 0
    (region, *_) = found["regions"]
    assert {"first", "last", "dimension", "chunks", "line"} <= set(region)


def test_a_training_step(chunk: Command, tmp_path: Path) -> None:
    said = chunk("m.py:loss", "--train", "--budget", "60%", *ANY, "-o", "p.json")
    assert said.code == 0, said.err
    for words in ("Loss runs in chunks", "step ", "linear .. cross_entropy"):
        assert words in said.out
    assert "estimated" not in said.out
    again = ("m.py:loss", "--train", "--plan", "p.json", *ANY)
    found = result(chunk(*again, "--json"))
    assert found["loss_rows"] == {"head.weight": found["regions"][0]["step"]}
    drawn = chunk(*again, "--plot", "p.svg")
    assert "only a loss runs in chunks, so p.svg was not drawn" in drawn.err
    assert not (tmp_path / "p.svg").exists()
    refused = chunk("m.py:loss", "--train", "--budget", "1KiB", *ANY)
    assert refused.code == 4
    assert "the lowest step found takes" in refused.err
    assert "returns no loss" in chunk("m.py:training", "--train", "--budget", "9%").err


def test_what_is_emitted_runs(
    chunk: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk("m.py:both", "--budget", "30%", *ANY, "--emit", "small_model.py")
    text = (tmp_path / "small_model.py").read_text()
    assert "x: 1×64×16, float32" in text
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = [line[2:].strip() for line in text.splitlines() if line[:3] == "#  "]
    start = lines.index("import small_model")
    end = lines.index("results = small_model.forward(inputs, weights)") + 1
    code = "\n".join(lines[start:end]).replace("grad():\n", "grad():\n  ")
    from tests.chunking import models

    model, x = models.attention(64)
    names: dict[str, Any] = {"torch": torch, "model": model, "inputs": [x]}
    exec(code, names)
    (found,) = names["results"]
    with torch.no_grad():
        torch.testing.assert_close(found, model(x))


def test_inputs_of_their_own(chunk: Command, tmp_path: Path) -> None:
    budget = ("--budget", "1GiB", "--json")
    for inputs in ("inputs", "keywords"):
        said = chunk("m.py:alone", "--inputs", f"m.py:{inputs}", *budget)
        assert result(said)["status"] == "unchanged"
    (tmp_path / "n.py").write_text("from m import inputs\n")
    assert chunk("m.py:alone", "--inputs", "n.py:inputs", *budget).code == 0
    said = chunk("m.py:alone", *budget)
    assert said.code == 2 and "with --inputs" in said.err


def test_it_fits_as_it_is(chunk: Command, tmp_path: Path) -> None:
    outputs = ("--emit", "small.py", "--plot", "p.svg", "-o", "p.json")
    said = chunk("m.py:both", "--budget", "1GiB", *outputs)
    assert said.code == 0
    assert "Attention stays unchanged: it fits the budget" in said.out
    assert "nothing runs in chunks, so p.svg was not drawn" in said.err
    assert "nothing runs in chunks, so small.py was not written" in said.err
    assert memplan.read_chunk_plan(tmp_path / "p.json").status == "unchanged"


def test_parts(chunk: Command, tmp_path: Path) -> None:
    outputs = ("--plot", "p.png", "--emit", "small.py", "-o", "p.json")
    said = chunk("m.py:branching", "--budget", "50%", *ANY, *outputs)
    assert said.code == 3
    rows = json.loads((tmp_path / "p.json").read_text())["regions"]
    assert {row["module"] for row in rows} == {"first", "second"}
    for row in rows:
        assert f"{row['module']}: {row['first']}" in said.out
    assert (tmp_path / "p.png").exists()
    assert "only a model that is exported whole" in said.err
    assert "only parts run in chunks (first, second)" in said.err
    assert not (tmp_path / "small.py").exists()
    assert (tmp_path / "p.json").exists()


def test_a_budget_that_cannot_be_kept(chunk: Command, tmp_path: Path) -> None:
    said = chunk("m.py:both", "--budget", "9KB", *ANY, "-o", "p.json", "--json")
    found = result(said, code=4)
    assert "memplan: no plan found within 8.8 KiB: the lowest found is" in said.err
    assert "models.py:" in said.err and said.err.count("\n") == 1
    assert not (tmp_path / "p.json").exists()
    assert found["status"] == "refused"
    assert found["reason"] in said.err
    assert found["measured_bytes_after"] > 9000


def test_the_closest_plan(chunk: Command, tmp_path: Path) -> None:
    tight = ("m.py:both", "--budget", "9KB", *ANY, "--closest")
    said = chunk(*tight, "-o", "p.json", "--emit", "small.py")
    assert said.code == 4
    assert "runs in chunks" in said.out
    assert "8.8 KiB, not kept" in said.out
    assert "no plan found within 8.8 KiB" in said.err
    assert (tmp_path / "small.py").exists()
    assert chunk("m.py:both", "--plan", "p.json", *ANY).code == 0


def test_too_slow(chunk: Command) -> None:
    said = chunk("m.py:both", "--budget", "30%", "--max-slowdown", "0.001")
    assert said.code == 4
    assert "times as long, above 0.00; raise --max-slowdown" in said.err


def test_what_the_code_prints_is_not_the_result(chunk: Command) -> None:
    said = chunk("m.py:talks", "--budget", "1GiB", "--json")
    assert result(said)["status"] == "unchanged"
    assert "hello" in said.err
    said = chunk("m.py:training", "--budget", "1GiB")
    assert "it is chunked in eval mode" in said.err


def test_random_weights_are_always_the_same(chunk: Command) -> None:
    big = ("--budget", "1GiB")
    assert chunk("m.py:guarded", *big).code == 0
    first, second = (chunk("m.py:seeded", *big).err for _ in range(2))
    assert first == second != ""


def test_threads_and_time(chunk: Command) -> None:
    said = chunk("m.py:both", "--budget", "1GiB", "--threads", "1")
    assert said.code == 0 and torch.get_num_threads() == 1
    said = chunk("m.py:both", "--budget", "30%", *ANY, "--time-limit", "1e-9")
    assert said.code == 4


def test_no_torch(chunk: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    said = chunk("m.py:both", "--budget", "20%")
    assert said.code == 5
    assert "chunking a model needs PyTorch" in said.err


def test_ctrl_c(chunk: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Search.run

    def run(self: Search, budget: int, *rest: Any) -> Any:
        self.done = honest(self, budget, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "run", run)
    said = chunk("m.py:both", "--budget", "30%", *ANY)
    assert said.code == 0
    assert "the search was interrupted" in said.err

    def nothing(self: Search, budget: int, *rest: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "run", nothing)
    said = chunk("m.py:both", "--budget", "30%", *ANY)
    assert said.code == 130
    assert said.err == "memplan: interrupted; there is no result\n"


def test_debug_shows_where(chunk: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan import cli
    from memplan.errors import InputError

    arguments = ["memplan", "--debug", "chunk", "m.py:fails", "--budget", "20%"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(InputError) as raised:
        cli.main()
    assert isinstance(raised.value.__cause__, ValueError)


def test_places_are_cut_from_the_left_if_they_must_be() -> None:
    fits = "x" * MOST_OF_LINE
    assert (place(fits), place("ab" + fits)) == (fits, "…" + fits[1:])


def test_values_that_are_not_kept_are_named() -> None:
    assert show.unkept(["exp", "mul"]) == [("not kept", "exp, mul")]
    lines = show.unkept([f"mul_{i}" for i in range(40)])
    assert lines[0][0] == "not kept" and lines[-1][1].endswith("and 28 more")
