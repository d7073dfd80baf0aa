"""What to run on a GPU that is there for a while: four runs, each within ten minutes.

    python scripts/gpu/visit.py tests --output OUT      # and builds memplan before
    python scripts/gpu/visit.py bench --output OUT
    python scripts/gpu/visit.py largest --output OUT
    python scripts/gpu/visit.py programs --output OUT

Nothing is fetched and nothing installed: memplan is built where it stands, with what
the interpreter has (scikit-build-core, nanobind, CMake, ninja, a C++20 compiler), or
its native code is taken from a wheel for this Python in dist/. Each run leaves RUN.log,
all that was printed, and RUN.json: of each step the command, its exit code (null: there
was no time for it, or no more), its seconds and its last lines. Ends with 1 unless
every step ended well.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parents[2]
GPU = "scripts/gpu"
LINES = 40  # of a step's output that RUN.json keeps
LEAST = 5  # seconds, with less of which no step is begun
FACTS = """\
import sys, torch
print(sys.version)
print("torch", torch.__version__, "cuda", torch.version.cuda, torch.__file__)
for device in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device))
"""
# The native code is there, for this interpreter.
BUILT = "import memplan.native._alloc; "
BUILT += "from memplan.recording.cuda_slots import library_path; "
BUILT += "assert library_path().exists()"


@dataclass(frozen=True)
class Step:
    """A command, as a shell would split it; python is this interpreter, {left} how many
    seconds there are left, {out} where the figures go.

    seconds: it may take. to: a file in the run's folder that gets its standard output.
    needs: a program without which it is left out.
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
COMPATIBILITY = f"{GPU}/compatibility.py"
SMALL = "scripts/train_gpu.py gpt2 --batch-size 1 --length 128 --steps 6"
MANY = f"{GPU}/many_requests.py 300000"
RUNS: dict[str, list[Step]] = {
    "tests": [
        Step("driver", "nvidia-smi", needs="nvidia-smi"),
        Step("facts", f"python -c {shlex.quote(FACTS)}"),
        # A file of its own each: one that ends the interpreter ends no other.
        *(
            Step(f"tests {name}", f"{PYTEST} tests/gpu/test_gpu_{name}.py", 150)
            for name in ("training", "soak", "stacks")
        ),
        Step("soak", f"python {GPU}/soak.py 1000000", 180),
        Step("cost", f"python {GPU}/cost.py", 60),
        Step("requests", f"python {MANY}", 60),
        Step(
            "requests recorded",
            "python -m memplan record -q --force --device cuda --stacks none "
            f"--steps all -o m.parquet {MANY}",
            90,
        ),
    ],
    "bench": [
        Step("bench", "python scripts/bench_gpu.py --rounds 3 --seconds {left}", 600)
    ],
    "largest": [
        Step(
            "largest",
            "python scripts/bench_gpu.py --rounds 0 --largest 24 --steps 8 "
            "--networks resnet50 gpt2-medium --seconds {left}",
            600,
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
            "sample", f"python {GPU}/sample_snapshot.py --output {{out}}/sample.pickle"
        ),
        Step("sample read", "python -m memplan stats {out}/sample.pickle"),
        *planned(SMALL, "s"),
        Step(
            "memcheck",
            "compute-sanitizer --tool memcheck --error-exitcode 99 --target-processes "
            f"all python -m memplan apply -q s.json {SMALL}",
            200,
            needs="compute-sanitizer",
        ),
        Step(
            "recorded",
            "python -m memplan record -q --force --device cuda --steps all "
            f"-o r.parquet {COMPATIBILITY}",
            to="recorded.txt",
        ),
        Step("recorded as native", "diff native.txt recorded.txt"),
        Step("plans that do not fit", f"python {GPU}/unfit.py --steps 8", 240),
    ],
}


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

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def do(self, step: Step) -> None:
        """Run it, and write down what came of it."""
        words = [
            word.format(left=int(self.left - 15), out=self._output)
            for word in shlex.split(step.command)
        ]
        if "python" in words:
            words[words.index("python")] = sys.executable
        for i, word in enumerate(words):
            if word.startswith(("scripts/", "tests/")):
                words[i] = str(ROOT / word)
        begun = time.monotonic()
        if step.needs and shutil.which(step.needs) is None:
            code, printed, errors = 0, "", f"left out: there is no {step.needs}"
        elif self.left < LEAST:
            code, printed, errors = None, "", "left out: there is no time for it"
        else:
            code, printed, errors = self._call(words, min(step.seconds, self.left))
        if step.to:
            (self._folder / step.to).write_text(printed, encoding="utf-8")
        seconds = round(time.monotonic() - begun, 1)
        lines = [*printed.splitlines(), *errors.splitlines()]
        self._tell(f"==== {step.name}: {' '.join(words)}", *lines)
        self._tell(f"---- {step.name}: {_how(code)} after {seconds} s")
        self.outcomes.append(Outcome(step.name, words, code, seconds, lines[-LINES:]))
        entries = {"run": self._run, "steps": [asdict(one) for one in self.outcomes]}
        path = self._output / f"{self._run}.json"
        path.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")

    def _call(
        self, words: Sequence[str], seconds: float
    ) -> tuple[int | None, str, str]:
        """Exit code, standard output and errors."""
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        code: int | None = None
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
            with subprocess.Popen(
                words,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                start_new_session=True,
            ) as process:
                try:
                    code = process.wait(seconds)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
            texts = []
            for file in (printed, errors):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
        return code, *texts

    def _tell(self, *lines: str) -> None:
        text = "\n".join(lines) + "\n"
        print(text, end="", flush=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(text)


def _how(code: int | None) -> str:
    return "not done" if code is None else f"ended with {code}"


def build(visit: Visit, folder: Path) -> bool:
    """The native code into the source tree, unless it is there for this Python; whether
    it is there then."""
    built = [sys.executable, "-c", BUILT]
    if subprocess.run(built, cwd=ROOT, capture_output=True, check=False).returncode:
        pip = "python -m pip wheel -q --no-index --no-build-isolation --no-deps"
        visit.do(Step("build", f"{pip} -w {folder} {ROOT}", 300))
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        wheels = [
            *folder.glob("*.whl"),
            *(ROOT / "dist").glob(f"memplan-*-{tag}-*.whl"),
        ]
        for wheel in wheels[:1]:
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.startswith("memplan/native/") and name.endswith(".so"):
                        archive.extract(name, ROOT)
    visit.do(Step("built", f"python -c {shlex.quote(BUILT)}"))
    return visit.outcomes[-1].code == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--seconds", type=float, default=570, help="for all of it")
    args = parser.parse_args()
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        visit = Visit(args.run, output, args.seconds, folder)
        for step in RUNS[args.run] if build(visit, folder) else ():
            visit.do(step)
    sys.exit(any(outcome.code != 0 for outcome in visit.outcomes))


if __name__ == "__main__":
    main()
