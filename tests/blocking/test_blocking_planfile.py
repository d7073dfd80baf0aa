"""Blocking plan files: what is written is read back, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, parse_layer
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.plan import BlockingPlan, CurvePoint, PlannedLayer, Search
from memplan.blocking.planfile import dump_plan, load_plan, read_plan, write_plan
from memplan.errors import FormatError, InputError, UsageError

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
        (lambda e: e.update(version="1"), "version is '1'"),
        (lambda e: e.pop("budget"), "the file lacks 'budget'"),
        (lambda e: e.update(extra=1), "does not belong there: 'extra'"),
        (lambda e: e.update(budget=-1), "budget is -1, and must be an integer from 0"),
        (lambda e: e.update(memory=3), "memory is 3, and must be text"),
        (lambda e: e.update(layers=[]), "layers is empty"),
        (lambda e: e.update(layers={}), "layers is an object, and must be a list"),
        (lambda e: e.update(layers=[1]), r"layers\[0\] is 1, and must be an object"),
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
        (lambda e: layer_of(e).update(string=["X28"]), r"string is a list"),
        (
            lambda e: layer_of(e).update(unroll={"C": 16, "Q": 2}),
            r"layers\[0\].unroll has a field that does not belong there: 'Q'",
        ),
        (lambda e: layer_of(e).update(unroll={"C": 0}), r"unroll.C is 0"),
        (lambda e: layer_of(e).update(unroll=[]), r"unroll is a list"),
        (lambda e: layer_of(e)["layer"].update(X=-28), r"layers\[0\].layer.X is -28"),
        (lambda e: layer_of(e)["layer"].update(X=28.5), r"layer.X is 28.5"),
        (lambda e: layer_of(e)["layer"].pop("kernel"), r"layer lacks 'kernel'"),
        (lambda e: layer_of(e)["layer"].update(stride=[1]), r"stride has 1 numbers"),
        (lambda e: layer_of(e)["layer"].update(stride=[1, 0]), r"stride\[1\] is 0"),
        (
            lambda e: layer_of(e)["layer"].update(dict.fromkeys("XYCKB", 1 << 20)),
            r"layers\[0\].layer: Conv5 has more than 2\^60 multiplications",
        ),
        (lambda e: layer_of(e).update(energy_pJ=1.0), "is not what the shares add up"),
        (lambda e: layer_of(e).update(energy_pJ=True), "energy_pJ is true"),
        (lambda e: layer_of(e).update(mac_pJ=float("nan")), "mac_pJ is NaN"),
        (lambda e: layer_of(e).update(mac_pJ=float("inf")), "mac_pJ is Infinity"),
        (
            lambda e: layer_of(e)["shares"][0].update(tensor="weights"),
            r"shares\[0\].tensor is 'weights', and none of input, kernel, output",
        ),
        (lambda e: layer_of(e)["shares"][0].update(pJ=-1), r"shares\[0\].pJ is -1"),
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
        (lambda e: layer_of(e)["buffers"][0].update(begin=4), r"begin is 4, .* 0 to 3"),
        (lambda e: layer_of(e)["buffers"][0].update(reads=1.5), r"reads is 1.5"),
        (lambda e: layer_of(e)["search"].update(seconds=None), "seconds is null"),
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
