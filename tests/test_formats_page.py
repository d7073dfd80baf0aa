"""docs/formats.md and docs/json.md cannot rot: they hold what files and outputs do."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import memplan
from memplan import cli
from memplan.trace import journal
from tests.conftest import ROOT, TRAINING, Run
from tests.reporting.asking import ASKED, asking
from tests.trace.trace_samples import journal_blocks, sample, write_journal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = "\n".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("formats.md", "json.md")
)
SAMPLE = ROOT / "traces/train_resnet50.parquet"
LAYER = "--layer 4,8,8,8,3,3"
NEST = f"{LAYER} --string 'Fw3 Fh3 X4 Y4 C2 K4 X8 Y8 C4 K8'"
CHUNK = "chunk m.py:factory --budget 60% --max-slowdown 1e9 -o c.plan.json --json"
FUSE = "fuse m.py:planes --keep-slower --json"
LAYERS = "blocking layers m.py:attending --json"
SHORT = "--time-limit 0.3"
# A share of the limit must suffice for a nest, on a busy machine too.
NETWORK = "blocking network m.py:two --budget 2KiB --levels 1 --time-limit 4 --json"

# By section, the commands whose outputs it describes, and files from earlier ones.
DOCUMENTS = {
    "solve --json": (
        f"solve '{SAMPLE}' -o t.plan.json --json",
        "solve p.csv -o p.plan.json --json",
        "solve p.csv --capacity 9 -o no.plan.json --json",
    ),
    "report --json": (
        f"report '{SAMPLE}' -o r.html --json",
        f"convert '{SAMPLE}' r.pickle -q --json",
        "plot p.plan.json -o p.png --json",
    ),
    "recover --json": ("recover r.journal -o recovered.parquet --json",),
    "Plan": ("t.plan.json", "p.plan.json"),
    "stats --json": ("stats s.json --json", "stats grows.json --json"),
    "stats --json, of a plan": ("stats p.plan.json --json",),
    "stats --json, of many": ("stats s.json t.json --json",),
    "check --json": (
        "check s.json --max 1 --json",
        "check grows.json --max 1GiB --json",
    ),
    "diff --json": ("diff s.json grows.json --json",),
    "verify --json": (
        "verify p.plan.json --json",
        "verify p.plan.json other.csv --json",
    ),
    "Trace, JSON": ("t.json",),
    "blocking evaluate --json": (
        f"blocking evaluate {NEST} --unroll X2 --memory all.toml --json",
    ),
    "blocking optimize --json": (
        f"blocking optimize {LAYER} -o b.plan.json --json",
        f"blocking optimize {LAYER} --for-code portable {SHORT} --json",
        f"blocking codesign {LAYER} {SHORT} --json",
    ),
    "Blocking plan": ("b.plan.json",),
    "compile --json": ("compile m.py:factory --max-slowdown 1e9 -o a.json --json",),
    "compile --front --json": ("compile m.py:factory --front --json",),
    "chunk --json": (CHUNK,),
    "Chunk plan": ("c.plan.json",),
    "fuse --json": (FUSE,),
    "blocking network --json": (NETWORK,),
    "blocking parallel --json": (
        f"blocking parallel {NEST} --unroll C2,K2 --cores 1,2 --json",
    ),
    "blocking simulate --json": (f"blocking simulate {NEST} --unroll X2 --json",),
    "blocking layers --json": ("blocking layers --json",),
    "blocking layers MODEL --json": (LAYERS,),
}


MODEL = """\
import torch
def factory():
    layers = torch.nn.Linear(4, 64), torch.nn.GELU(), torch.nn.Linear(64, 4)
    return torch.nn.Sequential(*layers).eval(), torch.randn(512, 4)
def planes():
    layers = torch.nn.Conv2d(4, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    return torch.nn.Sequential(*layers).eval(), torch.randn(1, 4, 16, 16)
def two():
    layers = torch.nn.Conv2d(2, 4, 3), torch.nn.Conv2d(4, 2, 3)
    return torch.nn.Sequential(*layers).eval(), torch.randn(1, 2, 6, 6)
class Attending(torch.nn.Module):
    def forward(self, x):
        other = torch.nn.functional.bilinear(x, x, torch.ones(2, 8, 8))
        return torch.nn.functional.scaled_dot_product_attention(x, x, x), other
def attending():
    return Attending(), torch.randn(1, 2, 4, 8)
"""


def section(title: str) -> str:
    """The page's text under a heading."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def example(title: str) -> str:
    """The code in a section."""
    return re.split("```[a-z]*\n", section(title))[1]


def rows(title: str) -> dict[str, list[str]]:
    """By name in the first column of a section's tables, the row's other cells."""
    found: dict[str, list[str]] = {}
    for line in section(title).splitlines():
        if line.startswith("| `"):
            first, *others = (cell.strip() for cell in line.strip("|").split(" | "))
            for name in re.findall("`(.*?)`", first):
                assert name not in found, f"{name} stands twice"
                found[name] = others
    return found


def paths(value: object, at: str = "") -> Iterator[str]:
    """Of all values in a JSON document, as the page writes them."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, f"{at}.{name}" if at else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner in value:
            yield from paths(inner, f"{at}[]")
    else:
        yield at


def check(title: str, documents: list[Any]) -> None:
    """No field without a row, and no row without a field but the optional ones."""
    found = {path for document in documents for path in paths(document)}
    unseen, unnamed = [], set(found)
    for name, (*_, meaning) in rows(title).items():
        pattern = re.escape(name).replace(r"\*", r"[^.\[\]]*")
        matched = {path for path in found if re.fullmatch(pattern, path)}
        unnamed -= matched
        if not matched and not meaning.startswith("optional"):
            unseen.append(name)
    assert not unseen
    assert not unnamed


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The JSON of a file, or of a command's output, in a folder with samples."""
    folder = tmp_path_factory.mktemp("formats")
    (folder / "p.csv").write_text(example("MiniMalloc's CSV"))
    (folder / "other.csv").write_text("id,lower,upper,size\na,0,1,64\n")
    (folder / "all.toml").write_text(example("Memory hierarchy"))
    (folder / "m.py").write_text(MODEL)
    memplan.write_trace(memplan.read_trace(SAMPLE), folder / "t.json")
    write_journal(folder / "r.journal", journal_blocks(sample()))
    memplan.write_trace(asking(steps=2, asked=ASKED), folder / "s.json")
    memplan.write_trace(asking(steps=12), folder / "grows.json")

    @functools.cache
    def read(source: str) -> Any:
        if source.endswith(".json"):
            for command in sum(DOCUMENTS.values(), ()):
                if f"-o {source}" in command:
                    read(command)
            return json.loads((folder / source).read_text())
        if source in (CHUNK, FUSE, LAYERS, NETWORK):
            pytest.importorskip("torch")
        words = shlex.split(source)
        for before, word in pairwise(words):
            if word.endswith(".plan.json") and before != "-o":
                read(word)  # which may take another command
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("MEMPLAN_CACHE_DIR", str(folder / "kernels"))
            patch.setattr(sys, "argv", ["memplan", *words])
            with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
                cli.main()
        out.seek(0)
        return json.loads(out.read())

    return read


@pytest.mark.parametrize("title", DOCUMENTS)
def test_fields_are_those_of_the_page(
    title: str, document: Callable[[str], Any]
) -> None:
    check(title, [document(source) for source in DOCUMENTS[title]])


def test_an_apply_report_is_that_of_the_page(memplan: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAINING)
    for line in (
        "record -q -o t.parquet train.py",
        "solve t.parquet -o t.plan.json",
        "apply --report report.json t.plan.json train.py",
    ):
        memplan(*line.split()).check_returncode()
    check("apply --report", [json.loads((tmp_path / "report.json").read_text())])


def test_the_columns_of_a_trace_are_those_of_the_page() -> None:
    schema = pq.read_schema(SAMPLE)
    types = {name: cells[0] for name, cells in rows("Trace, Parquet").items()}
    assert list(types) == schema.names
    for name, kind in types.items():
        assert str(schema.field(name).type).startswith(kind)


def test_the_blocks_of_a_journal_are_those_of_the_page() -> None:
    fields: dict[str, Any] = dict(journal.ROW.fields or {})
    for name, (where, kind, *_) in rows("Journal").items():
        if name.isupper():
            assert getattr(journal, name) == int(where)
        else:
            stored, offset = fields.pop(name)
            assert offset == int(where)
            assert {"i": "int", "u": "uint"}[kind[0]] + kind[1:] == stored.name
    assert not fields
    assert journal.MAGIC.decode() in section("Journal")


def test_the_columns_of_a_problem_are_those_of_the_page() -> None:
    header = example("MiniMalloc's CSV").splitlines()[0]
    assert set(rows("MiniMalloc's CSV")) == set(header.split(","))


def test_the_entries_of_a_hierarchy_are_those_of_the_page() -> None:
    check("Memory hierarchy", [tomllib.loads(example("Memory hierarchy"))])
