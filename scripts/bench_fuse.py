"""Depth-first fusion measured beside eager, torch.compile and two peers, in turns.

    python scripts/bench_fuse.py --networks --batch 1,8,32 --json-lines runs.jsonl
    python scripts/bench_fuse.py --networks resnet18,densenet121 --batch 8 --threads 2
    python scripts/bench_fuse.py --tables runs.jsonl      # the paper's Tables 1 and 2
    python scripts/bench_fuse.py --stack --plot figure10.svg   # the paper's Figure 10
    python scripts/bench_fuse.py --first-call resnet18    # with cold and warm caches

Every contender is a process of its own; they take turns, in an order that rotates. A
ratio is the median of those of single rounds, above 1 where memplan is faster. What
an input's layout costs to change is in everybody's time. With --json-lines, what is in
the file is not measured again: a run that was cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench import fuse_plot, fuse_tables
from bench.json_lines import append, read_records

from memplan.errors import MemplanError
from memplan.fusing.bench.contenders import COMPILED
from memplan.fusing.bench.record import (
    DEFAULT,
    BenchOptions,
    Key,
    Record,
    bench,
    cases,
    first_calls,
)
from memplan.fusing.networks import NAMES
from memplan.fusing.networks.stack import BATCH

STRATEGIES = ("memplan:1", "memplan:5", "memplan")
FIRST = ("compile", "compile:freezing_channels_last", "memplan")


def numbers(text: str) -> list[int]:
    """Whole numbers in a list: 1,8,32, or 1-40."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            found += range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r}: write 1,8,32 or 1-40"
            ) from None
    return found


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument(
        "--networks",
        nargs="?",
        type=words,
        const=NAMES,
        metavar="NAMES",
        help="all 21, or those of a list",
    )
    mode.add_argument("--stack", action="store_true", help="the paper's Figure 10")
    mode.add_argument("--tables", type=Path, metavar="FILE", help="lay out records")
    mode.add_argument("--first-call", type=words, metavar="NAMES", help="time it alone")
    parser.add_argument("--batch", type=numbers, help="sizes; 1,8,32, a stack's 16")
    parser.add_argument("--threads", type=numbers, default=[1])
    parser.add_argument("--blocks", type=numbers, default=numbers("1-40"))
    parser.add_argument("--contenders", type=words, help="which to measure")
    parser.add_argument("--ways", type=words, default=COMPILED, help="of compiling")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument(
        "--timeout", type=float, default=1800.0, help="seconds for a first call"
    )
    parser.add_argument("--json-lines", type=Path, metavar="FILE", help="append to it")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="of --stack")
    return parser.parse_args(argv)


def options_of(args: argparse.Namespace, usual: tuple[str, ...]) -> BenchOptions:
    return BenchOptions(
        contenders=args.contenders or usual,
        variants=args.ways,
        repeats=args.repeats,
        clock=args.clock,
        timeout=args.timeout,
        shares=args.networks is not None,
    )


def key_of(record: Record) -> Key:
    return record["network"], record["batch"], record["threads"]


def measured(
    keys: Iterable[Key], options: BenchOptions, file: Path | None
) -> Iterator[Record]:
    """Records of the file, then those that it lacks, added to it one by one."""
    wanted = list(keys)
    known = read_records(file) if file is not None and file.exists() else []
    found = {key_of(record): record for record in known}
    yield from (found[key] for key in wanted if key in found)
    for record in bench([key for key in wanted if key not in found], options):
        if file is not None:
            append(file, record)
        yield record


def run_networks(args: argparse.Namespace) -> None:
    keys = cases(args.networks, args.batch or [1, 8, 32], args.threads)
    options = options_of(args, DEFAULT)
    print(fuse_tables.heading(options.contenders), flush=True)
    records = []
    for record in measured(keys, options, args.json_lines):
        print(fuse_tables.row(record, options.contenders), flush=True)
        records.append(record)
    for line in fuse_tables.summary(records):
        print(line)


def run_stack(args: argparse.Namespace) -> None:
    names = [f"stack:{count}" for count in args.blocks]
    keys = cases(names, args.batch or [BATCH], args.threads)
    usual = tuple(name for name in DEFAULT if name != "memplan") + STRATEGIES
    options = options_of(args, usual)
    if args.plot is not None:
        fuse_plot.check(args.plot)
    print(fuse_tables.heading(options.contenders), flush=True)
    records = []
    for record in measured(keys, options, args.json_lines):
        print(fuse_tables.row(record, options.contenders), flush=True)
        records.append(record)
    if args.plot is not None:
        fuse_plot.draw(records, args.plot)


def run_first_calls(args: argparse.Namespace) -> None:
    names = args.contenders or FIRST
    print(fuse_tables.line("network", "batch", *names))
    print(fuse_tables.line(*["---"] * (2 + len(names))))
    for key in cases(args.first_call, args.batch or [8], args.threads):
        found = first_calls(key, names, args.timeout)
        cells = (fuse_tables.cold_and_warm(found[name]) for name in names)
        print(fuse_tables.line(*key[:2], *cells), flush=True)
        if args.json_lines is not None:
            entry = dict(zip(("network", "batch", "threads"), key, strict=True))
            append(args.json_lines, {**entry, "first_calls": found})


def run_tables(args: argparse.Namespace) -> None:
    records = read_records(args.tables)
    for text in (fuse_tables.first(records), fuse_tables.second(records)):
        print(text, end="\n\n")
    for line in fuse_tables.summary(records):
        print(line)


def machine() -> str:
    """Where figures are measured, in one line."""
    import torch

    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2] for line in lines if line[:10] == "model name"]
        model = names[0].strip() if names else model
    return f"torch {torch.__version__}, {os.cpu_count()} processors, {model}"


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    modes: list[tuple[Any, Any]] = [
        (args.tables, run_tables),
        (args.first_call, run_first_calls),
        (args.stack, run_stack),
        (args.networks, run_networks),
    ]
    try:
        if args.tables is None:
            print(f"{machine()}; time by {args.clock} clock\n", flush=True)
        next(run for wanted, run in modes if wanted)(args)
    except (MemplanError, OSError) as error:
        print(f"bench_fuse: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench_fuse: interrupted", file=sys.stderr)
        return 130
    return 0


def interrupt(*_: object) -> None:
    """What SIGTERM does: the same as Ctrl-C, which leaves no process and no file."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    sys.exit(main())
