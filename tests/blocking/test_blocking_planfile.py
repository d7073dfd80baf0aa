"""Plan files, bits and cycles: what is written is read back, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from nest_strategies import nests

from memplan.blocking.cost.evaluation import Evaluation, best_evaluation, evaluate
from memplan.blocking.cost.latency import Latency
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.cost.placement import Share
from memplan.blocking.cost.timed_memories import FrontPoint
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.machine.technology import load_technology
from memplan.blocking.nest.counts import count
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, Tensor, parse_layer
from memplan.blocking.nest.nest import Nest, nest_of, parse_nest
from memplan.blocking.nest.precision import FORMATS, Precision, parse_precision
from memplan.blocking.plan import BlockingPlan, CurvePoint, PlannedLayer, Search
from memplan.blocking.planfile import dump_plan, load_plan, read_plan, write_plan
from memplan.cli.blocking import command as blocking
from memplan.errors import FormatError, InputError, UsageError
from memplan.plotting.blocked import draw_front
from tests.strategies import examples

STRING = "X4 Y7 Fw3 Fh3 X28 K64 C128 Y28 C256 K512"
SEARCH = Search("exact", 0.25, 1.25e9, True)
DIANNAO = Fixed(load_hierarchy("diannao"))


def planned(
    layer: Layer, string: str, unroll: dict[str, int], objective: Objective
) -> PlannedLayer:
    nest = parse_nest(string, layer, unroll)
    return PlannedLayer(evaluate(layer, nest, objective), SEARCH)


def conv5(objective: Objective = DIANNAO) -> PlannedLayer:
    return planned(parse_layer("conv5"), STRING, {"C": 16, "K": 16}, objective)


PLAN = BlockingPlan(
    (conv5(),), "diannao", 1 << 20, (CurvePoint(1 << 20, 65536, 12.5, 1.3e9),)
)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        BlockingPlan((conv5(Codesign()), conv5(Codesign(budget=4096)))),
        BlockingPlan(
            (planned(PAPER_LAYERS["pool"], "Fw2 Fh2 X56 Y56 G128", {}, DIANNAO),),
            "diannao",
        ),
        BlockingPlan((planned(Layer("one", 1, 1, 1, 1), "", {}, Codesign()),)),
        BlockingPlan(
            (
                planned(
                    Layer("big", 1 << 20, 1 << 20, 1 << 10, 1 << 10),
                    "X1048576 Y1048576 C1024 K1024",
                    {},
                    Codesign(),
                ),
            )
        ),
    ],
)
def test_what_is_written_is_read_back(plan: BlockingPlan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    assert read_plan(path) == plan
    first = path.read_bytes()
    with pytest.raises(UsageError, match="exists; pass --force"):
        write_plan(plan, path)
    write_plan(plan, path, force=True)
    assert path.read_bytes() == first


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    entries = json.loads(dump_plan(PLAN))
    change(entries)
    return json.dumps(entries).encode("ascii")


def layer_of(entries: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = entries["layers"][0]
    return entry


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.update(schema="memplan.plan"), "is no blocking plan"),
        (lambda e: e.update(version=2), "of the blocking plan format is newer than 1"),
        (lambda e: e.update(version=True), "version is true"),
        (lambda e: e.pop("budget"), "the file lacks 'budget'"),
        (lambda e: e.update(budget=-1), "budget is -1, and must be an integer from 0"),
        (lambda e: e.update(memory=3), "memory is 3, and must be text"),
        (lambda e: e.update(layers=[]), "layers is empty"),
        (lambda e: e["curve"][0].pop("budget"), r"curve\[0\] lacks 'budget'"),
        (
            lambda e: e["curve"][0].update(area_mm2="big"),
            r"curve\[0\].area_mm2 is 'big', and must be a finite number",
        ),
        (lambda e: layer_of(e).update(count=0), r"layers\[0\].count is 0"),
        (
            lambda e: layer_of(e).update(string="X28"),
            r"layers\[0\].string is no nest of the layer: .* Y ends at 1 of 28",
        ),
        (
            lambda e: layer_of(e).update(unroll={"C": 16, "Q": 2}),
            r"layers\[0\].unroll has a field that does not belong there: 'Q'",
        ),
        (lambda e: layer_of(e).update(unroll={"C": 0}), r"unroll.C is 0"),
        (lambda e: layer_of(e)["layer"].update(X=-28), r"layers\[0\].layer.X is -28"),
        (lambda e: layer_of(e)["layer"].pop("kernel"), r"layer lacks 'kernel'"),
        (lambda e: layer_of(e)["layer"].update(stride=[1]), r"stride has 1 numbers"),
        (
            lambda e: layer_of(e)["layer"].update(dict.fromkeys("XYCKB", 1 << 20)),
            r"layers\[0\].layer: Conv5 has more than 2\^60 multiplications",
        ),
        (lambda e: layer_of(e).update(energy_pJ=1.0), "is not what the shares add up"),
        (lambda e: layer_of(e).update(mac_pJ=float("nan")), "mac_pJ is NaN"),
        (
            lambda e: layer_of(e)["shares"][0].update(tensor="weights"),
            r"shares\[0\].tensor is 'weights', and none of input, kernel, output",
        ),
        (
            lambda e: layer_of(e).update(shares=[], energy_pJ=0),
            r"layers\[0\].shares is empty",
        ),
        (
            lambda e: layer_of(e)["buffers"][1].update(level="nowhere"),
            r"buffers\[1\].level is 'nowhere', and no share is of that level",
        ),
        (
            lambda e: layer_of(e).update(compulsory_pJ=1e300),
            r"layers\[0\].compulsory_pJ is more than energy_pJ",
        ),
        (lambda e: layer_of(e)["buffers"][0].update(end=11), r"end is 11, .* 1 to 10"),
        (lambda e: layer_of(e)["search"].update(method="x" * 70000), "must be text"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        load_plan(changed(change))


def test_other_files_are_refused(tmp_path: Path) -> None:
    for data in (b"[]", b"{}", b"null", b"{", b"\xff", b'{"a": 1, "a": 2}'):
        with pytest.raises(FormatError):
            load_plan(data)
    with pytest.raises(InputError, match="no such file"):
        read_plan(tmp_path / "missing.json")


@given(st.data())
def test_a_file_cut_or_with_a_byte_changed_is_read_or_refused(
    data: st.DataObject,
) -> None:
    whole = dump_plan(PLAN)
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.binary(max_size=1))
    for damaged in (whole[:place], whole[:place] + byte + whole[place + 1 :]):
        try:
            load_plan(damaged)
        except FormatError as error:
            assert "\n" not in str(error)


CORE = {"C": 16, "K": 16}
_SOME = st.sampled_from((1, 3, 4, 8, 12, 16, 32))
BITS = st.builds(Precision, _SOME, _SOME, _SOME, _SOME)


def with_bits(objective: Objective, precision: Precision) -> Objective:
    if isinstance(objective, Codesign):
        return replace(objective, precision=precision)
    return Fixed(objective.hierarchy.at(precision))


@examples(20, nests(window_innermost=False, divisors=False, macs=60), BITS, soak=40)
def test_bits_are_those_of_each_access(nest: Nest, bits: Precision) -> None:
    """Without memories every tile of the datapath comes from main memory."""
    layer, pj = nest.layer, 2.0
    own = Codesign(budget=0, precision=bits)
    own = replace(
        own, curves={t: replace(c, dram_pj=pj) for t, c in own.curves.items()}
    )
    passed = 0
    for tensor, traffic in count(nest).items():
        if tensor is not Tensor.OUTPUT:
            passed += (bits.input if tensor is Tensor.INPUT else bits.kernel) * (
                traffic.demand
            )
    results = layer.X * layer.Y * layer.K * layer.B * layer.G
    sums = 1
    for dim in ("C", "Fw", "Fh"):
        sums *= nest.visits(dim, nest.base(dim))
    for visit in range(sums):  # the same of every result
        passed += results * (bits.output if visit == sums - 1 else bits.partial)
        passed += results * (bits.partial if visit else 0)
    assert own.evaluate(nest) == pytest.approx(passed / 16 * pj, rel=1e-12)


@examples(12, BITS, st.sampled_from(tuple(FORMATS)), soak=30)
def test_plan_files_keep_the_bits(bits: Precision, multiplier: str) -> None:
    bits = replace(bits, multiplier=multiplier)
    layer = parse_layer("conv5")
    nest = parse_nest("X4 Y7 Fw3 Fh3 X28 K64 C128 Y28 C256 K512", layer, CORE)
    found = best_evaluation(layer, nest, with_bits(DIANNAO, bits))
    search = Search("whole", 1.0, None, False)
    plan = BlockingPlan((PlannedLayer(found, search),), "diannao")
    assert load_plan(dump_plan(plan)) == plan


def test_plan_files_of_old_have_16_bits() -> None:
    layer = parse_layer("conv3")
    nest = parse_nest("X4 Y4 Fw4 Fh4 C108 X32 Y32 K200", layer, CORE)
    search = Search("whole", 1.0, None, False)
    plan = BlockingPlan((PlannedLayer(best_evaluation(layer, nest, DIANNAO), search),))
    data = json.loads(dump_plan(plan))
    bits = data["layers"][0].pop("bits")
    assert load_plan(json.dumps(data).encode()) == plan
    for key, value, said in (
        ("multiplier", "int9", "none of"),
        ("input", 0, "in [1, 128]"),
        ("other", 1, "does not belong"),
    ):
        data["layers"][0]["bits"] = bits | {key: value}
        with pytest.raises(FormatError, match="bits"):
            load_plan(json.dumps(data).encode())
        assert said


def test_bits_in_words() -> None:
    assert str(parse_precision("int8")) == "int8"
    assert parse_precision(" fp16 , output=32") == Precision(16, 16, 32, 32, "fp16")
    assert parse_precision("input=8,kernel=4") == Precision(8, 4, 16, 16, "int8")
    assert parse_precision("int8,kernel=12").multiplier == "int16"
    assert parse_precision("kernel=64").multiplier == "int32"
    text = "input=8,kernel=4,partial=16,output=16"
    assert str(parse_precision(text)) == text
    for wrong in ("", "int7", "input=8,input=9", "input=0", "output=129", "8", "a=1"):
        with pytest.raises(UsageError):
            parse_precision(wrong)


ONE = """
[[level]]
name = "L"
private = { input = 0, kernel = "1KiB", output = 512 }
"""
TECHNOLOGY = """
dram_pj = 100
mac_pj = { int8 = 0.05, fp32 = 1.5 }
table = { bytes = [1024, 65536], words = [64, 256], pj = [[1, 0.5], [8, 4]] }
area = { mm2_per_mib = 0.5, datapath_mm2 = 0.25 }
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "own.toml"
        path.write_text(text)
        return str(path)

    return write


def test_files_with_bits_and_energies(written: Callable[[str], str]) -> None:
    given = load_hierarchy(written('bits = "int8"\n' + TECHNOLOGY + ONE))
    assert given.precision == FORMATS["int8"]
    assert (given.mac_pj, given.dram_pj) == (0.05, 100)
    assert given.price(0, Tensor.KERNEL) == pytest.approx(0.5)
    assert given.levels[0].capacity(Tensor.INPUT) == 0
    assert given.nbytes == 1536
    assert given.at(FORMATS["fp32"]).mac_pj == 1.5
    assert given.at(FORMATS["int16"]).mac_pj == 1.0
    own = load_hierarchy(written("bits = { input = 4, kernel = 2 }" + ONE))
    assert own.precision == Precision(4, 2, 16, 16, "int8")
    made = load_technology(Path(written(TECHNOLOGY)))
    curve = made.curves()[Tensor.INPUT]
    assert curve(1024) == pytest.approx(0.5)
    assert curve(8192) == pytest.approx(2**0.5)
    assert curve(262144) == pytest.approx(8)
    assert curve(1) == pytest.approx(0.5)
    assert curve(1 << 30) == 100
    assert made.area.per_mib == 0.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('bits = "int9"' + ONE, "bits cannot be"),
        ("bits = { input = 0 }" + ONE, "bits cannot be"),
        ("bits = { sum = 8 }" + ONE, "does not belong"),
        ("mac_pj = { int4 = 1 }" + ONE, "does not belong"),
        ("table = { bytes = [2, 1], words = [64], pj = [[1], [2]] }" + ONE, "ascend"),
        ("table = { bytes = [1], words = [64], pj = [[1], [2]] }" + ONE, "2 rows"),
        ("table = { bytes = [1], words = [64], pj = [[1, 2]] }" + ONE, "needs 1"),
        ("table = { bytes = [1, 2], words = [9], pj = [[2], [1]] }" + ONE, "falls"),
        ("table = { bytes = [1], words = [64], pj = [[0]] }" + ONE, "above 0"),
        ("area = { mm2_per_mib = 0 }" + ONE, "above 0"),
    ],
)
def test_files_that_are_refused(
    written: Callable[[str], str], text: str, said: str
) -> None:
    with pytest.raises(FormatError, match=said):
        load_hierarchy(written(text))


def test_commands_take_bits(written: Callable[[str], str]) -> None:
    def entries(*arguments: str) -> dict[str, object]:
        result = CliRunner().invoke(blocking, [*arguments, "--json"])
        assert result.exit_code == 0, result.output
        found: dict[str, object] = json.loads(result.stdout)
        return found

    layer = ("--layer", "16,16,6,6,3,3", "--bits", "int8")
    found = entries("optimize", *layer, "--memory", "diannao", "--threads", "1")
    assert found["bits"] == vars(FORMATS["int8"])
    again = entries(
        "evaluate", *layer, "--memory", "diannao", "--string", str(found["string"])
    )
    assert again["energy_pJ"] == found["energy_pJ"]
    assert again["mac_pJ"] == 0.3
    area = ("--technology", written("area = { mm2_per_mib = 1, datapath_mm2 = 7 }"))
    made = entries("codesign", *layer, *area)
    assert made["area_mm2"] == pytest.approx(7 + float(str(made["sram_bytes"])) / 2**20)
    cores = entries("parallel", *layer, "--cores", "1")
    assert cores["string"]
    assert cores["bits"] == vars(FORMATS["int8"])
    wrong = CliRunner().invoke(blocking, ["optimize", *layer, "--bits", "int9"])
    assert isinstance(wrong.exception, UsageError)
    both = ["optimize", *layer, "--memory", "diannao", *area]
    refused = CliRunner().invoke(blocking, both)
    assert isinstance(refused.exception, UsageError)


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
    layer = Layer("one", 1, 1, 1, 10)
    latency = Latency(10, 15.0, {}, 0.0, ())
    shares = (Share("DRAM", Tensor.INPUT, 1, 20.0),)
    chosen = Evaluation(layer, nest_of(layer, [], {"K": 10}), (), shares, 0.0, 0)
    points = [FrontPoint(e, c, "") for e, c in ((30.0, 10), (10.0, 20), (20.0, 15))]
    draw_front(axes, points, replace(chosen, latency=latency))
    (step, dots, drawn) = axes.get_lines()
    assert list(step.get_xdata()) == [10, 15, 20]
    assert list(dots.get_ydata()) == [3.0, 2.0, 1.0]
    assert list(drawn.get_xdata()) == [15]
    assert list(drawn.get_ydata()) == [2.0]
