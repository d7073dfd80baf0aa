"""Hierarchies: those that come along, and what is wrong with others."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan.blocking.machine.energy import DRAM_PJ, MAC_PJ, paper_curves, table_3
from memplan.blocking.machine.hierarchy import Cache, Hierarchy, load_hierarchy, presets
from memplan.blocking.nest.layer import Tensor
from memplan.errors import FormatError, InputError, MemplanError, UsageError
from tests.conftest import ROOT

INPUT, KERNEL, OUTPUT = Tensor
ONE = '[[level]]\nname = "one"\nshared = "1KiB"\n'
PRIVATE = "private = { input = 64, kernel = 64, output = 64 }\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


def load(path: Path, text: str | bytes) -> Hierarchy:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_hierarchy(str(path))


@pytest.mark.parametrize("name", presets())
def test_presets_are_plausible(name: str) -> None:
    machine = load_hierarchy(name)
    assert machine.name == name
    assert machine.title and machine.source
    for tensor in Tensor:
        depths = range(len(machine.levels))
        prices = [machine.price(depth, tensor) for depth in depths]
        prices += [machine.dram_pj]
        assert all(inner < outer for inner, outer in pairwise(prices))
        sizes = [level.capacity(tensor) for level in machine.levels]
        assert all(inner < outer for inner, outer in pairwise(sizes))


def test_presets_have_the_sizes_of_their_machines() -> None:
    assert presets() == ["diannao", "h100", "xeon-e5645", "zen4"]
    diannao = load_hierarchy("DianNao")
    assert diannao.private
    assert [diannao.levels[0].capacity(t) for t in Tensor] == [2048, 32768, 2048]
    xeon = load_hierarchy("xeon-e5645")
    assert not xeon.private
    assert xeon.caches == (
        Cache(32 << 10, 8, 64),
        Cache(256 << 10, 8, 64),
        Cache(12 << 20, 16, 64),
    )
    with pytest.raises(UsageError, match="level SRAM of DianNao is no cache"):
        _ = diannao.caches


def test_what_is_left_out_is_the_papers(path: Path) -> None:
    machine = load(path, ONE)
    assert (machine.name, machine.title, machine.source) == ("mine", "", "")
    assert (machine.dram_pj, machine.mac_pj) == (DRAM_PJ, MAC_PJ)
    assert not machine.count_fills
    assert machine.curves == paper_curves()
    assert machine.levels[0].cache is None
    assert machine.price(0, KERNEL) == table_3(512)(1024)


def test_all_that_can_be_given(path: Path) -> None:
    text = """
        title = "Mine"
        source = "measured"
        dram_pj = 200
        mac_pj = 0.5
        count_fills = true
        words = { input = 64, output = 128 }
        [[level]]
        name = "registers"
        private = { input = 512, kernel = "1KiB", output = "0.5KiB" }
        pj = { kernel = 0.25 }
        [[level]]
        name = "cache"
        shared = "64KiB"
        pj = 7
        ways = 4
        line = 32
    """
    machine = load(path, text)
    assert (machine.title, machine.source) == ("Mine", "measured")
    assert (machine.dram_pj, machine.mac_pj, machine.count_fills) == (200, 0.5, True)
    registers, cache = machine.levels
    assert registers.private_bytes == {INPUT: 512, KERNEL: 1024, OUTPUT: 512}
    assert cache.cache == Cache(65536, 4, 32)
    assert machine.price(0, KERNEL) == 0.25
    assert machine.price(0, INPUT) == table_3(64)(512)
    assert [machine.price(1, t) for t in Tensor] == [7, 7, 7]
    assert machine.curves[KERNEL] == replace(table_3(512), dram_pj=200)


def test_a_level_above_16_mib_is_still_on_the_chip(path: Path) -> None:
    machine = load(path, ONE.replace("1KiB", "64MiB"))
    assert machine.price(0, INPUT) == pytest.approx(28.88 * 8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = 1\n" + ONE, "title is 1, and must be text"),
        ("dram_pj = 0\n" + ONE, "dram_pj is 0, and must be pJ"),
        ("dram_pj = nan\n" + ONE, "dram_pj is nan, and must be a finite number"),
        ("count_fills = 1\n" + ONE, "count_fills is 1, and must be true or false"),
        ("words = 256\n" + ONE, "words is 256, and must be an object"),
        (
            "words.inputs = 256\n" + ONE,
            "words has .* 'inputs'; known are input, kernel, output",
        ),
        ("words.input = 0\n" + ONE, "words.input is 0, and must be an integer from 1"),
        (
            "energy = 1\n" + ONE,
            "the file has .* 'energy'; known are area, bits, count_fills",
        ),
        ("dram_pj = 1", "the file lacks 'level'"),
        ("level = 3", "level is 3, and must be a list"),
        ("level = []", "level must be 1 to 8 levels"),
        (ONE * 9, "level must be 1 to 8 levels"),
        ("level = [3]", "level 1 is 3, and must be an object"),
        (ONE + "size = 3", "level 1 has .* 'size'; known are bandwidth, double_buff"),
        ("[[level]]\nshared = 64", "level 1 lacks 'name'"),
        ('[[level]]\nname = " "\nshared = 64', "level 1.name is empty"),
        ('[[level]]\nname = "a"', "level 1 needs either shared or private"),
        (ONE + PRIVATE, "level 1 needs either shared or private bytes"),
        (ONE.replace('"1KiB"', "0"), "level 1.shared is 0, and must be an integer"),
        (ONE.replace("1KiB", "0.1"), "level 1.shared cannot be: '0.1' has no unit"),
        (ONE.replace("1KiB", "0.0001k"), "level 1.shared is '0.0001k', and must be"),
        (ONE.replace("1KiB", "9" * 5000), "level 1.shared cannot be: '9+"),
        ('[[level]]\nname = "a"\nprivate = 64', "level 1.private is 64, and must be"),
        (
            '[[level]]\nname = "a"\n' + PRIVATE.replace("kernel = 64", "kernal = 64"),
            "level 1.private lacks 'kernel'",
        ),
        (ONE + "pj = 0", "level 1.pj is 0, and must be pJ"),
        (ONE + "pj = { all = 1 }", "level 1.pj has .* 'all'; known are input"),
        (ONE + "pj = { input = -1 }", "level 1.pj.input is -1, and must be"),
        (ONE + "ways = 8", "level 1: ways and line go together"),
        (ONE + "ways = 0\nline = 64", "level 1.ways is 0, and must be an integer"),
        (ONE + "ways = 3\nline = 64", "level 1.shared is no multiple of its 3 ways"),
        (
            f'[[level]]\nname = "a"\n{PRIVATE}ways = 1\nline = 64',
            "level 1: ways and line go together, on a shared level",
        ),
        (ONE + ONE.replace("1KiB", "2KiB"), "names two levels alike"),
        (ONE.replace("one", "DRAM"), "names two levels alike, or one DRAM"),
        (ONE + ONE.replace("one", "two"), "level two is not larger than one inside it"),
        (
            ONE + '[[level]]\nname = "two"\n' + PRIVATE,
            "level two is not larger than one inside it for the input",
        ),
        (
            ONE + '[[level]]\nname = "two"\nshared = "2KiB"\ndouble_buffered = true',
            "half of level two is not larger than one inside it for the input",
        ),
    ],
    ids=lambda value: value[:30],
)
def test_a_wrong_entry_is_named(path: Path, text: str, said: str) -> None:
    with pytest.raises(FormatError, match=f"mine.toml: {said}"):
        load(path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "the file is empty; write it again"),
        (bytes(range(256)), "is no TOML: 'utf-8' codec can't decode byte 0x80"),
        (b"[[level]", "is no TOML"),
        (b"dram_pj = " + b"9" * 6000, "holds a number that is far too long$"),
        (b"dram_pj = " + b"9" * 400 + b"\n" + ONE.encode(), r"dram_pj is 9+\.\.\.,"),
        (
            b"dram_pj = 0x" + b"f" * 9000 + b"\n" + ONE.encode(),
            "dram_pj is far too long",
        ),
        (
            b"dram_pj" + b".a" * 2000 + b" = 1\n" + ONE.encode(),
            "dram_pj is an object",
        ),
        (b"#" * 20000, "20000 bytes, above the limit"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_file_is_refused(path: Path, text: bytes, said: str) -> None:
    with pytest.raises(InputError, match=f"mine.toml: {said}"):
        load(path, text)


def test_what_is_no_file_is_refused(tmp_path: Path, path: Path) -> None:
    with pytest.raises(InputError, match=r"mine.toml: no such file"):
        load_hierarchy(str(path))
    path.mkdir()
    with pytest.raises(InputError, match=r"mine.toml is a folder"):
        load_hierarchy(str(path))
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(InputError, match=r"pipe.toml is not a regular file"):
        load_hierarchy(str(tmp_path / "pipe.toml"))
    with pytest.raises(InputError, match="NUL"):
        load_hierarchy("a\0.toml")
    with pytest.raises(UsageError, match="'mine' is no hierarchy: give"):
        load_hierarchy("mine")


LINES = st.sampled_from(
    [
        *(ONE + PRIVATE).splitlines(),
        *("ways = 1", "line = 1", "pj = 1", "dram_pj = 1e3", "words = {}"),
        *("title = ''", "level = 1", "name = ''", "= ]"),
    ]
)


@given(st.binary(max_size=40) | st.lists(LINES).map(lambda x: "\n".join(x).encode()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_file_is_a_hierarchy_or_an_error(path: Path, text: bytes) -> None:
    try:
        machine = load(path, text)
    except MemplanError as error:
        assert str(path) in str(error)
    else:
        assert all(machine.price(0, tensor) > 0 for tensor in Tensor)


def test_the_examples_are_hierarchies(tmp_path: Path) -> None:
    text = (ROOT / "docs/hierarchies.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    names = []
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(example, encoding="utf-8")
        names += [level.name for level in load_hierarchy(str(path)).levels]
    alone = ["registers", "SRAM", "shift registers", "SRAM", "buffer"]
    assert names == ["local", "global", *alone, "near", "far"]
