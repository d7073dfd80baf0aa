"""Every mistake is told in one line with its exit code, and leaves no file behind."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from memplan.trace.write import write_trace
from tests.cli import samples
from tests.cli.conftest import Command
from tests.cli.samples import LAYER, STRING
from tests.reporting.asking import asking

MODEL = """\
import torch
def both(): return torch.nn.Linear(8, 8).eval(), torch.randn(2, 8)
def fails(): raise ValueError("not\\n today")
def number(): return 3
def odd(): return both()[0], 3
def wrong(): return both()[0], torch.randn(1, 5)
def meta(): return both()[0].to("meta"), torch.randn(2, 8).to("meta")
value = 3
"""
HOLE = (
    '[[level]]\nname = "near"\nshared = 65536\n[[level]]\nname = "far"\nshared = 64\n'
)
NEST = "X4 Y7 Fw3 Fh3 X28 K64 C128 Y28 C256 K512"
EVALUATE = f"blocking evaluate --layer conv5 --string '{NEST}' --unroll C16,K16"
OPTIMIZE = f"blocking optimize --layer {LAYER}"
GIVEN = f"--layer {LAYER} --string X4 --unroll auto"
CHECK = "check grows.parquet"

# By exit code, command lines and a part of what is said.
USAGE = [
    ("blocking evaluate", "Missing option '--layer'"),
    ("blocking simulate --layer conv5", "Missing option '--string'"),
    ("blocking emit --layer conv5", "Missing option '--string'"),
    (f"{EVALUATE} --layer conv9", "'conv9' is no layer: give one of conv1"),
    (f"{EVALUATE} --layer 1,2,3", "layer '1,2,3' has 3 sizes; 4 or 6 are needed"),
    (f"{EVALUATE} --string 'X28 Fw3 Fh3'", "does not cover Conv5: Y ends at 1 of 28"),
    (f"{EVALUATE} --string 'X28 Y29'", "token 2, 'Y29': Conv5 has Y = 28, and no more"),
    (f"{EVALUATE} --string 'X28 X4'", "token 2, 'X4': the loops inside it cover 28"),
    (f"{EVALUATE} --string C24", "'C24': the datapath does 16 of C at once, and 24"),
    (f"{EVALUATE} --unroll C16,Q4", "unrolling 'Q4': give dimensions with a number"),
    (f"{EVALUATE} --memory eniac", "'eniac' is no hierarchy: give a .toml file, or"),
    (f"{EVALUATE} --budget -5", "'-5' is not a size; write 12GiB"),
    (f"{EVALUATE} --memory diannao --budget 1m", "--memory diannao has its own"),
    (f"blocking evaluate {GIVEN}", "here the nest is given: take the datapath"),
    (f"blocking simulate {GIVEN}", "here the nest is given"),
    (f"blocking emit {GIVEN}", "here the nest is given"),
    (f"blocking parallel {GIVEN}", "here the nest is given"),
    (f"{OPTIMIZE} --unroll auto --minimize edp", "a hierarchy that gives a bandwidth"),
    (f"{OPTIMIZE} --for-code avx2 --unroll C16", "--unroll is not for --for-code"),
    (f"{OPTIMIZE} --for-code avx2 --unroll auto", "--unroll is not for --for-code"),
    (f"{OPTIMIZE} --method luck", "'luck' is not one of"),
    (f"{OPTIMIZE} --levels 3", "No such option"),
    (f"{OPTIMIZE} --time-limit -1", "--time-limit"),
    (f"{OPTIMIZE} --time-limit nan", "not a number"),
    (f"{OPTIMIZE} --threads 0", "--threads"),
    (f"{OPTIMIZE} --ray auto", "--ray is for several"),
    ("blocking network lenet --memory diannao", "'lenet' is no network"),
    ("blocking network alexnet", "give --memory for a hierarchy, or --budget"),
    (
        "blocking network alexnet --budget 1m --memory diannao",
        "--memory diannao has its own sizes",
    ),
    ("blocking network alexnet --budget 1m --ray auto", "--ray is for"),
    ("blocking network alexnet --budget 100", "a budget of 100 bytes"),
    ("blocking network alexnet --budget 1m --levels 9", "--levels"),
    ("blocking network alexnet --memory diannao --levels 2", "is for a --budget"),
    (f"blocking parallel --layer {LAYER} --cores 1,x", "'x' is no number"),
    (f"blocking parallel --layer {LAYER} --cores 5", "5 cores cannot share"),
    (
        f"blocking simulate --layer {LAYER} --string '{STRING}' --cache diannao",
        "level SRAM of diannao is no cache",
    ),
    ("blocking simulate --layer pool --string 'Fw2 Fh2 X56 Y56 G128'", "no weights"),
    (f"blocking emit --layer {LAYER} --string X7", f"'X7': {LAYER} has X"),
    ("blocking layers conv1", "'conv1' is no model"),
    ("solve p.csv --method magic", "magic"),
    ("solve p.csv --time-limit -1", "--time-limit"),
    ("solve p.csv --time-limit nan", "not a number"),
    ("solve p.csv --capacity much", "'much' is not a size; write 12GiB"),
    ("solve p.csv --capacity-of live", "--capacity-of is for --capacity"),
    ("solve p.csv --capacity 99 --capacity-of process", "needs a trace"),
    ("solve p.csv --seed -1", "--seed"),
    ("solve p.csv --alignment 0", "--alignment"),
    ("solve p.csv --step 3", "a bare problem has no steps"),
    ("solve p.csv --mip-solver highs", "--mip-solver is for --method mip only"),
    ("solve p.csv --priority size", "--priority is for --method bestfit only"),
    ("solve p.csv --method mip --mip-solver abacus", "abacus"),
    ("solve p.csv -o p.csv", "p.csv exists; pass --force"),
    ("solve p.csv -o nowhere/x.json", "nowhere is not a folder"),
    ("solve t.json --step 99 -o x.json", "steps 0 to"),
    ("convert p.csv q.txt", "q.txt is not a .csv file"),
    ("convert p.csv p.csv", "p.csv exists; pass --force"),
    ("convert p.csv q.csv --step 1", "a bare problem has no steps"),
    ("convert p.json q.csv --step 1", "a plan has no steps"),
    ("convert t.json out.txt", "end its name in one of"),
    ("convert t.json out.txt --to parquet", "ends in .parquet"),
    ("convert t.json out.txt --to json", "ends in .json"),
    ("convert t.json out.pickle --step 3", "for csv only"),
    ("record", "name a script to run"),
    ("record -o t.txt s.py", "t.txt: no such form"),
    ("record -o t.json s.py", "t.json exists; pass --force"),
    ("record -o nowhere/t.parquet s.py", "nowhere is not a folder"),
    ("record -o . s.py", ""),
    ("record --steps 0 s.py", "--steps"),
    ("record --steps never s.py", "--steps"),
    ("record --stacks all s.py", "--stacks"),
    ("apply p.json", "name a script to run"),
    ("apply p.json --report p.json s.py", "p.json exists"),
    ("recover t.json", "-o"),
    ("solve p.csv -o ''", "the output's name is empty; name a file"),
    ("plot p.json -o -", "the format follows from the file's suffix; name a file"),
    ("recover t.json -o -", "the format follows from the file's suffix; name a"),
    ("record -o /dev/stdout s.py", "standard output is the program's own; name a"),
    ("apply p.json --report - s.py", "standard output is the program's own; name"),
    ("stats grows.parquet p.json", "name traces only"),
    ("stats grows.parquet --at 99", "steps 0 to 12 only"),
    ("stats p.json -n 3", "-n is for traces"),
    ("stats p.json --device 0", "--device is for snapshots"),
    (CHECK, "nothing to check"),
    (f"{CHECK} --max 1 --tolerance 1%", "--baseline"),
    (f"{CHECK} --baseline p.json", "without what is persistent"),
    (f"{CHECK} --max x", "is not a size"),
    (f"{CHECK} --baseline grows.parquet --tolerance x", "is no share"),
    ("check p.json --no-leak", "a plan has one step only"),
]
INPUT = [
    (f"{EVALUATE} --layer 256,512,-28,28,3,3", "X is -28, and must be in [1"),
    (f"{EVALUATE} --memory hole.toml", "level far is not larger than near inside it"),
    (f"{EVALUATE} --memory bad.toml", "bad.toml: is no TOML"),
    ("blocking network none.onnx --budget 64KiB", "there is no such file"),
    ("solve s.py", "s.py"),
    ("solve empty.parquet", "empty"),
    ("solve p.json -o x.json", "plan"),
    ("convert missing.csv q.csv", "missing.csv: no such file"),
    ("verify t.json", "trace"),
    ("verify p.json missing.parquet", "no such file"),
    ("record missing.py", "missing.py: no such script"),
    ("record folder", "folder is a folder; name the script in it"),
    ("record -m no.such.module", "no.such.module: no such module"),
    ("recover t.json -o x.parquet", "not a memplan journal"),
    ("stats none.*.parquet", "no file is named like this"),
    ("diff grows.parquet p.json", "not a trace"),
]
# Of commands on a model.
MODELS_USAGE = [
    ("chunk m.py:both", "give either --budget, as in --budget 20%, or --plan"),
    ("chunk m.py:both --budget 20% --plan p.json", "give either --budget"),
    ("chunk m.py:both --budget 0%", "above 0%"),
    ("chunk m.py:both --budget 20% --inputs x", "write it as FILE.py:FUNCTION"),
    ("chunk m.py:both --budget 20% -o m.py", "m.py exists; pass --force"),
    ("chunk m.py:both --budget 20% --emit m.py", "m.py exists; pass --force"),
    ("chunk m.py:both --budget 20% --emit x.svg --plot x.svg", "the same name"),
    ("chunk m.py:both --budget 20% --emit -", "name a file instead of -"),
    ("compile m.py:missing --budget 120%", "120%"),
    ("fuse", "Missing argument 'FILE.py:FACTORY'"),
    ("fuse m.py", "write it as FILE.py:FUNCTION"),
    ("fuse m.py:both --tolerance -1", "--tolerance"),
    ("fuse m.py:both --plot p.txt", "p.txt has suffix .txt"),
    ("fuse m.py:both --plot -", "name a file instead of -"),
]
MODELS_INPUT = [
    ("chunk m.py:both --plan no.json", "no.json"),
    ("chunk n.py:both --budget 20%", "n.py: there is no such file"),
    ("chunk m.py:nothing --budget 20%", "m.py has no function nothing"),
    ("chunk m.py:value --budget 20%", "m.py has no function value"),
    ("chunk m.py:fails --budget 20%", "m.py:3: fails failed: ValueError: not today"),
    ("chunk m.py:wrong --budget 20%", "the model fails on these inputs: "),
    ("chunk e.py:both --budget 20%", "e.py:3: cannot be loaded: ZeroDivisionError: d"),
    ("chunk d.py:both --budget 20%", "d.py:3: cannot be loaded: SyntaxError"),
    ("fuse m.py:fails", "fails failed: ValueError: not today"),
    ("fuse m.py:number", "m.py:number must return a model, or a model"),
    ("fuse m.py:odd", "one tensor, not int"),
    ("fuse m.py:both --inputs m.py:number", "m.py:number: inputs are a tuple"),
    ("fuse m.py:wrong", "the model fails on these inputs: "),
    ("fuse m.py:meta", "the inputs are on meta; this command measures on the CPU"),
]
LIMIT = [
    ("blocking optimize --layer conv1 --time-limit 0 --method divisors", "too few")
]
MISTAKES = {2: USAGE, 3: INPUT, 4: LIMIT}
ON_MODELS = {2: MODELS_USAGE, 3: MODELS_INPUT}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    """Files of all kinds, sound and not."""
    samples.write_all(tmp_path)
    write_trace(asking(steps=12), tmp_path / "grows.parquet")
    for name, text in (
        ("m.py", MODEL),
        ("e.py", "import torch\n\n1 / 0\n"),
        ("d.py", "import torch\n\ndef (\n"),
        ("hole.toml", HOLE),
        ("bad.toml", "[[level]\n"),
        ("empty.parquet", ""),
    ):
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()


def refused(command: Command, folder: Path, line: str, code: int, words: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    said = command(*shlex.split(line))
    assert (said.code, said.out) == (code, ""), said.err
    assert words in said.err
    assert "Traceback" not in said.err
    lines = said.err.splitlines()
    assert len(lines) == 1 or lines[0].startswith("Usage:")
    after = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    after.pop(folder / "__pycache__", None)
    assert after == before


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [(line, code, words) for code in MISTAKES for line, words in MISTAKES[code]],
)
def test_a_mistake(
    command: Command, tmp_path: Path, line: str, code: int, words: str
) -> None:
    refused(command, tmp_path, line, code, words)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("line", "code", "words"),
    [(line, code, words) for code in ON_MODELS for line, words in ON_MODELS[code]],
)
def test_a_mistake_with_a_model(
    command: Command, tmp_path: Path, line: str, code: int, words: str
) -> None:
    pytest.importorskip("torch")
    refused(command, tmp_path, line, code, words)
