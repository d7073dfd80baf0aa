"""What to run on a GPU that you have for minutes: `visit.py PART... --out OUT`.

    tests     tests/gpu, the soak, what programs ask of torch.cuda, compute-sanitizer
    programs  scripts/gpu/programs.py, each natively and under the plan of a recording
    budgets   programs that train, with modules computed again for less memory
    estimate  peaks that `record --device fake:cuda` predicts beside real ones
    times     requests and training steps: alone on the GPU, after all others

The first four run side by side. Nothing is fetched and nothing installed. memplan is
built in place with what the interpreter has (scikit-build-core, nanobind, CMake, ninja,
a C++20 compiler), unless --built says that it is there. A step that fails or hangs
stops no other. OUT gets log.txt and figures.jsonl. Ends with 1 unless every step
succeeded.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "scripts" / "gpu"
SETTING = "PYTORCH_CUDA_ALLOC_CONF"
SAID = re.compile(r"^cuda (\{.*\})$", re.MULTILINE)
MIB = 1 << 20
MEMPLAN = (sys.executable, "-m", "memplan")
PARTS = ("tests", "programs", "budgets", "estimate", "times")
RECORDED, RUN = "12", "40"  # steps
RUNS = ("native", "expandable", "memplan", "fixed")
ROUNDS = 3  # of what is timed


class StepError(Exception):
    """A step failed: its name, and how."""


@dataclass
class Visit:
    """Where the steps run, for how long, and what they said.

    end: of the monotonic clock. arguments: of every program. runs: see `held`.
    patience: times as long as it should take, a step may.
    """

    out: Path
    folder: Path
    end: float
    arguments: tuple[str, ...] = ()
    runs: tuple[str, ...] = RUNS
    patience: float = 1
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self,
        name: str,
        command: Sequence[object],
        seconds: float = 90,
        setting: str = "",
        at: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a step in `at`; raises StepError unless it ends with 0 in time."""
        left = min(seconds * self.patience, self.end - time.monotonic())
        if left < 5:
            raise StepError(f"{name}: left out, there is no time for it")
        env = {k: v for k, v in os.environ.items() if k != SETTING}
        paths = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
        env |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "2"}
        env |= {SETTING: setting} if setting else {}
        begun = time.monotonic()
        try:
            done = subprocess.run(
                list(map(str, command)),
                cwd=at or self.folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=left,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            self.note(f"{name}: still ran after {left:.0f} s\n{_text(late.stderr)}")
            raise StepError(f"{name}: still ran after {left:.0f} s") from None
        taken = time.monotonic() - begun
        self.note(
            f"==== {name}: {done.returncode} after {taken:.1f} s\n"
            f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        )
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise StepError(f"{name}: ended with {done.returncode}: {' '.join(last)}")
        return done

    def note(self, text: str) -> None:
        """Into the log."""
        with self.lock, (self.out / "log.txt").open("a") as log:
            log.write(text + "\n")

    def tell(self, **figures: object) -> None:
        """A row of figures.jsonl, and a line."""
        with self.lock, (self.out / "figures.jsonl").open("a") as rows:
            rows.write(json.dumps(figures) + "\n")
            said = (
                f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}"
                for k, v in figures.items()
            )
            print(" ".join(said), flush=True)

    def attempt(self, work: Callable[[], None]) -> None:
        """Does it; a failure is told, and stops nothing."""
        try:
            work()
        except StepError as failure:
            with self.lock:
                self.failed.append(str(failure))
                print(f"FAILED {failure}", flush=True)


def _text(output: str | bytes | None) -> str:
    return (
        output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    )


def build(visit: Visit) -> None:
    at = visit.folder / "wheel"
    alone = ("-q", "--no-index", "--no-build-isolation", "--no-deps")
    wheel = (sys.executable, "-m", "pip", "wheel", *alone, "-w", at, ROOT)
    visit.run("build", wheel, 300)
    (found,) = at.glob("memplan-*.whl")
    shutil.unpack_archive(found, at, "zip")
    for library in (at / "memplan" / "native").glob("*.so"):
        shutil.copy(library, ROOT / "memplan" / "native")


# ---- tests


def tests(visit: Visit) -> Iterator[Callable[[], None]]:
    yield lambda: sanitizer(visit)
    for name in ("stacks", "training", "soak"):
        yield lambda name=name: pytest(visit, name)  # type: ignore[misc]
    yield lambda: soak(visit)
    yield lambda: compatibility(visit)
    yield lambda: chunked(visit)


def pytest(visit: Visit, name: str) -> None:
    file = ROOT / "tests" / "gpu" / f"test_gpu_{name}.py"
    flags = ["-q", "-rs", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    flags += ["-k", "not what_programs_ask"]  # `compatibility` does
    done = visit.run(name, [sys.executable, "-m", "pytest", *flags, file], 200)
    visit.tell(tests=name, said=done.stdout.strip().splitlines()[-1])


def soak(visit: Visit) -> None:
    left = min(visit.end - time.monotonic() - 20, 60)
    done = visit.run(
        "soak",
        [sys.executable, GPU / "soak.py", 1_000_000, "--seconds", left],
        left + 60,
    )
    visit.tell(soak=done.stdout.strip())


def compatibility(visit: Visit) -> None:
    """What programs ask of torch.cuda ends natively, recorded and planned alike."""
    script = GPU / "compatibility.py"
    at = visit.folder / "compatibility"
    at.mkdir()

    def asked(name: str, *command: object) -> list[str]:
        return visit.run(name, command, 150, at=at).stdout.splitlines()

    record = (*MEMPLAN, "record", "-q", "--device", "cuda")
    native = asked("native", sys.executable, script)
    asked("record", *record, "-o", "c.parquet", script, "--steps-only")
    asked("solve", *MEMPLAN, "solve", "c.parquet", "-o", "c.json")
    for name, command in {
        "planned": (*MEMPLAN, "apply", "-q", "c.json", script),
        "recorded": (*record, "--steps", "all", "-o", "r.parquet", script),
    }.items():
        other = [line for line in asked(name, *command) if line[:1] not in "=-"]
        changes = [
            line
            for line in difflib.unified_diff(native, other, lineterm="", n=0)
            if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        visit.tell(calls=len(native), run=name, differ=len(changes))
        if changes:
            raise StepError(f"{name} differs from native: {'; '.join(changes[:8])}")


def sanitizer(visit: Visit) -> None:
    if shutil.which("compute-sanitizer") is None:
        raise StepError("memcheck: there is no compute-sanitizer")
    at = visit.folder / "sanitizer"
    at.mkdir()
    program = (GPU / "programs.py", "adversarial")
    plan_of(visit, "memcheck", at, program)
    tool = ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no")
    options = ("--error-exitcode", "99", "--target-processes", "all")
    planned = (*MEMPLAN, "apply", "-q", "p.json", *program)
    done = visit.run("memcheck", [*tool, *options, *planned], 240, at=at)
    found = re.search(r"ERROR SUMMARY: .*", done.stdout + done.stderr)
    visit.tell(memcheck=found.group() if found else "no summary")


def chunked(visit: Visit) -> None:
    """Activation chunking of a module on the GPU: bytes, and the error it makes."""
    done = visit.run("chunk", [sys.executable, GPU / "chunked.py"], 150)
    for line in done.stdout.splitlines():
        visit.tell(**json.loads(line))


# ---- programs that nobody wrote for it


def plan_of(visit: Visit, name: str, at: Path, program: Sequence[object]) -> None:
    record = (*MEMPLAN, "record", "-q", "--device", "cuda", "-o", "t.parquet")
    steps = ("--steps", RECORDED, "--seed", "1", *visit.arguments)
    visit.run(f"{name}: record", [*record, *program, *steps], at=at)
    visit.run(
        f"{name}: solve", [*MEMPLAN, "solve", "t.parquet", "-o", "p.json"], 60, at=at
    )


def held(visit: Visit, name: str) -> None:
    """One program: its reserved bytes and output natively and under a plan."""
    at = visit.folder / name
    at.mkdir()
    program = (GPU / "programs.py", name)
    steps = ("--steps", RUN, *visit.arguments)
    plain = (sys.executable, *program, *steps)
    planned = (*MEMPLAN, "apply", "-q")
    runs: dict[str, tuple[Sequence[object], str]] = {
        "native": (plain, ""),
        "expandable": (plain, "expandable_segments:True"),
        "memplan": ((*planned, "p.json", *program, *steps), ""),
        "fixed": ((*planned, "--no-replan", "p.json", *program, *steps), ""),
    }
    figures: dict[str, object] = {"program": name}
    outputs = {}
    for run, (command, setting) in runs.items():
        if run not in visit.runs:
            continue
        if run == "memplan":
            try:
                plan_of(visit, name, at, program)
            except StepError as refusal:
                visit.tell(**figures, refused=str(refusal))
                return
        done = visit.run(f"{name}: {run}", command, setting=setting, at=at)
        said = SAID.search(done.stderr)
        if said is None:
            raise StepError(f"{name}: {run}: does not say what it took")
        entries = json.loads(said.group(1))
        outputs[run] = done.stdout
        figures[run] = round(entries["reserved"] / MIB, 1)
        figures[f"{run}_end"] = round(entries["at_the_end"] / MIB, 1)
    outputs.pop("expandable", None)
    figures["same"] = len(set(outputs.values())) == 1
    visit.tell(**figures)
    if not figures["same"]:
        raise StepError(f"{name}: prints something else under the plan")


def programs(visit: Visit, names: Sequence[str]) -> Iterator[Callable[[], None]]:
    for name in names:
        yield lambda name=name: held(visit, name)  # type: ignore[misc]


def summarise(visit: Visit) -> None:
    """The table of all programs: MiB reserved at most, and ratios to native's."""
    rows = [
        json.loads(x)
        for x in (visit.out / "figures.jsonl").read_text().split("\n")[:-1]
    ]
    rows = [row for row in rows if "program" in row and "refused" not in row]
    kinds = [run for run in visit.runs if run != "native"]
    print(f"{'program':34}{'native MiB':>11}" + "".join(f"{k:>12}" for k in kinds))
    for row in sorted(rows, key=lambda row: -row["memplan"] / row["native"]):
        ratios = "".join(f"{row[k] / row['native']:12.3f}" for k in kinds)
        print(f"{row['program']:34}{row['native']:11.1f}{ratios}")
    if rows:
        means = (
            math.exp(sum(math.log(row[k] / row["native"]) for row in rows) / len(rows))
            for k in kinds
        )
        print(
            f"{'geometric mean of ' + str(len(rows)):45}"
            + "".join(f"{m:12.3f}" for m in means)
        )


# ---- training under a budget

TRAINED = (
    *("language_model", "image_classifier", "segmentation", "mixed_precision"),
    *("scaled_gradients", "accumulated_and_clipped", "adversarial", "recurrent"),
    *("gradient_penalty", "distilled", "recomputed_activations", "sharpness_aware"),
    *("evaluated_in_between", "weights_in_half", "contrastive_with_queue", "compiled"),
    *("distributed", "mixture", "only_the_last_layers", "averaged_late"),
)
BUDGETS = ("100%", "85%", "70%", "min")  # of the recorded peak


def budgets(visit: Visit, names: Sequence[str]) -> Iterator[Callable[[], None]]:
    for name in names:
        yield lambda name=name: budgeted(visit, name)  # type: ignore[misc]


def budgeted(visit: Visit, name: str) -> None:
    """One program: what it prints, its peak, the promised one, and time of a step."""
    at = visit.folder / f"budget-{name}"
    at.mkdir()
    program = (GPU / "programs.py", name)
    steps = ("--steps", RECORDED, *visit.arguments)
    native = visit.run(f"{name}: native", (sys.executable, *program, *steps), at=at)
    record = (*MEMPLAN, "record", "-q", "--device", "cuda", "--activations")
    recorded = visit.run(
        f"{name}: record", [*record, "-o", "t.parquet", *program, *steps], at=at
    )
    visit.tell(budget=name, same_recorded=recorded.stdout == native.stdout)
    for budget in BUDGETS:
        figures: dict[str, object] = {"budget": name, "asked": budget}
        solve = (*MEMPLAN, "solve", "t.parquet", "--budget", budget, "--json")
        quick = ("--method", "bestfit", "--force", "-o", "p.json")
        try:
            solved = visit.run(f"{name}: solve {budget}", (*solve, *quick), 120, at=at)
        except StepError as refusal:
            visit.tell(**figures, refused=str(refusal)[-300:])
            continue
        found = json.loads(solved.stdout)["budget"]
        apply = (*MEMPLAN, "apply", "--force", "--report", "r.json", "p.json")
        try:
            done = visit.run(f"{name}: {budget}", (*apply, *program, *steps), at=at)
        except StepError as failure:
            visit.tell(**figures, failed=str(failure)[-300:])
            continue
        report = json.loads((at / "r.json").read_text())
        memory = next(iter(report["device_memory"].values()), None)
        if memory is None:
            visit.tell(**figures, unused=report["fault"] or "no device was used")
            continue
        again = report["recompute"] or {"recomputations": 0}
        visit.tell(
            **figures,
            same=done.stdout == native.stdout,
            units=len(found["units"]),
            recomputed=found["recomputed"],
            calls=again["recomputations"],
            budget_mib=found["budget"] / MIB,
            promised=found["predicted_bytes"] / MIB,
            allocated=memory["allocated_peak"] / MIB,
            reserved=memory["reserved_peak"] / MIB,
            milliseconds=report["device_seconds"]["median"] * 1e3,
        )


# ---- what a simulated GPU predicts


def estimate(visit: Visit) -> Iterator[Callable[[], None]]:
    for program in (
        "gpt2 --batch-size 4",
        "resnet50 --batch-size 32",
        "unet --batch-size 8",
        "seq2seq --batch-size 32",
    ):
        yield lambda program=program: predicted(visit, program)  # type: ignore[misc]


def predicted(visit: Visit, program: str) -> None:
    name, *arguments = program.split()
    at = visit.folder / f"estimate-{name}"
    at.mkdir()
    command = (GPU / "train.py", name, *arguments, "--steps", "6", *visit.arguments)
    real = visit.run(f"{name}: real", [sys.executable, *command], at=at)
    said = SAID.search(real.stdout)
    record = (*MEMPLAN, "record", "-q", "--device", "fake:cuda", "-o", "f.parquet")
    visit.run(f"{name}: predicted", [*record, *command], 120, at=at)
    stats = visit.run(
        f"{name}: stats", [*MEMPLAN, "stats", "f.parquet", "--json"], 60, at=at
    )
    if said is None:
        raise StepError(f"{name}: does not say what it took")
    entries, found = json.loads(said.group(1)), json.loads(stats.stdout)
    for what, told in {
        "allocated": found["peak_bytes"],
        "reserved": found["reserved"]["peak_bytes"],
    }.items():
        real_mib = entries[what] / MIB
        told_mib = told / MIB
        visit.tell(
            estimate=program,
            of=what,
            real=real_mib,
            predicted=told_mib,
            ratio=told_mib / real_mib,
        )


# ---- times


def times(visit: Visit) -> Iterator[Callable[[], None]]:
    yield lambda: requests(visit)
    for case in ("resnet50", "gpt2-medium"):
        yield lambda case=case: trained(visit, case)  # type: ignore[misc]


def requests(visit: Visit) -> None:
    """Microseconds of the processor for a request and its free, on an idle GPU."""
    at = visit.folder / "requests"
    at.mkdir()
    program = (GPU / "many_requests.py", 300_000)
    record = (*MEMPLAN, "record", "-q", "--device", "cuda")
    every = ("--force", "--steps", "all", "-o", "m.parquet", *program)
    visit.run(
        "plan: record",
        [*record, "-o", "t.parquet", GPU / "many_requests.py", 4000],
        at=at,
    )
    visit.run("plan: solve", [*MEMPLAN, "solve", "t.parquet", "-o", "p.json"], at=at)
    ways = {
        "native": (sys.executable, *program),
        "recorded, no stacks": (*record, "--stacks", "none", *every),
        "recorded": (*record, *every),
        "planned": (*MEMPLAN, "apply", "-q", "p.json", *program),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, command in ways.items():
            done = visit.run(f"requests {name}", command, at=at)
            match = re.search(r"([\d.]+) us a request", done.stdout)
            found[name].append(float(match.group(1)) if match else math.nan)
    for name, values in found.items():
        low, middle, high = min(values), sorted(values)[len(values) // 2], max(values)
        visit.tell(requests=name, least=low, median=middle, most=high)


def trained(visit: Visit, case: str) -> None:
    rows = visit.out / f"{case}.jsonl"
    done = visit.run(
        case,
        [
            *(
                sys.executable,
                ROOT / "scripts" / "benchmark.py",
                "gpu",
                "--cases",
                case,
            ),
            *("--repeats", ROUNDS, "--warmups", 0, "--timeout", 60, "--json", rows),
        ],
        180,
    )
    print(done.stdout, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--seconds", type=float, default=540, help="for all of it")
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--built", action="store_true", help="memplan is there")
    parser.add_argument("--only", nargs="+", help="of the programs")
    parser.add_argument("--patience", type=float, default=1, help="on a busy machine")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS, help="of them")
    parser.add_argument(
        "--arguments", nargs=argparse.REMAINDER, default=[], help="of every program"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names = (
        args.only
        or subprocess.run(
            [sys.executable, GPU / "programs.py", "--list"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
    )
    with TemporaryDirectory() as folder:
        visit = Visit(
            args.out.resolve(),
            Path(folder),
            time.monotonic() + args.seconds,
            tuple(args.arguments),
            tuple(args.runs),
            args.patience,
        )
        if not args.built:
            visit.attempt(lambda: build(visit))
        work: list[Callable[[], None]] = []
        work += tests(visit) if "tests" in args.parts else ()
        work += estimate(visit) if "estimate" in args.parts else ()
        work += programs(visit, names) if "programs" in args.parts else ()
        work += budgets(visit, args.only or TRAINED) if "budgets" in args.parts else ()
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(visit.attempt, work))
        if "programs" in args.parts:
            summarise(visit)
        for each in times(visit) if "times" in args.parts else ():
            visit.attempt(each)
    for failure in visit.failed:
        print(f"FAILED {failure}")
    return bool(visit.failed)


if __name__ == "__main__":
    sys.exit(main())
