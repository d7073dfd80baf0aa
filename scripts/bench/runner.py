"""Paired benchmarks: contenders take turns, and ratios are taken within a round.

A suite (`bench/*.py`) is a table of cases and a function that gives the contenders of a
case. `run_suite` prints where and with what it measures, runs every case for some
rounds after a warm-up, and prints the smallest, the median and the largest figure of
each contender with its ratio to the baseline of the same round. Whatever else the
machine does then falls on both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEMPLAN = [sys.executable, "-m", "memplan"]
Figures = Mapping[str, float]


class BenchError(Exception):
    """A run that failed, or results that must not differ and do."""


@dataclass(frozen=True)
class Metric:
    """A figure of a run: its name, its title, and how to print it.

    scale: factor from the figure to the title's unit. compared: whether the ratio to
    the baseline is printed.
    """

    name: str
    title: str
    scale: float = 1.0
    digits: int = 3
    compared: bool = True

    def shown(self, value: float) -> str:
        """The figure in the title's unit."""
        return f"{value * self.scale:,.{self.digits}f}"


@dataclass(frozen=True)
class Contender:
    """One thing to measure: `run` does it once and returns its figures by name.

    `run` raises BenchError to leave the comparison.
    """

    name: str
    run: Callable[[], Figures]


@dataclass(frozen=True)
class Spread:
    """The smallest, the median and the largest of some values."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """None where a value is missing, or there are none."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return cls(min(known), statistics.median(known), max(known))


@dataclass
class Comparison:
    """The figures of one case: by contender, one entry a round.

    base: the contender that ratios are taken to. failed: why a contender left.
    """

    case: str
    base: str
    figures: dict[str, list[dict[str, float]]]
    failed: dict[str, str] = field(default_factory=dict)

    def values(self, name: str, metric: str) -> list[float | None]:
        """The figures of a contender, in the order of the rounds."""
        return [figures.get(metric) for figures in self.figures[name]]

    def spread(self, name: str, metric: str) -> Spread | None:
        """The spread of a contender's figures."""
        return Spread.of(self.values(name, metric))

    def ratio(self, name: str, metric: str) -> Spread | None:
        """The spread of the ratios to the baseline, each within a round."""
        if self.base not in self.figures:
            return None
        own, base = (self.values(each, metric) for each in (name, self.base))
        return Spread.of(
            [
                above / below if above is not None and below else None
                for above, below in zip(own, base, strict=False)
            ]
        )


def compare(
    case: str, contenders: Sequence[Contender], *, repeats: int = 5, warmups: int = 1
) -> Comparison:
    """Run the contenders in turn for `repeats` rounds, after `warmups` that do not
    count. The first of them is the baseline; each round begins with another one.

    One that raises BenchError leaves the comparison, with its reason in `failed`.
    """
    found = Comparison(case, contenders[0].name, {one.name: [] for one in contenders})
    for number in range(-warmups, repeats):
        first = number % len(contenders)
        for one in (*contenders[first:], *contenders[:first]):
            if one.name in found.failed:
                continue
            try:
                figures = dict(one.run())
            except BenchError as error:
                found.failed[one.name] = str(error)
                del found.figures[one.name]
                continue
            if number >= 0:
                found.figures[one.name].append(figures)
    return found


def or_error(run: Callable[[], Figures]) -> Callable[[], Figures]:
    """A peer's run, whose errors of any kind are BenchErrors."""

    def guarded() -> Figures:
        try:
            return run()
        except Exception as error:
            raise BenchError(f"{type(error).__name__}") from None

    return guarded


def timed(
    function: Callable[..., object], *arguments: object, number: int = 1
) -> Callable[[], Figures]:
    """A contender's run: seconds and CPU seconds of a call, the mean of `number`."""

    def run() -> Figures:
        clocks = (time.perf_counter, time.process_time)
        begin = [clock() for clock in clocks]
        for _ in range(number):
            function(*arguments)
        spent = [clock() - at for clock, at in zip(clocks, begin, strict=True)]
        return {"seconds": spent[0] / number, "cpu_seconds": spent[1] / number}

    return run


@dataclass(frozen=True)
class Finished:
    """A child process that ended well: its output and what it took.

    peak_bytes: ru_maxrss, which starts from what this process has resident.
    """

    output: str
    errors: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 1800.0,
) -> Finished:
    """Run a command in the source tree to its end.

    Raises BenchError where its exit code is not 0, or after `timeout` seconds.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.perf_counter()
        child = subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=err)
        late = threading.Event()
        timer = threading.Timer(timeout, lambda: (late.set(), child.kill()))
        timer.start()
        try:
            # Popen.wait does not return the resources of this child alone.
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            timer.cancel()
        seconds = time.perf_counter() - begin
        output, errors = (_read(stream) for stream in (out, err))
    if late.is_set():
        raise BenchError(f"killed after {timeout:g} s: {shlex.join(command)}")
    if child.returncode != 0:
        tail = "\n  ".join(errors.strip().splitlines()[-8:])
        raise BenchError(
            f"exit code {child.returncode}: {shlex.join(command)}\n  {tail}"
        )
    spent = usage.ru_utime + usage.ru_stime
    return Finished(output, errors, seconds, spent, usage.ru_maxrss * 1024)


def _read(stream: Any) -> str:
    stream.seek(0)
    return str(stream.read().decode(errors="replace"))


@dataclass(frozen=True)
class Suite:
    """A benchmark: what to measure, as data.

    cases: by name, whatever `contenders` needs to know of one. contenders: those of a
    case, the baseline first, from the case, the command line, and a folder for files.
    packages: whose versions are printed. check: raises BenchError where a comparison's
    results are wrong. add_arguments: the suite's own options.
    """

    summary: str
    cases: Mapping[str, Any]
    contenders: Callable[[Any, argparse.Namespace, Path], Sequence[Contender]]
    metrics: Sequence[Metric]
    packages: Sequence[str] = ()
    check: Callable[[Comparison], None] = lambda _: None
    add_arguments: Callable[[argparse.ArgumentParser], object] = lambda _: None


def run_suite(suite: Suite, argv: Sequence[str] | None = None) -> int:
    """Measure the cases that the command line chooses; the exit code.

    With --json, every comparison is appended to the file, and what the file has is not
    measured again.
    """
    args = _parser(suite).parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    print(heading(suite.packages), flush=True)
    known = read_records(args.json) if args.json else {}
    done: list[Comparison] = []
    code = 0
    try:
        for name in args.cases:
            if name in known:
                found = known[name]
            else:
                found = _measured(suite, name, args)
                if args.json:
                    append_record(args.json, found)
            done.append(found)
            print(f"\n{table(found, suite.metrics)}", flush=True)
    except BenchError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("benchmark: interrupted", file=sys.stderr)
        code = 130
    if len(done) > 1:
        print(f"\n{means(done, suite.metrics)}")
    return code


def _parser(suite: Suite) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=suite.summary,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    names = list(suite.cases)
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    parser.add_argument("--contenders", nargs="+", help="only these, and the baseline")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    parser.add_argument("--warmups", type=int, default=1, help="rounds that do not")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=1800.0, help="s per process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append records")
    suite.add_arguments(parser)
    return parser


def _measured(suite: Suite, name: str, args: argparse.Namespace) -> Comparison:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        contenders = suite.contenders(suite.cases[name], args, Path(folder))
        wanted = args.contenders or [one.name for one in contenders]
        chosen = [
            one
            for number, one in enumerate(contenders)
            if number == 0 or one.name in wanted
        ]
        found = compare(name, chosen, repeats=args.repeats, warmups=args.warmups)
    suite.check(found)
    return found


def _interrupt(*_: object) -> None:
    """SIGTERM ends a benchmark as Ctrl-C does: no process and no file stays."""
    raise KeyboardInterrupt


def machine(packages: Iterable[str] = ()) -> dict[str, str]:
    """Where figures are measured, and with which versions of the peers."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2] for line in lines if line[:10] == "model name"]
    found = {
        "processor": (models or [platform.machine()])[0].strip(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load": f"{os.getloadavg()[0]:.1f}",
        "kernel": platform.release(),
        "Python": platform.python_version(),
    }
    for package in ("memplan", *packages):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def heading(packages: Iterable[str] = ()) -> str:
    """The machine, the versions and the command, in two lines."""
    about = ", ".join(f"{key} {value}" for key, value in machine(packages).items())
    return f"{about}\n$ {shlex.join(['python', *sys.argv])}"


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def table(found: Comparison, metrics: Sequence[Metric]) -> str:
    """One row per contender: of each metric the median (smallest to largest), and of
    those that are compared the ratio to the baseline, likewise."""
    head = [found.case]
    for metric in metrics:
        head += [metric.title, *["ratio"] * metric.compared]
    rows = []
    for name in found.figures:
        cells = [name]
        for metric in metrics:
            cells.append(_cell(found.spread(name, metric.name), metric.shown))
            if metric.compared:
                is_base = name == found.base
                ratio = None if is_base else found.ratio(name, metric.name)
                cells.append(_cell(ratio, "{:.3f}".format))
        rows.append(cells)
    lines = [markdown(head, rows)]
    lines += [f"{name} left out: {reason}" for name, reason in found.failed.items()]
    return "\n".join(lines)


def _cell(found: Spread | None, shown: Callable[[float], str]) -> str:
    if found is None:
        return "–"
    low, median, high = shown(found.low), shown(found.median), shown(found.high)
    return median if low == high else f"{median} ({low} to {high})"


def means(done: Sequence[Comparison], metrics: Sequence[Metric]) -> str:
    """The geometric means of the median ratios over all cases, by contender."""
    compared = [metric for metric in metrics if metric.compared]
    names = dict.fromkeys(name for one in done for name in one.figures)
    rows = []
    for name in names:
        mine = [one for one in done if name in one.figures and name != one.base]
        cells: list[object] = [name, len(mine)]
        for metric in compared:
            ratios = [one.ratio(name, metric.name) for one in mine]
            medians = [ratio.median for ratio in ratios if ratio and ratio.median > 0]
            mean = statistics.geometric_mean(medians) if medians else None
            cells.append("–" if mean is None else f"{mean:.3f}")
        if mine:
            rows.append(cells)
    head = ["geometric mean of ratios", "cases", *(one.title for one in compared)]
    return markdown(head, rows)


def read_records(file: Path) -> dict[str, Comparison]:
    """By case, the comparisons of a file; a line that was cut off is left out."""
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            record = json.loads(line)
            found[record["case"]] = Comparison(**record)
    return found


def append_record(file: Path, found: Comparison) -> None:
    """Add a comparison to a file, on a line of its own even behind one cut off."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(f"\n{json.dumps(asdict(found))}\n")
