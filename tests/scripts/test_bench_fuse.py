"""The benchmark of fusing: its records, and the paper's tables and figure of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from memplan.errors import InputError, UsageError

PEERS = ("eager", "channels_last", "compile", "onnxruntime", "openvino")


@pytest.fixture
def bench() -> ModuleType:
    import bench_fuse

    return bench_fuse


def a_record(network: str, batch: int = 8, **changes: Any) -> dict[str, Any]:
    from memplan.fusing.bench.record import record_of
    from memplan.fusing.bench.rounds import Contender

    found = [
        Contender(name, 2.0, [1e-3 * (9 - place)] * 3, 1e-7)
        for place, name in enumerate((*PEERS, "memplan:1", "memplan:5", "memplan"))
    ]
    counts = {"layers": 71, "optimisable": 39, "stacks": 28, "share_of_time": 0.25}
    return {**record_of((network, batch, 1), found), **counts, **changes}


def write(file: Path, *records: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def test_tables_stand_beside_the_papers(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = a_record("vgg19_bn", ratio_to_eager=None, ratio_to_compile=None, ratios={})
    batch_1 = a_record("resnet18", 1, ratio_to_eager=6.5)
    file = write(tmp_path / "runs", other, batch_1, a_record("resnet18"))
    assert bench.main(["--tables", str(file)]) == 0
    shown = capsys.readouterr().out.splitlines()
    # Eager takes 9 ms, the best way of compiling 7, memplan 2.
    assert "| resnet18 | 1 | 6.50 | 3.50 | 1.06 | 4.50 | 3.50 | 1.00 |" in shown
    assert "| vgg19_bn | 1 | – | – | 1.05 | – | – | 1.05 |" in shown
    assert (
        "| resnet18 | 8 | 71 (71) | 39 (39) | 28 (21) | 25.0 % (4.8 %) | 4.50 (1.04) |"
    ) in shown
    assert "over eager: faster on 2 of 2, 4.50 times in the geometric mean" in shown
    assert "over openvino: faster on 2 of 2, 2.50 times in the geometric mean" in shown


def test_every_network_has_the_papers_figures() -> None:
    from bench.fuse_tables import PAPER

    from memplan.fusing.networks import NAMES

    assert tuple(PAPER) == NAMES
    for speedups, (layers, optimised, stacks, share, total) in PAPER.values():
        assert len(speedups) == 3
        assert layers > optimised > stacks
        assert total < share < 17


def test_a_failure_is_in_the_row() -> None:
    from bench.fuse_tables import heading, row

    said = {"failures": {"jax": "a|b"}, "remarks": {"memplan": ["x", "y"]}}
    record = a_record("alexnet", compiled="compile", **said)
    shown = row(record, ("eager", "jax"))
    assert shown.startswith("| alexnet | 8 | 1 | 9.00 | – | 4.50 · 4.50 · 4.50 |")
    assert shown.endswith("compile: compile; memplan: x, y; jax failed: a\\|b |")
    assert (
        shown.replace("\\|", "").count("|") == heading(("eager", "jax")).count("|") / 2
    )


def test_what_is_in_the_file_is_not_measured_again(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measure(keys: list[Any], options: Any) -> Any:
        for network, batch, _ in keys:
            asked.append(network)
            yield a_record(network, batch)

    monkeypatch.setattr(bench, "bench", measure)
    file = write(tmp_path / "runs", a_record("alexnet"))
    with file.open("a") as stream:
        stream.write('{"network": "vgg11", "ba')  # the run was killed here
    run = ["--networks", "alexnet,vgg11", "--batch", "8", "--json-lines", str(file)]
    assert bench.main(run) == 0
    assert asked == ["vgg11"]
    networks = [json.loads(line)["network"] for line in file.read_text().splitlines()]
    assert networks == ["alexnet", "vgg11"]
    assert bench.main(run) == 0
    assert asked == ["vgg11"]


def test_a_file_of_something_else_is_refused(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs"
    file.write_text("no record\n")
    assert bench.main(["--tables", str(file)]) == 1
    assert f"{file}: a line is no record" in capsys.readouterr().err
    assert bench.main(["--tables", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_figure_10_has_a_line_for_each_contender(
    bench: ModuleType, tmp_path: Path
) -> None:
    from bench import fuse_plot

    records = [a_record(f"stack:{n}", 16) for n in (1, 2, 10)]
    file = write(tmp_path / "runs", *records)
    target = tmp_path / "figure10.svg"
    run = ["--stack", "--blocks", "1-2,10", "--json-lines", str(file)]
    pytest.importorskip("torch")
    assert bench.main([*run, "--plot", str(target)]) == 0
    first = target.read_bytes()
    assert bench.main([*run, "--plot", str(target)]) == 0
    assert target.read_bytes() == first
    (axes,) = fuse_plot.figure(records).axes
    assert len(axes.lines) == len(fuse_plot.LINES)
    assert list(axes.lines[0].get_xdata()) == [1, 2, 10]
    assert axes.lines[0].get_ydata() == pytest.approx([9, 9, 9])
    assert axes.get_yscale() == "log"
    heights = sorted(label.xy[1] for label in axes.texts)
    assert all(b / a > 1.01 for a, b in itertools.pairwise(heights))


def test_a_figure_without_stacks_is_refused() -> None:
    from bench import fuse_plot

    with pytest.raises(InputError, match="no records of stacks"):
        fuse_plot.figure([a_record("alexnet")])
    with pytest.raises(UsageError, match="suffix"):
        fuse_plot.check(Path("figure.doc"))


@pytest.mark.torch
def test_first_calls_are_laid_out(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "first"
    run = ["--first-call", "stack:1", "--batch", "1", "--contenders", "eager"]
    assert bench.main([*run, "--json-lines", str(file)]) == 0
    assert "s warm |" in capsys.readouterr().out.splitlines()[-1]
    (entry,) = map(json.loads, file.read_text().splitlines())
    assert entry["network"] == "stack:1"
    assert set(entry["first_calls"]["eager"]) == {"cold", "warm"}


def test_numbers_are_lists_and_ranges(bench: ModuleType) -> None:
    assert bench.numbers("1,8,32") == [1, 8, 32]
    assert bench.numbers("1-3,10") == [1, 2, 3, 10]
    for text in ("", "a", "1-", "1-2-3", "1,,2"):
        with pytest.raises(SystemExit):
            bench.parse_arguments(["--stack", "--blocks", text])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--networks", "vgg12"], "'vgg12' is no network"),
        (["--networks", "vgg11", "--batch", "0"], "a batch of 0"),
        (["--networks", "vgg11", "--contenders", "jax"], "'jax' is no contender"),
        (["--stack", "--blocks", "0"], "a stack has 1 to"),
        (["--first-call", "vgg12"], "'vgg12' is no network"),
    ],
)
def test_what_there_is_not_is_refused_in_a_line(
    bench: ModuleType,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    pytest.importorskip("torch")
    assert bench.main(arguments) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("bench_fuse: ")
    assert error.count("\n") == 1
