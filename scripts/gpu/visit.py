"""What to run on a GPU that you have for a while: three runs, under half an hour.

    python scripts/gpu/visit.py tests --output OUT      # builds memplan first
    python scripts/gpu/visit.py bench --output OUT
    python scripts/gpu/visit.py programs --output OUT

Nothing is fetched and nothing installed: memplan is built in place with what the
interpreter has (scikit-build-core, nanobind, CMake, ninja, a C++20 compiler), unless
--built says that it is there. Each run writes RUN.log, all output line by line, and
RUN.json: of each step the command, its exit code (null: left out, or not finished in
time), its seconds and its last lines. A failed step stops no other one. Ends with 1
unless every step succeeded, except those whose program is not on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
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
BUILT += "from memplan.recording.cuda_library import library_path; "
BUILT += "assert library_path().exists()"


FACTS = """\
import sys, torch
print(sys.version)
print("torch", torch.__version__, "cuda", torch.version.cuda, torch.__file__)
for device in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device))
"""


@dataclass(frozen=True)
class Step:
    """A command, as a shell would split it; python is this interpreter, {left} how many
    seconds there are left, {out} where the figures go.

    seconds: it may take; 0: all that are left. to: a file in the run's folder that gets
    its standard output. needs: a program without which it is left out.
    """

    name: str
    command: str
    seconds: float = 120
    to: str = ""
    needs: str = ""


def planned(program: str, plan: str) -> list[Step]:
    """Record `program`, and make the plan."""
    record = "python -m memplan record -q --force --device cuda"
    return [
        Step(f"record {plan}", f"{record} -o {plan}.parquet {program}"),
        Step(
            f"solve {plan}",
            f"python -m memplan solve --force {plan}.parquet -o {plan}.json",
        ),
    ]


PYTEST = "python -m pytest -q -rs -p no:cacheprovider"
COMPATIBILITY = "scripts/gpu/compatibility.py"
SMALL = "scripts/gpu/train.py gpt2 --batch-size 1 --length 128 --steps 6"
MANY = "scripts/gpu/many_requests.py 300000"
SECONDS = {"tests": 330, "bench": 600, "programs": 360}  # of a run
RUNS: dict[str, list[Step]] = {
    "tests": [
        Step("driver", "nvidia-smi", needs="nvidia-smi"),
        Step("facts", f"python -c {shlex.quote(FACTS)}"),
        # A file of its own each: one that ends the interpreter ends no other. What the
        # programs' run does is not done here, too.
        *(
            Step(f"tests {name}", f"{PYTEST} tests/gpu/test_gpu_{name}.py{but}", 150)
            for name, but in (
                ("training", " -k 'not what_programs_ask'"),
                ("soak", ""),
                ("stacks", ""),
            )
        ),
        Step("requests", f"python {MANY}", 60),
        Step(
            "requests recorded",
            "python -m memplan record -q --force --device cuda --stacks none "
            f"--steps all -o m.parquet {MANY}",
            90,
        ),
        # As many requests as there is time for.
        Step("soak", "python scripts/gpu/soak.py 1000000 --seconds {left}", 0),
    ],
    "bench": [
        # With the records, so that a second run goes on where time ran out.
        Step(
            "bench",
            "python scripts/benchmark.py gpu --timeout 150 --repeats 3 --warmups 0 "
            "--json {out}/bench.jsonl",
            0,
        )
    ],
    "programs": [
        Step("native", f"python {COMPATIBILITY}", to="native.txt"),
        *planned(f"{COMPATIBILITY} --steps-only", "c"),
        Step(
            "planned",
            f"python -m memplan apply -q c.json {COMPATIBILITY}",
            to="planned.txt",
        ),
        Step("planned as native", "diff native.txt planned.txt"),
        Step(
            "recorded",
            "python -m memplan record -q --force --device cuda --steps all "
            f"-o r.parquet {COMPATIBILITY}",
            to="recorded.txt",
        ),
        Step("recorded as native", "diff native.txt recorded.txt"),
        *planned(SMALL, "s"),
        # Last, as it takes longest: many times what it takes without.
        Step(
            "memcheck",
            "compute-sanitizer --tool memcheck --report-api-errors no "
            "--error-exitcode 99 --target-processes all "
            f"python -m memplan apply -q s.json {SMALL}",
            0,
            needs="compute-sanitizer",
        ),
    ],
}


@dataclass(frozen=True)
class Outcome:
    """What became of a step; code: null where it did not end."""

    name: str
    command: list[str]
    code: int | None
    seconds: float
    said: list[str]


class Visit:
    """One run, with its time limit and its scratch folder."""

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
        """Run a step, and write down its outcome."""
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
        """The exit code. Output goes straight to the log, so that none is lost."""
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
    """Build the native code into the source tree; whether it can be imported then."""
    visit.do(Step("build", f"{PIP} -w {folder} {ROOT}", visit.left / 2))
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith("memplan/native/") and name.endswith(".so"):
                    archive.extract(name, ROOT)
    return is_built(visit)


def is_built(visit: Visit) -> bool:
    """Whether the native code can be imported from the source tree."""
    visit.do(Step("built", f"python -c {shlex.quote(BUILT)}"))
    visit.well = visit.outcomes[-1].code == 0
    return visit.well


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
    parser.add_argument("--built", action="store_true", help="do not build it")
    args = parser.parse_args()
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        visit = Visit(args.run, output, args.seconds or SECONDS[args.run], folder)
        is_there = is_built(visit) if args.built else build(visit, folder)
        for step in RUNS[args.run] if is_there else ():
            visit.do(step)
    sys.exit(not visit.well)


if __name__ == "__main__":
    main()
