"""Make the pictures of README and docs from the current code.

    python scripts/pictures.py                     # all, into docs/
    python scripts/pictures.py packing chunking    # only these

packing and report take a recording of a minute or two, blocking some minutes. The
report's picture needs Chromium (or Google Chrome) and is left out where there is none.
docs/architecture.svg is drawn by hand.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.runner import MEMPLAN, ROOT, run_child

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SIZE = "1280,860"  # of the report's window, in pixels
GPT2 = "gpt2 --train --layers 3 --width 192 --heads 4 --vocabulary 2000"
SQUEEZENET = """\
import sys

sys.path.insert(0, "scripts")
from models.vision import build, input_shape
import torch


def model():
    return build("squeezenet1_1"), torch.randn(1, *input_shape("squeezenet1_1"))
"""


def memplan(line: str) -> None:
    """Run a command of memplan in the source tree."""
    print(f"$ memplan {line}", flush=True)
    run_child([*MEMPLAN, *shlex.split(line)])


def packing(output: Path, folder: Path) -> None:
    """The plan of a training step of ResNet-50."""
    program = "scripts/program.py resnet50 --train --batch-size 6 --image-size 160"
    memplan(f"record -q -o {folder}/r.parquet {program} --steps 6")
    memplan(f"solve {folder}/r.parquet -o {folder}/r.plan.json")
    memplan(f"plot --force {folder}/r.plan.json -o {output}/packing.png")


def report(output: Path, folder: Path) -> None:
    """The first screen of the HTML report of three steps of GPT-2."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("report.png left out: install Chromium")
        return
    program = f"scripts/program.py {GPT2} --sequence-length 128 --steps 3"
    memplan(f"record -q -o {folder}/g.parquet {program}")
    memplan(f"report --force {folder}/g.parquet -o {folder}/g.html")
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    words += [f"--window-size={SIZE}", "--virtual-time-budget=10000"]
    words += [f"--screenshot={output / 'report.png'}", f"file://{folder}/g.html"]
    subprocess.run([browser, *words], check=True, capture_output=True, cwd=folder)


def chunking(output: Path, folder: Path) -> None:
    """Live activation bytes of a small GPT, before and after chunking."""
    options = f"--budget 20% --max-slowdown 10 --plot {output}/chunking.svg"
    memplan(f"chunk --force scripts/chunk_gpt.py:factory {options}")


def fusing_stacks(output: Path, folder: Path) -> None:
    """The layers and stacks of SqueezeNet 1.1."""
    (folder / "squeezenet.py").write_text(SQUEEZENET, encoding="utf-8")
    picture = output / "fusing-stacks.svg"
    memplan(f"fuse --force {folder}/squeezenet.py:model --plot {picture}")


def compiling_levels(output: Path, folder: Path) -> None:
    """Live bytes of a U-Net's arena, after each pass."""
    options = f"--budget 40% --levels --threads 1 --plot {output}/compiling-levels.svg"
    memplan(f"compile --force scripts/models/unet.py:factory {options}")


def blocking(output: Path, folder: Path) -> None:
    """Figures 3 to 9 of A Systematic Approach to Blocking Convolutional Neural Networks
    (Yang et al., 2016) by memplan's model, and the tables of their page."""
    from bench import blocking_figures as figures
    from bench.blocking_page import Page

    page = Page(output / "blocking.md")
    for section in figures.SECTIONS:
        section(page)
    page.write()


PICTURES: dict[str, Callable[[Path, Path], None]] = {
    "packing": packing,
    "report": report,
    "chunking": chunking,
    "fusing-stacks": fusing_stacks,
    "compiling-levels": compiling_levels,
    "blocking": blocking,
}


def main() -> None:
    """Make all pictures, or those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    parser.add_argument("--output", type=Path, default=ROOT / "docs")
    args = parser.parse_args()
    for name in args.names:
        if name not in PICTURES:
            parser.error(f"there is no picture {name!r}")
    output = args.output.resolve()
    for name in args.names or PICTURES:
        with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
            PICTURES[name](output, Path(folder))


if __name__ == "__main__":
    main()
