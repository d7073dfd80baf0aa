"""Bits of the elements: counted one by one, against all nests, in files and options."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import strategies as st
from nest_strategies import nests

from memplan.blocking.cost.evaluation import best_evaluation
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.machine.technology import load_technology
from memplan.blocking.nest.counts import count
from memplan.blocking.nest.layer import Tensor, parse_layer
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.nest.precision import FORMATS, Precision, parse_precision
from memplan.blocking.plan import BlockingPlan, PlannedLayer, Search
from memplan.blocking.planfile import dump_plan, load_plan
from memplan.cli.blocking import command as blocking
from memplan.errors import FormatError, UsageError
from tests.strategies import examples

CORE = {"C": 16, "K": 16}
_SOME = st.sampled_from((1, 3, 4, 8, 12, 16, 32))
BITS = st.builds(Precision, _SOME, _SOME, _SOME, _SOME)
DIANNAO = Fixed(load_hierarchy("diannao"))


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


def test_half_the_bits_take_half() -> None:
    """Where every memory is half as large, too, all else is the same."""
    layer = parse_layer("48,64,14,14,3,3")
    nest = parse_nest("X7 Fw3 Fh3 Y14 C48 X14 K64", layer, CORE)
    prices = dict.fromkeys(Tensor, 1.0)
    (level,) = DIANNAO.hierarchy.levels
    wide = replace(level, pj=prices)
    sizes = {t: level.nbytes(t) // 2 for t in Tensor}
    narrow = replace(level, pj=prices, private_bytes=sizes)
    full = Fixed(replace(DIANNAO.hierarchy, levels=(wide,)))
    half = Fixed(
        replace(DIANNAO.hierarchy, levels=(narrow,), precision=Precision(8, 8, 8, 8))
    )
    first, second = (
        best_evaluation(layer, nest, full),
        best_evaluation(layer, nest, half),
    )
    assert second.total == first.total / 2
    assert [b.nbytes * 2 for b in second.buffers] == [b.nbytes for b in first.buffers]


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
