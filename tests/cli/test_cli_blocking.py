"""`memplan blocking layers` and `evaluate`: every option, every answer and mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.design.network import NETWORKS
from memplan.blocking.machine.hierarchy import load_hierarchy, presets
from memplan.blocking.nest.layer import PAPER_LAYERS, parse_layer
from memplan.blocking.nest.nest import parse_nest
from memplan.cli.blocking import report
from memplan.cli.blocking.meanings import datapath
from tests.cli.conftest import Blocking

STRING = "X4 Y7 Fw3 Fh3 X28 K64 C128 Y28 C256 K512"
CONV5 = ("--layer", "conv5", "--string", STRING, "--unroll", "C16,K16")
SMALL = ("--layer", "4,8,8,8,3,3", "--string", "Fw3 Fh3 X4 Y4 C2 K4 X8 Y8 C4 K8")
SMALL += ("--unroll", "none")
FIXED = """\
title = "two levels"
count_fills = {fills}

[[level]]
name = "near"
private = {{ input = "2KiB", kernel = "32KiB", output = "2KiB" }}

[[level]]
name = "far"
shared = "{far}"
pj = 20.0
"""


def facts(text: str) -> dict[str, str]:
    """The names and values of the first table."""
    rows = (
        line.strip().split("  ", 1)
        for line in text.split("\n\n", maxsplit=1)[0].splitlines()
    )
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}


def table(text: str, title: str) -> dict[str, list[str]]:
    """The rows of the table with this title, by what their first column says."""
    part = text[text.index(title) :].split("\n\n", maxsplit=1)[0]
    rows = (line.replace(" M", "M").split() for line in part.splitlines()[2:])
    return {row[0]: row[1:] for row in rows}


def test_layers_lists_all_there_is(blocking: Blocking) -> None:
    done = blocking("layers")
    assert (done.code, done.err) == (0, "")
    for name in [*PAPER_LAYERS, *NETWORKS, *presets()]:
        assert f"{name} " in done.out or f"{name}:" in done.out
    assert max(map(len, done.out.splitlines())) <= 88
    said = json.loads(blocking("layers", "--json").out)
    assert said["layers"]["conv5"]["macs"] == 28 * 28 * 256 * 512 * 9
    assert [one["name"] for one in said["networks"]["alexnet"]][:2] == [
        "conv1",
        "conv2",
    ]
    private = said["hierarchies"]["diannao"]["levels"][0]["private_bytes"]
    assert private == {"input": 2048, "kernel": 32768, "output": 2048}


def test_evaluate_shows_buffers_and_energy(blocking: Blocking) -> None:
    done = blocking("evaluate", *CONV5, "--memory", "diannao")
    assert (done.code, done.err) == (0, "")
    said = facts(done.out)
    assert said["layer"] == "28 x 28 x 256 -> 512, window 3 x 3"
    assert said["MACs"] == "924,844,032"
    assert said["loops"] == STRING
    assert said["energy"].startswith("12.055 mJ, 13.034 pJ/MAC")
    assert said["compulsory"].startswith("579.67 µJ, 0.62677 pJ/MAC")
    assert said["without it"] == "11.475 mJ, 12.407 pJ/MAC"
    buffers = table(done.out, "Buffers")
    # The kernel's smallest buffer costs as much as it saves, so it is not kept.
    assert list(buffers) == ["IB0", "IB1", "IB2", "KB0", "KB1", "OB0", "OB1", "OB2"]
    assert " ".join(buffers["KB1"]) == "73,728 144.0 KiB 4,718,592 0 1,179,648 0 DRAM"
    energy = table(done.out, "Energy")
    assert list(energy) == ["SRAM", "DRAM", "all"]
    assert energy["all"][3] == "13.0342"


def test_each_buffer_has_a_memory_of_its_own_unless_told(blocking: Blocking) -> None:
    said = blocking("evaluate", *CONV5)
    assert facts(said.out)["memory"] == "each buffer its own"
    assert facts(said.out)["on the chip"] == "732.5 KiB"
    assert {row[-1] for row in table(said.out, "Buffers").values()} == {"own"}
    limited = blocking("evaluate", *CONV5, "--budget", "100KiB")
    assert facts(limited.out)["memory"] == "each buffer its own, 100.0 KiB in all"
    assert {row[-1] for row in table(limited.out, "Buffers").values()} == {
        "own",
        "DRAM",
    }


def test_a_layer_without_weights_has_no_kernel(blocking: Blocking) -> None:
    done = blocking(
        *("evaluate", "--layer", "pool", "--memory", "diannao"),
        *("--string", "Fw2 Fh2 X56 Y56 G128"),
    )
    assert done.code == 0
    assert "kernel" not in done.out.split("Energy")[1]
    assert facts(done.out)["layer"].endswith("128 groups, no weights")


def test_energy_is_divided_by_the_multiplications_needed(blocking: Blocking) -> None:
    # 108 channels take as long as 112, 200 as long as 208; they move no more.
    string = "X8 Y8 Fw4 Fh4 X32 Y32 C112 K208"
    done = blocking(
        *("evaluate", "--layer", "conv3", "--unroll", "C16,K16", "--json"),
        *("--string", string),
    )
    said = json.loads(done.out)
    total = said["energy_codesign_pJ"]["total"]
    macs = 32 * 32 * 108 * 200 * 16
    assert said["energy_codesign_per_mac_pJ"] == pytest.approx(total / macs)
    shown = blocking(
        *("evaluate", "--layer", "conv3", "--unroll", "C16,K16", "--string", string)
    )
    assert facts(shown.out)["datapath"] == "C16,K16 at once, 92.7 % of it used"
    window = ("--unroll", "Fw3", "--string", "Fw6 Fh4 X32 Y32 C108 K200")
    shown = blocking("evaluate", "--layer", "conv3", *window)
    assert facts(shown.out)["datapath"] == "Fw3 at once, 66.7 % of it used"


@pytest.mark.parametrize("fills", ["false", "true"])
def test_a_hierarchy_from_a_file(blocking: Blocking, fills: str) -> None:
    Path("two.toml").write_text(FIXED.format(far="1MiB", fills=fills), encoding="utf-8")
    done = blocking("evaluate", *CONV5, "--memory", "two.toml", "--json")
    said = json.loads(done.out)
    assert list(said["pack"]["accesses"]) == sorted(["near", "far", "DRAM"])
    layer = parse_layer("conv5")
    nest = parse_nest(STRING, layer, {"C": 16, "K": 16})
    found = evaluate(layer, nest, Fixed(load_hierarchy("two.toml")))
    assert found.total == pytest.approx(said["pack"]["total_pJ"], rel=1e-12)
    assert found.sram_bytes == (36 << 10) + (1 << 20)


def test_counts_and_energies_in_words() -> None:
    amounts = {7: "7", 9_999_999: "9,999,999", 10**7: "10.00 M", 999_999_999: "1.00 G"}
    assert {count: report.amount(count) for count in amounts} == amounts
    energies = {0.5: "0.5 pJ", 999.0: "999 pJ", 1.25034e9: "1.2503 mJ", 2e15: "2 kJ"}
    assert {pj: report.energy(pj) for pj in energies} == energies


def test_the_datapath_is_the_same_of_every_command(blocking: Blocking) -> None:
    assert datapath("K8") == {"K": 8}
    assert datapath("none") == {}
    commands = "evaluate optimize codesign network parallel simulate emit"
    for name in commands.split():
        words = " ".join(blocking(name, "--help").out.split())
        assert "[default: C16,K16]" in words


def test_a_datapath_that_idles_is_warned_of(blocking: Blocking) -> None:
    nest = ("--layer", "1,1,14,14,3,3,G64", "--string", "Fw3 Fh3 X14 Y14 G64")
    done = blocking("evaluate", *nest, "--memory", "diannao")
    assert done.err.startswith(
        "memplan: 1,1,14,14,3,3,G64 uses 0.391 % of the datapath"
    )
    alone = blocking("evaluate", *nest, "--memory", "diannao", "--unroll", "none")
    assert alone.err == ""
    energies = [facts(one.out)["energy"] for one in (done, alone)]
    assert energies[0] == energies[1]
