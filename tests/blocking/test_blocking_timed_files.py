"""Cycles in files, plans, commands and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from memplan.blocking.cost.evaluation import best_evaluation
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.layer import Tensor, parse_layer
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.plan import BlockingPlan, PlannedLayer, Search
from memplan.blocking.planfile import dump_plan, load_plan, read_plan
from memplan.cli.blocking import command as blocking
from memplan.errors import FormatError, UsageError
from memplan.plotting.blocked import TimedPoint, draw_front

TIMED = """
bits = "int8"
dram_pj = 160.0
dram_bandwidth = 4
[[level]]
name = "near"
private = { input = 256, kernel = "2KiB", output = 256 }
bandwidth = { input = 16, kernel = 64, output = 32 }
ports = 2
double_buffered = true
[[level]]
name = "far"
shared = "16KiB"
bandwidth = 16
"""


@pytest.fixture
def timed_file(tmp_path: Path) -> str:
    path = tmp_path / "timed.toml"
    path.write_text(TIMED)
    return str(path)


def test_a_stall_of_the_datapaths_own_accesses_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(TIMED.replace("{ input = 16,", "{ input = 0.01,"))
    layer = ("--layer", "16,16,6,6,3,3", "--string", "Fw3 Fh3 X6 Y6")
    command = ["evaluate", *layer, "--memory", str(path)]
    done = CliRunner().invoke(blocking, command)
    assert "most for      a step's own operands and sums: " in done.output
    told = done.output[: done.output.index("\n\n")].splitlines()
    assert max(map(len, told)) <= 80
    entries = json.loads(CliRunner().invoke(blocking, [*command, "--json"]).stdout)
    stalls = entries["latency"]["stalls"]
    assert max(stalls, key=lambda name: stalls[name]) == "datapath"


def test_what_the_file_says_of_time(timed_file: str, tmp_path: Path) -> None:
    near, far = load_hierarchy(timed_file).levels
    assert near.capacity(Tensor.KERNEL) == 1024
    assert near.nbytes(Tensor.KERNEL) == 2048
    assert (near.ports, far.ports) == (2, 1)
    assert near.bandwidth[Tensor.OUTPUT] == 32
    assert set(far.bandwidth.values()) == {16.0}
    for text, said in (
        ("bandwidth = 16\n", "bandwidth = 0\n"),
        ("bandwidth = 16\n", "bandwidth = { input = 1, kernel = 1, output = 2 }\n"),
        (", output = 32 }", "}"),
        ("ports = 2", "ports = 3"),
        ("double_buffered = true", "double_buffered = 2"),
        ("dram_bandwidth = 4", "dram_bandwidth = -1"),
    ):
        wrong = tmp_path / "wrong.toml"
        wrong.write_text(TIMED.replace(text, said))
        with pytest.raises(FormatError, match=r"bandwidth|ports|double"):
            load_hierarchy(str(wrong))


def test_commands_minimize_time(timed_file: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    shared = ["--layer", "16,32,8,8,3,3", "--memory", timed_file]
    asked = ["optimize", *shared, "--minimize", "edp", "--front", "--threads", "1"]
    done = CliRunner().invoke(blocking, [*asked, "-o", str(plan), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["minimized"] == "edp"
    assert found["lower_bound"] <= found["edp_pJ_cycles"] * (1 + 1e-9)
    assert found["lower_bound_pJ"] is None
    assert found["front"]
    nest = ["--string", found["string"], "--minimize", "edp"]
    done = CliRunner().invoke(blocking, ["evaluate", *shared, *nest, "--json"])
    again = json.loads(done.stdout)
    assert again["latency"] == found["latency"]
    assert again["energy_pJ"] == found["energy_pJ"]
    held = read_plan(plan)
    assert held.cycles == found["latency"]["cycles"]
    assert load_plan(dump_plan(held)) == held
    (one,) = held.layers
    assert one.gap == pytest.approx(found["gap"])
    assert one.search.lower_bound == found["lower_bound"]
    text = CliRunner().invoke(blocking, ["evaluate", *shared, *nest]).output
    assert "bytes/cycle" in text
    assert "energy-delay" in text
    report = CliRunner().invoke(blocking, asked).output
    assert "Between least energy and fewest cycles" in report
    assert "least edp" in report
    refused = CliRunner().invoke(
        blocking, ["optimize", "--layer", "conv3", "--minimize", "cycles"]
    )
    assert isinstance(refused.exception, UsageError)
    refused = CliRunner().invoke(blocking, ["optimize", "--layer", "conv3", "--front"])
    assert isinstance(refused.exception, UsageError)
    assert "a front takes a hierarchy" in str(refused.exception)


def test_several_layers_have_cycles(timed_file: str) -> None:
    asked = ["optimize", "--layer", "8,8,4,4,3,3", "--layer", "8,16,4,4"]
    asked += ["--memory", timed_file, "--minimize", "cycles", "--threads", "1"]
    found = json.loads(CliRunner().invoke(blocking, [*asked, "--json"]).stdout)
    lines = CliRunner().invoke(blocking, [*asked, "--front"]).output.splitlines()
    assert any(line.startswith("  gaps") and "of cycles, to" in line for line in lines)
    head = next(line.split() for line in lines if line.startswith("layer "))
    assert "cycles" in head
    row = next(line.split() for line in lines if line.startswith("8,8,4,4,3,3 "))
    layers = found["layers"]
    assert f"{layers[0]['latency']['cycles']:,.0f}" in row[5:]
    fronts = [line for line in lines if "Between least energy and fewest" in line]
    assert [line.split(": ")[0] for line in fronts] == ["8,8,4,4,3,3", "8,16,4,4"]
    assert found["cycles"] == sum(one["latency"]["cycles"] for one in layers)
    for one in layers:
        assert one["lower_bound"] <= one["latency"]["cycles"] * (1 + 1e-9)


def test_plans_with_wrong_times_are_refused(timed_file: str) -> None:
    layer = parse_layer("16,32,8,8,3,3")
    machine = Fixed(load_hierarchy(timed_file))
    nest = parse_nest("Fw3 Fh3 X8 Y8 C16 K32", layer)
    found = best_evaluation(layer, nest, machine)
    plan = BlockingPlan((PlannedLayer(found, Search("whole", 1.0, None, False)),))
    assert load_plan(dump_plan(plan)) == plan
    for path, value in (
        (("steps",), 0),
        (("cycles",), 1),
        (("stalls",), []),
        (("ports", 0, "way"), "up"),
        (("ports", 0, "bandwidth"), 0),
        (("ports", 0, "tensor"), "bias"),
    ):
        data = json.loads(dump_plan(plan))
        at = data["layers"][0]["latency"]
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        with pytest.raises(FormatError, match="latency"):
            load_plan(json.dumps(data).encode())
    data = json.loads(dump_plan(plan))
    data["layers"][0]["search"]["minimized"] = "area"
    with pytest.raises(FormatError, match="minimized"):
        load_plan(json.dumps(data).encode())


def test_the_front_is_drawn() -> None:
    figure = Figure()
    axes = figure.add_subplot()
    points = [TimedPoint(10, 3.0), TimedPoint(20, 1.0), TimedPoint(15, 2.0)]
    draw_front(axes, points, TimedPoint(15, 2.0))
    (step, dots, chosen) = axes.get_lines()
    assert list(step.get_xdata()) == [10, 15, 20]
    assert list(dots.get_ydata()) == [3.0, 2.0, 1.0]
    assert list(chosen.get_xdata()) == [15]
