"""What to run on a GPU that is there for a while: four runs, under half an hour in all.

    python scripts/gpu/visit.py tests --output OUT      # and builds memplan before
    python scripts/gpu/visit.py bench --output OUT
    python scripts/gpu/visit.py largest --output OUT
    python scripts/gpu/visit.py programs --output OUT

Nothing is fetched and nothing installed: memplan is built where it stands, with what
the interpreter has (scikit-build-core, nanobind, CMake, ninja, a C++20 compiler), or
its native code is taken from a wheel for this Python in dist/. Each run leaves RUN.log,
all that was printed, line by line as it is, and RUN.json: of each step the command, its
exit code (null: left out, or not done in its time), its seconds and its last lines;
bench and largest also RUN.figures.json, which `scripts/bench_gpu.py --table` reads.
What one step does takes nothing from the others. Ends with 1 unless every step ended
well, but for those whose program is not on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from visit_runs import RUNS, SECONDS, Step

ROOT = Path(__file__).resolve().parents[2]
LINES = 60  # of a step's output that RUN.json keeps
LEAST = 5  # seconds, with less of which no step is begun
PIP = "python -m pip wheel -q --no-index --no-build-isolation --no-deps"
# A step's processes end together, and with the session that this runs in, if that can
# be had: none is to hold a GPU when its time is over.
GROUP: dict[str, Any] = {"start_new_session": True}
if sys.version_info >= (3, 11):
    GROUP = {"process_group": 0}
# The native code is there, for this interpreter.
BUILT = "import memplan.native._alloc; "
BUILT += "from memplan.recording.cuda_slots import library_path; "
BUILT += "assert library_path().exists()"


@dataclass(frozen=True)
class Outcome:
    """Of a step; code: null where it did not come to its end."""

    name: str
    command: list[str]
    code: int | None
    seconds: float
    said: list[str]


class Visit:
    """One run, within its time, in a folder of its own."""

    def __init__(self, run: str, output: Path, seconds: float, folder: Path) -> None:
        self._run, self._output, self._folder = run, output, folder
        self._end = time.monotonic() + seconds
        self._log = output / f"{run}.log"
        self._log.write_bytes(b"")
        self.outcomes: list[Outcome] = []
        self.well = True

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def do(self, step: Step) -> None:
        """Run it, and write down what came of it."""
        words = self._words(step)
        begun, at = time.monotonic(), self._log.stat().st_size
        self.tell(f"==== {step.name}: {shlex.join(words)}")
        code: int | None = None
        if step.needs and shutil.which(step.needs) is None:
            self._note(f"there is no {step.needs}")
            how = "left out"
        elif self.left < LEAST:
            self._note("there is no time for it")
            how = "left out"
            self.well = False
        else:
            code = self._call(words, min(step.seconds or self.left, self.left), step.to)
            how = "not done" if code is None else f"ended with {code}"
            self.well = self.well and code == 0
        seconds = round(time.monotonic() - begun, 1)
        said = self._log.read_bytes()[at:].decode("utf-8", "replace").splitlines()
        print(*said[1:], sep="\n", flush=True)
        self.tell(f"---- {step.name}: {how} after {seconds} s")
        self.outcomes.append(
            Outcome(step.name, words, code, seconds, said[1:][-LINES:])
        )
        entries = {"run": self._run, "steps": [asdict(one) for one in self.outcomes]}
        path = self._output / f"{self._run}.json"
        path.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")

    def _words(self, step: Step) -> list[str]:
        words = [
            word.format(left=max(int(self.left - 15), 1), out=self._output)
            for word in shlex.split(step.command)
        ]
        if "python" in words:
            words[words.index("python")] = sys.executable
        return [
            str(ROOT / word) if word.startswith(("scripts/", "tests/")) else word
            for word in words
        ]

    def _call(self, words: Sequence[str], seconds: float, to: str) -> int | None:
        """Exit code. What it prints is in the log at once: nothing is lost with it."""
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
        }
        own = self._folder / to if to else None
        code: int | None = None
        with (
            self._log.open("ab") as log,
            own.open("wb") if own else contextlib.nullcontext(log) as printed,
            subprocess.Popen(
                words,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=log,
                **GROUP,
            ) as process,
        ):
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        if own:
            with self._log.open("ab") as log:
                log.write(own.read_bytes())
        return code

    def _note(self, line: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")

    def tell(self, line: str) -> None:
        """Printed, and in the log."""
        print(line, flush=True)
        self._note(line)


def build(visit: Visit, folder: Path) -> bool:
    """The native code into the source tree, unless it was built there from these
    sources for this Python; whether it is there then."""
    built = [sys.executable, "-c", BUILT]
    there = subprocess.run(built, cwd=ROOT, capture_output=True, check=False)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    mark, digest = ROOT / "build" / f"visit-{tag}", _digest()
    if there.returncode or not mark.exists() or mark.read_text() != digest:
        # Half of the time: there may be a wheel, where a machine is this slow.
        visit.do(Step("build", f"{PIP} -w {folder} {ROOT}", visit.left / 2))
        version = re.search(r'= "(.+)"', (ROOT / "memplan/version.py").read_text())
        known = f"memplan-{version.group(1)}-{tag}-*.whl" if version else ""
        for wheel in [*folder.glob("*.whl"), *(ROOT / "dist").glob(known)][:1]:
            visit.tell(f"the native code is that of {wheel}")
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.startswith("memplan/native/") and name.endswith(".so"):
                        archive.extract(name, ROOT)
            mark.parent.mkdir(exist_ok=True)
            mark.write_text(digest)
    visit.do(Step("built", f"python -c {shlex.quote(BUILT)}"))
    visit.well = visit.outcomes[-1].code == 0
    return visit.well


def _digest() -> str:
    """Of the sources that are compiled."""
    found = hashlib.sha256((ROOT / "CMakeLists.txt").read_bytes())
    for path in sorted((ROOT / "memplan/native").rglob("*")):
        if path.suffix in (".cpp", ".h"):
            found.update(path.read_bytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument(
        "--seconds",
        type=float,
        help="for all of it; default: "
        + ", ".join(f"{name} {seconds}" for name, seconds in SECONDS.items()),
    )
    args = parser.parse_args()
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        visit = Visit(args.run, output, args.seconds or SECONDS[args.run], folder)
        for step in RUNS[args.run] if build(visit, folder) else ():
            visit.do(step)
    sys.exit(not visit.well)


if __name__ == "__main__":
    main()
