"""Measure what applying a plan does, in alternating runs of whole processes.

    python scripts/bench_apply.py --programs resnet50 gpt2 --repeats 5 --vs

Each program is recorded and planned once. Then it runs in rounds, one process per
allocator and round: torch's default, `memplan apply`, and with --vs jemalloc and
tcmalloc, preloaded. Every run is measured from outside by the same hook
(bench/hook). The default and memplan must print the same losses to the last bit, or
the benchmark fails; where another allocator's losses differ, that is said.

The figures: peak resident memory of the whole run (imports, model and warm-up steps
included) and of the steps after the warm-up; the median time of those steps; their
CPU time, of all threads, and page faults. Ratios are taken within a round, so that what
else the machine does falls on both sides: on CPU time it falls least. At the end, the
geometric means over the programs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import apply_tables, ratios
from bench.child import BenchError, Run, environment, measure, run_child
from bench.programs import (
    DEFAULT,
    MEMPLAN,
    OTHERS,
    PROGRAMS,
    WITH_MALLOC,
    Allocator,
    find_library,
)

MEMPLAN_COMMAND = [sys.executable, "-m", "memplan"]


@dataclass(frozen=True)
class Options:
    """How to measure."""

    steps: int
    warmup: int
    threads: int
    repeats: int
    tiny: bool
    timeout: float
    warming: bool = True


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What every benchmark that runs the example programs takes."""
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--tiny", action="store_true", help="tiny models, to try the benchmark itself"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800.0, help="seconds a run may take"
    )


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure programs under memplan apply and other allocators.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    names = list(PROGRAMS)
    parser.add_argument("--programs", nargs="+", choices=names, default=names)
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    parser.add_argument("--steps", type=int, default=15, help="steps a run")
    parser.add_argument(
        "--warmup", type=int, default=5, help="steps of a run that do not count"
    )
    parser.add_argument(
        "--vs", action="store_true", help="jemalloc and tcmalloc, preloaded, as well"
    )
    parser.add_argument(
        "--no-warming",
        action="store_true",
        help="leave out the round that warms the machine up and does not count",
    )
    parser.add_argument(
        "--no-plan", action="store_true", help="leave memplan out: only the others"
    )
    parser.add_argument(
        "--both",
        action="store_true",
        help="memplan apply with each of the others preloaded, as well",
    )
    parser.add_argument(
        "--malloc", action="store_true", help="memplan apply --malloc as well"
    )
    add_run_arguments(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every run to FILE, too"
    )
    args = parser.parse_args(argv)
    if args.repeats < 1 or args.threads < 1:
        parser.error("--repeats and --threads must be at least 1")
    if args.no_plan and (args.both or args.malloc):
        parser.error(
            "--both and --malloc are about memplan, which --no-plan leaves out"
        )
    if args.warmup < 1 or args.steps < args.warmup + 1:
        parser.error("--warmup must be at least 1, and --steps more than that")
    return args


def allocators(vs: bool, no_plan: bool) -> tuple[list[Allocator], dict[str, str]]:
    """Those to measure, in the order of a round; and why others are left out."""
    found = [DEFAULT] if no_plan else [DEFAULT, MEMPLAN]
    skipped = {}
    for name, library in OTHERS.items() if vs else ():
        path = find_library(library)
        if path is None:
            skipped[name] = f"{library} is not installed"
        else:
            found.append(Allocator(name, preload=path))
    return found, skipped


def make_plan(name: str, command: list[str], folder: Path, timeout: float) -> Path:
    """Record `command` and plan its memory, in `folder`; say briefly how it went."""
    trace, plan = folder / f"{name}.parquet", folder / f"{name}.plan.json"
    env = environment()
    recording = [*MEMPLAN_COMMAND, "record", "-o", str(trace), *command]
    _, notes, _ = run_child(recording, env, timeout)
    for line in notes.strip().splitlines()[:8]:
        print(f"  {line.replace(str(folder) + os.sep, '')}")
    solving = [*MEMPLAN_COMMAND, "solve", str(trace), "-o", str(plan), "--json"]
    output, _, _ = run_child(solving, env, timeout)
    solved = json.loads(output)
    shown = ("method", "buffers", "peak", "lower_bound", "status", "seconds")
    facts = ", ".join(f"{key} {solved[key]}" for key in shown if key in solved)
    print(f"  memplan solve: {facts}", flush=True)
    return plan


def run_one(
    allocator: Allocator,
    command: list[str],
    plan: Path | None,
    warmup: int,
    timeout: float,
) -> Run:
    """One process: `command` under `allocator`; under a plan, with its report.

    warmup: boundaries until what counts.
    """
    if not allocator.planned or plan is None:
        child = [sys.executable, *command]
        return measure(child, allocator.preload, warmup, timeout)
    report = plan.with_suffix(".report.json")
    report.unlink(missing_ok=True)
    options = ["--report", str(report), *allocator.options]
    child = [*MEMPLAN_COMMAND, "apply", *options, str(plan), *command]
    run = measure(child, allocator.preload, warmup, timeout)
    return replace(run, report=json.loads(report.read_text()))


def rounds(
    name: str, chosen: list[Allocator], folder: Path, options: Options
) -> Iterator[dict[str, Run]]:
    """One run per allocator and round, after one that warms the machine up."""
    program = PROGRAMS[name]
    steps = options.steps if options.tiny else max(options.steps, program.steps)
    command = program.command(steps, options.threads, options.tiny)
    print(f"\n{name}: {' '.join(command[1:])}", flush=True)
    plan = None
    if any(allocator.planned for allocator in chosen):
        recorded = min(program.recorded or steps, steps)
        to_record = program.command(recorded, options.threads, options.tiny)
        plan = make_plan(name, to_record, folder, options.timeout)
    warmup = options.warmup * program.marks
    for number in range(0 if options.warming else 1, options.repeats + 1):
        found = {
            of.name: run_one(of, command, plan, warmup, options.timeout)
            for of in chosen
        }
        if number > 0:
            times = (f"{of} {run.step_seconds:.4f}" for of, run in found.items())
            print(f"  round {number}: {', '.join(times)} s a step", flush=True)
            yield found


def by_allocator(done: list[dict[str, Run]]) -> dict[str, list[Run]]:
    """The runs of each allocator, in the order of the rounds."""
    return {name: [one[name] for one in done] for name in done[0]}


def machine() -> dict[str, Any]:
    """Where the figures were measured."""
    return {
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
    }


def to_json(
    results: dict[str, dict[str, list[Run]]],
    options: Options,
    skipped: dict[str, str],
) -> dict[str, Any]:
    """Every run, and the spreads of the ratios."""
    return {
        "schema": "memplan.bench-apply",
        "version": 1,
        "machine": machine(),
        "options": asdict(options),
        "skipped": skipped,
        "programs": {
            name: {
                "runs": {of: [run.to_json() for run in runs[of]] for of in runs},
                "ratios": ratios.to_json(runs),
            }
            for name, runs in results.items()
        },
        "geometric_means": ratios.geometric_means(results),
    }


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    options = Options(
        args.steps,
        args.warmup,
        args.threads,
        args.repeats,
        args.tiny,
        args.timeout,
        not args.no_warming,
    )
    chosen, skipped = allocators(args.vs or args.both, args.no_plan)
    if args.both:
        found = [one for one in chosen if one.preload is not None]
        chosen += [replace(of, name=f"+{of.name}", planned=True) for of in found]
    if args.malloc:
        chosen.append(WITH_MALLOC)
    about = ", ".join(f"{key} {value}" for key, value in machine().items())
    print(f"{about}\n{options.repeats} rounds, {options.warmup} warm-up steps a run")
    for name, reason in skipped.items():
        print(f"{name} left out: {reason}")
    results: dict[str, dict[str, list[Run]]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="bench-apply-") as folder:
            for name in args.programs:
                done: list[dict[str, Run]] = []
                others: dict[str, str] = {}
                try:
                    for one in rounds(name, chosen, Path(folder), options):
                        both = by_allocator([*done, one])
                        others = ratios.require_equal_losses(name, both)
                        done.append(one)
                finally:  # whatever ends it: complete rounds are not lost
                    if done:
                        results[name] = by_allocator(done)
                        apply_tables.show(results[name], others)
                        write_json(args.json, to_json(results, options, skipped))
        print(apply_tables.means(results))
    except BenchError as error:
        print(f"bench_apply: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench_apply: interrupted", file=sys.stderr)
        return 130
    return 0


def write_json(file: Path | None, entries: dict[str, Any]) -> None:
    """Write `entries` to `file`, if one was asked for."""
    if file is not None:
        file.write_text(json.dumps(entries, indent=1) + "\n")


def interrupt(*_: object) -> None:
    """What SIGTERM does: the same as Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    sys.exit(main())
