"""`memplan fit`: what it says of the program's flag, its failures, and its plateau."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from memplan.cli import fit
from memplan.errors import as_options
from memplan.recording.fake_values import WITH_VALUES
from memplan.recording.forking import ForkServer
from memplan.recording.target import Target
from memplan.recording.trial import ProgramFailedError, Trial
from memplan.units import parse_memory
from tests.conftest import Command, Run, Said

Sizes = Callable[[int], tuple[int, int]]
Fit = Callable[..., tuple[str, dict[str, object]]]

ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--lr", type=float)
parser.parse_args()
"""


@pytest.fixture
def fitted(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Sizes, str], tuple[str, dict[str, object]]]:
    """What `fit` prints, as text and as JSON, of a program whose peak, and the bytes of
    all its allocations, are a function of the flag."""

    def run(sizes: Sizes, values: str) -> tuple[str, dict[str, object]]:
        def trial(
            server: ForkServer,
            target: Target,
            device: str,
            steps: int,
            activations: bool = False,
        ) -> Trial:
            peak, allocated = sizes(int(target.arguments[-1]))
            return Trial(peak, 0, False, (), None, allocated)

        monkeypatch.setattr(fit, "trial", trial)
        (tmp_path / "train.py").touch()
        words = ("fit", "--capacity", "1GiB", "--vary", f"batch-size={values}")
        text, as_json = (
            command(*words, "train.py"),
            command(*words, "--json", "train.py"),
        )
        assert (text.code, as_json.code) == (0, 0)
        return text.out, json.loads(as_json.out)

    return run


def test_fit_says_where_the_peak_stops_to_change(fitted: Fit) -> None:
    text, found = fitted(lambda n: (min(n, 200) << 10, min(n, 200) << 11), "1..4096")
    assert text.startswith("--batch-size 200 to 4096 fit alike (")
    said = "from --batch-size 200 on the peak does not change: 200.0 KiB at all "
    assert said in text
    assert "nor do the bytes of all allocations together: the program may not" in text
    assert found["answer"] == 4096
    assert found["plateau"] == {"value": 200, "bytes": 200 << 10, "unused": True}


def test_fit_says_that_nothing_depends_on_the_flag(fitted: Fit) -> None:
    text, found = fitted(lambda n: (5 << 10, 7 << 10), "1..64")
    assert text.startswith("--batch-size 1 to 64 fit alike (4 recordings")
    same = "the peak does not depend on --batch-size: 5.0 KiB at all 4 recorded values"
    assert same in text
    assert "the program may ignore it" in text
    assert found["answer"] == 64
    assert found["plateau"] == {"value": 1, "bytes": 5 << 10, "unused": True}


def test_fit_does_not_say_that_a_flag_is_ignored_where_others_change(
    fitted: Fit,
) -> None:
    text, found = fitted(lambda n: (5 << 10, n << 10), "1..64")
    assert "the peak does not depend on --batch-size: 5.0 KiB" in text
    assert "but the bytes of all allocations together do" in text
    assert "may" not in text
    assert found["answer"] == 64


def test_fit_names_the_values_where_memory_shrinks(fitted: Fit) -> None:
    text, found = fitted(lambda n: ((n if n < 20 else 5) << 10, n), "1..64")
    assert "--batch-size 20 takes less memory than --batch-size 19\n" in text
    assert found["steady"] is False


USAGE = "usage: train.py [-h] [--batch-size BATCH_SIZE] [--lr LR]\n"
UNKNOWN = f"{USAGE}train.py: error: unrecognized arguments: "
SUGGESTED = "it mentions --batch-size: write --vary batch-size=1..64"


@pytest.fixture
def failing(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Said]:
    """Runs `fit` on a program that fails from a value on, and says something."""

    def run(said: str, *words: str, code: int = 2, first: int = 0) -> Said:
        def trial(
            server: ForkServer,
            target: Target,
            device: str,
            steps: int,
            activations: bool = False,
        ) -> Trial:
            if int(target.arguments[-1]) < first:
                return Trial(64, 0, False, (), None, 64)
            last = said.splitlines()[-1].removeprefix("memplan: ")
            raise ProgramFailedError(f"train.py ended with {code}: {last}", code, said)

        monkeypatch.setattr(fit, "trial", trial)
        (tmp_path / "train.py").write_text("ARGUMENTS = ['--width']\n")
        return command("fit", "-q", "--capacity", "1GiB", *words)

    return run


@pytest.mark.parametrize(
    ("said", "flag", "advice"),
    [
        (f"{UNKNOWN}--batch_size 1", "batch_size", SUGGESTED),
        (f"{UNKNOWN}--out x --batch_size 1", "batch_size", SUGGESTED),
        (f"{USAGE}Error: No such option: --batch", "batch", SUGGESTED),
        (f"{USAGE}Error: No such option '--batch'", "batch", SUGGESTED),
        ("Error: No such option: --widths", "widths", "it mentions --width: write"),
        (f"{UNKNOWN}--seed 1", "seed", "write {seed} among its arguments where"),
    ],
    ids=["argparse", "others", "click", "quoted", "source", "none"],
)
def test_fit_names_the_flag_that_the_program_knows(
    failing: Callable[..., Said], said: str, flag: str, advice: str
) -> None:
    done = failing(said, "--vary", f"{flag}=1..64", "train.py")
    assert (done.code, done.out) == (2, "")
    assert f"memplan: train.py does not know --{flag}; {advice}" in done.err


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (f"{UNKNOWN}--batch_size_2 3", 2),
        (f"{UNKNOWN}--lr2 --batch_size", 1),
        ("train.py: error: argument --batch_size: invalid int value", 2),
    ],
    ids=["another", "another code", "known"],
)
def test_fit_leaves_other_mistakes_to_the_program(
    failing: Callable[..., Said], said: str, code: int
) -> None:
    done = failing(said, "--vary", "batch_size=1..64", "train.py", code=code)
    assert (done.code, done.out) == (125, "")
    assert done.err.endswith(f"train.py ended with {code}: {said.splitlines()[-1]}\n")


def test_fit_says_up_to_which_value_the_program_ran(
    failing: Callable[..., Said],
) -> None:
    varied = ("--vary", "n=1..9", "train.py", "{n}")
    done = failing("AssertionError: no", *varied, code=1, first=5)
    assert (done.code, done.out) == (125, "")
    assert "ended with 1: AssertionError: no; it ran with -n 2: name a" in done.err
    assert "name a range that ends below 9\n" in done.err


def test_fit_gives_advice_that_fit_can_follow(failing: Callable[..., Said]) -> None:
    varied = ("--vary", "n=1..9", "train.py", "{n}")
    done = failing(f"memplan: x.py:3: a size; {as_options(WITH_VALUES)}", *varied)
    assert "a size; measure a real run: memplan record --device cpu\n" in done.err


@pytest.mark.torch
def test_a_program_without_a_gpu_is_for_fit_on_the_cpu(
    memplan: Run, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(3)\n")
    done = memplan("fit", "--capacity", "1GiB", "--device", "cuda", "train.py")
    assert done.returncode == 125
    said = "allocated nothing on the GPU; use --device cpu\n"
    assert done.stderr.endswith(said)


@pytest.mark.torch
def test_fit_reads_what_argparse_says(memplan: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(ARGPARSE)
    options = ("--capacity", "1GiB", "--vary", "batch_size=1..64")
    done = memplan("fit", *options, "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"does not know --batch_size; {SUGGESTED}\n" in done.stderr


@pytest.mark.parametrize(
    ("words", "bare"),
    [
        (("fit", "--capacity", "24", "train.py"), 24),
        (("fit", "--capacity", "1GiB", "--beside", "512", "train.py"), 512),
        (("record", "--device", "fake:cuda:24", "train.py"), 24),
        (("chunk", "--budget", "24", "model.py:factory"), 24),
    ],
    ids=["capacity", "beside", "GPU", "chunk"],
)
def test_a_few_bytes_of_memory_need_a_unit(
    command: Command, tmp_path: Path, words: tuple[str, ...], bare: int
) -> None:
    (tmp_path / "train.py").touch()
    said = command(*words)
    assert (said.code, said.out) == (2, "")
    assert f"{bare} has no unit; write {bare}GiB, {bare}MiB, or {bare}B for" in said.err


def test_a_size_in_bytes_needs_no_unit_where_it_can_be_one() -> None:
    assert [parse_memory(text) for text in ("0", "24B", "1024", "1k")] == [
        *(0, 24, 1024, 1024)
    ]
