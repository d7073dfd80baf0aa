"""Spatial mappings and several cores, as the blocking commands have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memplan.blocking.nest.array import Array, MappingSearch
from memplan.blocking.planfile import read_plan
from memplan.errors import FormatError
from tests.cli.conftest import Blocking, Command

DEPTHWISE = "1,1,8,8,3,3,G16"
SMALL = "8,16,6,6,3,3"


def test_a_mapping_is_searched_for_and_shown(blocking: Blocking) -> None:
    given = ("optimize", "--layer", DEPTHWISE, "--memory", "diannao")
    found = blocking(*given, "--unroll", "auto")
    assert found.code == 0, found.err
    assert found.err == ""  # at least half of the array is used
    assert " of 16 x 16 used" in found.out
    assert "no better by bounds" in found.out
    assert "proved optimal among all nests and mappings" in found.out
    fixed = json.loads(blocking(*given, "--json").out)
    said = json.loads(blocking(*given, "--unroll", "auto:16x16", "--json").out)
    assert said["energy_pJ"] < fixed["energy_pJ"]
    assert (fixed["mapping"], fixed["utilisation"] < 0.01) == (None, True)
    mapping = said["mapping"]
    assert mapping["sides"] == [16, 16]
    assert mapping["pruned"] + mapping["searched"] == mapping["mappings"]
    assert said["utilisation"] > 0.5
    again = blocking(
        *("evaluate", "--layer", DEPTHWISE, "--memory", "diannao", "--json"),
        *("--string", said["string"]),
        *("--unroll", ",".join(f"{d}{n}" for d, n in said["unroll"].items())),
    )
    assert json.loads(again.out)["energy_pJ"] == pytest.approx(said["energy_pJ"])


def test_what_idles_of_an_array_is_warned_of(blocking: Blocking) -> None:
    found = blocking(
        *("optimize", "--layer", "1,3,2,1", "--memory", "diannao"),
        *("--unroll", "auto:64"),
    )
    assert "1,3,2,1 uses 9.38 % of the datapath X2,K3 on 64 multipliers" in found.err
    alone = blocking(
        *("optimize", "--layer", "1,1,1,1", "--memory", "diannao"),
        *("--unroll", "auto:8"),
    )
    assert "one MAC at once, 12.5 % of 8 multipliers used" in alone.out


def test_of_many_layers_each_has_its_mapping(
    blocking: Blocking, command: Command
) -> None:
    layers = ("--layer", DEPTHWISE, "--layer", SMALL)
    found = blocking(
        *("optimize", *layers, "--memory", "diannao", "--unroll", "auto:4x4"),
        *("-o", "plan.json", "--threads", "1"),
    )
    assert found.code == 0, found.err
    table = found.out.splitlines()[-4:]
    assert table[0] == "Spatial mappings"
    assert table[1].split()[:4] == ["layer", "at", "once", "used"]
    assert [line.split()[0] for line in table[2:]] == [DEPTHWISE, SMALL]
    assert "  mappings  on 4 x 4: best of " in found.out
    assert "  gaps      to the best of all nests and mappings\n" in found.out
    plan = read_plan("plan.json")
    for one in plan.layers:
        assert one.search.mapping is not None
        assert one.search.mapping.array == Array((4, 4))
    assert command("plot", "plan.json", "-o", "plan.svg").code == 0
    drawn = Path("plan.svg").read_text(encoding="utf-8")
    assert "of 4 x 4 used" in drawn


def test_a_plan_whose_mapping_cannot_be(blocking: Blocking) -> None:
    given = ("--layer", "1,3,2,1", "--memory", "diannao", "--unroll", "auto:4")
    assert blocking("optimize", *given, "-o", "plan.json").code == 0
    whole = Path("plan.json").read_text(encoding="utf-8")
    for field, value, message in (
        ("sides", [], "cannot be: an array has 1 to 3 sides"),
        ("sides", [0], "sides[0]"),
        ("mappings", 1, "are fewer than were pruned and searched"),
        ("complete", 1, "complete"),
        ("other", 1, "other"),
    ):
        entries = json.loads(whole)
        entries["layers"][0]["search"]["mapping"][field] = value
        Path("bad.json").write_text(json.dumps(entries), encoding="utf-8")
        with pytest.raises(FormatError) as error:
            read_plan("bad.json")
        assert message in str(error.value), value
    del entries["layers"][0]["search"]["mapping"]  # as of before there were any
    Path("old.json").write_text(json.dumps(entries), encoding="utf-8")
    assert read_plan("old.json").layers[0].search.mapping is None


def test_codesign_and_networks_take_arrays(blocking: Blocking, tiny: str) -> None:
    found = blocking(
        *("codesign", "--layer", "4,4,3,3", "--unroll", "auto:4", "--json"),
        *("--time-limit", "2"),
    )
    assert found.code == 0, found.err
    assert json.loads(found.out)["mapping"]["sides"] == [4]
    many = blocking(
        *("network", tiny, "--memory", "diannao", "--unroll", "auto:2x2"),
        *("--time-limit", "0.5", "--threads", "1"),
    )
    assert many.code == 0, many.err
    assert "Spatial mappings" in many.out


def test_memories_that_slide(blocking: Blocking) -> None:
    given = ("--layer", "16,16,12,12,3,3", "--memory")
    loops = ("--string", "Fw3 Fh3 Y12 X12")
    plain = blocking("evaluate", *given, "diannao", *loops)
    slid = blocking("evaluate", *given, "diannao", *loops, "--sliding")
    assert slid.code == 0, slid.err
    assert "slides on" not in plain.out
    assert "slides on" in slid.out
    assert "output 2.0 KiB), sliding" in slid.out
    Path("mine.toml").write_text(
        '[[level]]\nname = "shift"\nsliding = true\npj = 0.05\n'
        "private = { input = 576, kernel = 512, output = 64 }\n",
        encoding="utf-8",
    )
    found = json.loads(blocking("evaluate", *given, "mine.toml", *loops, "--json").out)
    along = [one["slides_along"] for one in found["buffers"]]
    assert "Y12" in along
    best = json.loads(blocking("optimize", *given, "mine.toml", "--json").out)
    assert best["energy_pJ"] <= found["energy_pJ"]


def test_a_wrong_entry_of_sliding_is_named(blocking: Blocking) -> None:
    Path("mine.toml").write_text(
        '[[level]]\nname = "one"\nshared = 64\nsliding = 1\n', encoding="utf-8"
    )
    done = blocking("optimize", "--layer", SMALL, "--memory", "mine.toml")
    assert done.code == 3
    assert "mine.toml: level 1.sliding" in done.err


def test_what_is_proved_names_the_mappings(blocking: Blocking) -> None:
    given = ("--layer", SMALL, "--memory", "diannao")
    large = blocking("optimize", *given, "--unroll", "auto:512x512")
    assert " all nests and mappings that fill a side\n" in large.out
    divided = blocking("optimize", *given, "--unroll", "auto:4", "--method", "divisors")
    assert "mappings and nests of divisors, window in one piece" in divided.out


def test_what_became_of_mappings_in_words() -> None:
    from memplan.cli.blocking.report import mapping_text

    found = MappingSearch(Array(), 1200, 1000, 150, complete=False)
    text = "best of 1,200 that fill a side: 150 searched, 1,000 no better by bounds"
    assert mapping_text(found) == text + ", 50 left open"
