"""The blocking commands that search, simulate and write code, and their plans."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from memplan.blocking.planfile import read_plan
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Result, SearchProgress
from memplan.cli.blocking.meanings import describe
from tests.cli.conftest import Blocking, Command

SMALL = "8,16,6,6,3,3"
STRING = "Fw3 Fh3 C8 X6 K16 Y6"
MODEL = """\
import torch

def tiny():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 8, 3), torch.nn.Conv2d(8, 8, 3, padding=1),
        torch.nn.Conv2d(8, 8, 3, padding=1),
    )
    return model, (torch.zeros(2, 3, 14, 14),)
"""


@pytest.mark.parametrize(
    ("method", "memory"),
    [("divisors", []), ("whole", ["--memory", "diannao"]), ("whole", ["--budget=1k"])],
)
def test_optimize_says_what_it_found(
    blocking: Blocking, method: str, memory: list[str]
) -> None:
    layer = ("--layer", SMALL, "--unroll", "C8,K8", *memory, "--json")
    done = blocking("optimize", *layer, "--method", method)
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["gap"] >= 0
    if method == "divisors":
        assert (said["proved_optimal"], said["gap"]) == (True, 0)
        assert said["space"] == "divisors, window in one piece"
    else:
        assert said["space"] == "whole"
    assert said["seconds"] > 0
    again = json.loads(blocking("evaluate", *layer, "--string", said["string"]).out)
    for found in (said, again):
        assert found["energy_per_mac_pJ"] == found["energy_pJ"] / (6 * 6 * 8 * 16 * 9)
        assert {"name", "bytes", "reads", "level"} <= set(found["buffers"][0])
    assert again["energy_pJ"] == pytest.approx(said["energy_pJ"], rel=1e-9)
    assert again["sram_bytes"] == said["sram_bytes"]
    shares = sum(share["pJ"] for share in said["energy"])
    assert shares == pytest.approx(said["energy_pJ"], rel=1e-9)


def test_a_gap_that_is_unknown_says_why(blocking: Blocking) -> None:
    why = "the datapath does not divide all sizes"
    odd, even = ("--layer", "8,10,6,6,3,3"), ("--layer", "8,16,6,6,3,3")
    on = ("--unroll", "C8,K8", "--method", "divisors")
    alone = blocking("optimize", *odd, *on)
    assert f"gap unknown: {why}" in " ".join(alone.out.split())
    both = blocking("optimize", *odd, *even, *on, "--threads", "1").out
    assert "  gaps     to the best of nests of divisors, window in one piece\n" in both
    assert f"  unknown  {why}\n" in both


def test_a_plan_is_written_read_and_drawn(blocking: Blocking, command: Command) -> None:
    how = ("--unroll", "C8,K16", "--method", "divisors")
    done = blocking("optimize", "--layer", SMALL, *how, "-o", "p.json")
    assert done.code == 0, done.err
    assert "method       divisors, " in done.out
    proved = "proved optimal among nests of divisors, window in one piece"
    assert proved in done.out
    assert done.err.splitlines()[0] == "memplan: wrote p.json"
    assert done.err.splitlines()[1] == "  next: memplan plot p.json -o p.svg"
    plan = read_plan("p.json")
    assert plan.layers[0].search.proved_optimal
    assert dict(plan.layers[0].evaluation.nest.unroll) == {"C": 8, "K": 16}
    drawn = command("plot", "p.json", "-o", "p.svg")
    assert drawn.code == 0, drawn.err
    assert Path("p.svg").read_text(encoding="utf-8").startswith("<?xml")
    refused = blocking("optimize", "--layer", SMALL, "-o", "p.json")
    assert refused.code == 2
    assert "p.json exists; pass --force" in refused.err


def test_several_layers_and_their_sum(blocking: Blocking) -> None:
    layers = ("--layer", SMALL, "--layer", "fc1", "--layer", "4,8,4,4,3,3,B2")
    done = blocking(
        *("optimize", *layers, "--threads", "1", "--memory", "diannao"),
        *("--json", "-o", "p.json"),
    )
    assert done.code == 0, done.err
    said = json.loads(done.out)
    energies = [one["energy_pJ"] for one in said["layers"]]
    assert said["energy_pJ"] == pytest.approx(sum(energies))
    assert said["space"] == "whole"
    assert [one["utilisation"] for one in said["layers"]] == [
        0.5,
        200 / 208 * 100 / 112,
        0.125,
    ]
    shown = blocking("optimize", *layers, "--threads", "1", "--memory", "diannao")
    assert [line.split()[0] for line in shown.out.splitlines()[-5:]] == [
        *("layer", SMALL, "FC1", "4,8,4,4,3,3,B2", "all")
    ]
    assert "on chip" not in shown.out


def test_every_layer_of_a_model(blocking: Blocking) -> None:
    pytest.importorskip("torch")
    Path("net.py").write_text(MODEL, encoding="utf-8")
    done = blocking(
        *("optimize", "--layer", "net.py:tiny", "--memory", "diannao", "--json"),
        *("--threads", "1"),
    )
    assert done.code == 0, done.err
    layers = {one["layer"]["name"]: one for one in json.loads(done.out)["layers"]}
    assert [one["count"] for one in layers.values()] == [1, 1, 3]
    assert next(iter(layers.values()))["layer"]["B"] == 2
    done = blocking("network", "net.py:tiny", "--budget", "64KiB", "--json")
    assert done.code == 0, done.err
    assert "it has no weights" in done.err
    assert len(json.loads(done.out)["layers"]) == 2
    missing = blocking("optimize", "--layer", "none.py:tiny")
    assert missing.code in (2, 3)
    assert "none.py" in missing.err


@pytest.mark.soak
def test_codesign_with_a_curve(blocking: Blocking) -> None:
    command = ("codesign", "--layer", "conv3", "--budget", "100KiB", "--area-curve")
    done = blocking(*command, "--json", "-o", "p.json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert [point["budget"] for point in said["curve"]] == [32768, 65536, 102400]
    energies = [point["energy_pJ"] for point in said["curve"]]
    assert energies == sorted(energies, reverse=True)
    assert energies[-1] == pytest.approx(said["energy_pJ"], rel=1e-12)
    assert said["sram_bytes"] <= 102400
    points = read_plan("p.json").curve
    assert [point.area_mm2 for point in points] == [
        point["area_mm2"] for point in said["curve"]
    ]
    shown = blocking(*command)
    assert "Least energy found, by area" in shown.out
    assert "mm², DianNao's is 1" in shown.out


def test_a_curve_without_any_bytes(blocking: Blocking, command: Command) -> None:
    none = ("codesign", "--layer", SMALL, "--budget", "0", "--area-curve")
    done = blocking(*none, "--json", "-o", "p.json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert [point["budget"] for point in said["curve"]] == [0]
    assert said["curve"][0]["energy_pJ"] == pytest.approx(said["energy_pJ"])
    drawn = command("plot", "p.json", "-o", "p.svg")
    assert (drawn.code, drawn.err) == (0, "memplan: drew p.svg\n")


def test_a_network_on_a_given_hierarchy(blocking: Blocking, tiny: str) -> None:
    done = blocking(
        *("network", tiny, "--memory", "diannao", "--json", "--threads", "1")
    )
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert [one["layer"]["name"] for one in said["layers"]] == ["one", "two"]
    assert all(0 <= one["gap"] < 0.1 for one in said["layers"])
    assert said["memory"] == "diannao"


def test_memories_for_a_network(blocking: Blocking, tiny: str) -> None:
    network = ("network", tiny, "--budget", "2KiB", "--levels", "1")
    done = blocking(*network, "--json", "-o", "p.json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["energy_pJ"] <= said["common_energy_pJ"]
    assert said["sram_bytes"] <= 2048
    assert {t: len(own) for t, own in said["sizes"].items()} == {
        "input": 1,
        "kernel": 1,
        "output": 1,
    }
    plan = read_plan("p.json")
    assert (plan.memory, plan.budget) == ("designed", 2048)
    # The three channels of images and eight of results leave most lanes idle.
    assert said["layers"][0]["utilisation"] == 3 / 16 * 8 / 16
    bound, gap = said["sizes_lower_bound_pJ"], said["sizes_gap"]
    assert said["energy_pJ"] / bound - 1 == pytest.approx(gap)
    shown = blocking(*network).out
    assert "the paper's way" in shown
    assert shown.splitlines()[-1].split()[:2] == ["all", "2"]


def test_cores_in_figures_and_json(blocking: Blocking) -> None:
    nest = ("--layer", "conv4", "--one-nest", "--cores", "1,2")
    done = blocking("parallel", *nest, "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    cores = said["cores"]
    assert said["one_nest"] == cores
    assert said["nests"] == []
    assert [(one["split"], one["cores"]) for one in cores] == [
        *(("k", 1), ("k", 2), ("xy", 1), ("xy", 2))
    ]
    assert cores[0]["energy_pJ"] == pytest.approx(cores[2]["energy_pJ"])
    assert (cores[0]["shuffle_pJ"], cores[1]["shuffle_pJ"] > 0) == (0, True)
    string = "Fw3 Fh3 X4 Y8 K32 C32 X56 Y56 C128 K256"
    shown = blocking(
        *("parallel", "--layer", "conv4", "--string", string, "--split", "xy")
    )
    assert "cores split the image and share the kernel" in shown.out
    assert [line.split()[0] for line in shown.out.splitlines()[-4:]] == list("1248")


def test_caches_are_simulated(blocking: Blocking) -> None:
    command = ("simulate", "--layer", SMALL, "--string", STRING)
    done = blocking(*command, "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert [level["name"] for level in said["levels"]] == ["L1", "L2", "L3"]
    inner, outer = said["levels"][:2]
    assert outer["accesses"] == inner["misses"] > 0
    assert said["share"] == 1
    part = blocking(*command, "--max-macs", "20000")
    assert "% of the MACs" in part.out
    assert part.out.splitlines()[-1].split()[0] == "L3"
    one = blocking("simulate", "--layer", "1,1,1,1,1,1", "--string", "")
    assert "register  one MAC at once" in one.out


def test_planes_that_share_sets_are_told_and_moved(blocking: Blocking) -> None:
    command = ("simulate", "--layer", "16,64,32,32,1,1")
    string = ("--string", "C16 X32 Y32 K64")
    told = blocking(*command, *string)
    assert "memplan: output: planes lie 4096 bytes apart" in told.err
    assert told.err.strip().endswith("pad the planes with --pad")
    padded = blocking(*command, *string, "--pad")
    assert (padded.code, padded.err) == (0, "")


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_code_that_is_written_is_right(blocking: Blocking) -> None:
    command = ("emit", "--layer", SMALL, "--string", STRING)
    done = blocking(*command, "-o", "conv.cpp")
    assert (done.code, done.out) == (0, "")
    assert "memplan: wrote conv.cpp" in done.err
    hint = done.err.splitlines()[1].strip().removeprefix("next: ")
    assert blocking(*command).out == Path("conv.cpp").read_text(encoding="utf-8")
    subprocess.run(hint.split(), check=True)
    assert subprocess.run(["./conv"], capture_output=True).returncode == 0
    assert blocking(*command, "-o", "conv.cpp").code == 2
    assert blocking(*command, "-o", "conv.cpp", "--force").code == 0


def test_nests_for_code_say_what_they_cost(blocking: Blocking) -> None:
    command = ("optimize", "--layer", SMALL, "--for-code", "portable")
    quick = ("--time-limit", "0.3")
    done = blocking(*command, *quick)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert any(line.startswith("  for code     portable, ") for line in lines)
    assert "  tile         6 columns x 1 row x 2 vectors of 4 channels" in lines
    assert "  memory       xeon-e5645: " in done.out
    said = json.loads(blocking(*command, *quick, "--json").out)
    assert said["unroll"] == {"X": 6, "K": 8}
    # The code has floats, so that is what buffers are taken to hold.
    assert {said["bits"][name] for name in ("input", "kernel", "partial")} == {32}
    (entry,) = said["for_code"]
    assert entry.pop("free_energy_pJ") <= said["energy_pJ"]
    assert entry == {
        "layer": SMALL,
        "target": "portable",
        "tile": {"X": 6, "Y": 1, "K": 8},
    }
    two = blocking(*command, "--layer", "4,4,5,5", *quick)
    assert "more than the best found on the same tiles" in two.out
    assert "next:" not in two.err
    given = blocking(*command, *quick, "--budget", "8KiB", "--json")
    assert json.loads(given.out)["sram_bytes"] <= 8 << 10
    assert "floats" not in done.err
    narrow = blocking(*command, *quick, "--bits", "int16", "--json")
    assert json.loads(narrow.out)["bits"]["partial"] == 16
    narrow = blocking(*command, *quick, "--bits", "int8")
    assert "emit writes floats: nests for int8 elements" in narrow.err
    pool = blocking("optimize", "--layer", "pool", "--for-code", "portable")
    assert (pool.code, "no weights" in pool.err) == (2, True)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_nest_for_code_is_emitted_with_the_next_command(blocking: Blocking) -> None:
    command = ("optimize", "--layer", "8,20,9,7,3,3,S2", "--for-code", "portable")
    done = blocking(*command, "--time-limit", "0.3")
    hint = done.err.splitlines()[-1].strip()
    words = shlex.split(hint.removeprefix("next: memplan blocking "))
    emitted = blocking(*words)
    assert emitted.code == 0, emitted.err
    build = emitted.err.splitlines()[-1].strip().removeprefix("next: ")
    subprocess.run(build.split(), check=True)
    ran = subprocess.run(["./conv", "1"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.count("error 0 ")) == (0, 2)


def test_a_nest_in_a_file_without_a_suffix_is_not_compiled_over(
    blocking: Blocking,
) -> None:
    done = blocking("emit", "--layer", SMALL, "--string", STRING, "-o", "nest")
    hint = done.err.splitlines()[-1].strip()
    assert hint.endswith("-x c++ nest -o nest.out"), hint


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_a_cluster_needs_ray(blocking: Blocking) -> None:
    layers = ("--layer", SMALL, "--layer", "fc1")
    done = blocking("optimize", *layers, "--ray", "auto")
    assert done.code == 5
    assert "memplan: Ray is not installed" in done.err


@pytest.mark.parametrize(
    "call",
    [["optimize"], ["codesign", "--area-curve"], ["parallel", "--cores", "1,2"]],
)
def test_ctrl_c_with_a_result_keeps_it(
    blocking: Blocking, monkeypatch: pytest.MonkeyPatch, call: list[str]
) -> None:
    def press(*arguments: Any) -> Result:
        def stop(_: SearchProgress) -> None:
            raise KeyboardInterrupt

        return optimize(*arguments[:4], stop)

    monkeypatch.setattr(f"memplan.cli.blocking.{call[0]}.search_datapath", press)
    done = blocking(*call, "--layer", "conv1", "--json")
    assert done.code == 0
    said = json.loads(done.out)
    assert "curve" not in said
    if call[0] != "parallel":
        assert 0 < said["lower_bound_pJ"] < said["energy_pJ"]
    note = "memplan: interrupted: Conv1 has the best nest so far\n"
    assert done.err == note


def test_progress_in_words() -> None:
    first = SearchProgress(float("inf"), 20_000_000, 0.25)
    assert describe(first) == "20.00 M tried, 250 ms; Ctrl-C keeps the best"
