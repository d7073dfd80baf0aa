"""Builds the sdist, the wheel from it, and tries the wheel as a user has it.

    python scripts/check_wheel.py [--output dist]

The wheel goes into a fresh environment outside the checkout, without PyTorch and with
no compiler to be found; every public name and the commands that need neither must work.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROBLEM = ROOT / "tests/data/packing/cut-30.csv"
NAMES = "import memplan; print(*(getattr(memplan, n) for n in memplan.__all__))"
COMMANDS = (
    "--version",
    "solve p.csv -o p.plan.json",
    "verify p.plan.json",
    "plot p.plan.json -o p.png",
    "convert p.plan.json q.csv",
    "blocking optimize --layer conv4 -o b.json",
    "blocking optimize --layer conv5 --memory diannao",
    "plot b.json -o b.svg",
)


def build(output: Path) -> Path:
    """The wheel in `output`, made from the sdist beside it."""
    pip = [sys.executable, "-m", "pip"]
    backend = (
        "from scikit_build_core.build import build_sdist; import sys;"
        "build_sdist(sys.argv[1])"
    )
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder) / "tools"
        needed = ["scikit-build-core>=0.10"]
        subprocess.run([*pip, "install", "-q", "--target", tools, *needed], check=True)
        environment = {**os.environ, "PYTHONPATH": str(tools)}
        subprocess.run(
            [sys.executable, "-c", backend, output.resolve()],
            cwd=ROOT,
            env=environment,
            check=True,
        )
        (sdist,) = output.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        source = Path(folder) / sdist.name.removesuffix(".tar.gz")
        subprocess.run(
            [*pip, "wheel", "-q", "--no-deps", "--wheel-dir", output, source],
            check=True,
        )
    (wheel,) = output.glob("*.whl")
    return wheel


def check(wheel: Path, folder: Path) -> None:
    """Install it in a new environment in `folder`, and run what a user runs."""
    venv.create(folder / "env", with_pip=True)
    home = folder / "env/bin"
    subprocess.run([home / "pip", "install", "-q", wheel], check=True)
    shutil.copy(PROBLEM, folder / "p.csv")
    environment = {"PATH": str(home), "HOME": str(folder)}
    commands = [[home / "python", "-c", NAMES]]
    commands += [[home / "memplan", *line.split()] for line in COMMANDS]
    for command in commands:
        print(
            "$", *(str(word).removeprefix(f"{home}/") for word in command), flush=True
        )
        subprocess.run(command, cwd=folder, env=environment, check=True)
    for package in ("torch", "pytest"):
        code = f"import importlib.util as i; assert i.find_spec({package!r}) is None"
        subprocess.run([home / "python", "-c", code], check=True)


def main(arguments: list[str] | None = None) -> int:
    """0, or the first failure as an exception."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    output: Path = parser.parse_args(arguments).output
    output.mkdir(exist_ok=True)
    for old in (*output.glob("*.whl"), *output.glob("*.tar.gz")):
        old.unlink()
    wheel = build(output)
    with tempfile.TemporaryDirectory(prefix="memplan-wheel-") as folder:
        check(wheel, Path(folder))
    print(f"{wheel} works by itself")
    return 0


if __name__ == "__main__":
    sys.exit(main())
