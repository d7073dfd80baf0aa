"""Peers asked one by one, each in a process of its own, and checked by our verifier."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from generated import generated
from peers import Peer

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.trace.importers.minimalloc import read_minimalloc

LOADING = 180.0  # seconds to import what it needs
GRACE = 20.0  # seconds over the limit (and as much again) until a peer is ended


@dataclass(frozen=True)
class Answer:
    """What a peer said about an instance: peak over the bound, or why there is none."""

    instance: str
    peer: str
    limit: float
    seconds: float
    ratio: float | None
    why: str = ""

    @property
    def text(self) -> str:
        """For a cell of the table."""
        if self.ratio is None:
            return self.why
        return f"{self.ratio:.4f} ({self.seconds:.1f} s)"


def instances(traces: Path, sizes: Sequence[int]) -> Iterator[tuple[str, Problem]]:
    """Names and problems: those of the traces, smallest files first, then generated."""
    paths = sorted(traces.glob("*/*.csv"), key=lambda path: path.stat().st_size)
    for path in paths:
        yield path.stem.split(".")[0], read_minimalloc(path)
    for n in sizes:
        for kind, drawn, alignment in (
            ("uniform", "log-uniform", 512),
            ("geometric", "flat", 64),
            ("heavy", "few", 512),
            ("crowded", "log-uniform", 1),
        ):
            name = f"{kind}, {drawn}, {n:,}"
            yield name, generated(kind, drawn, n, alignment=alignment)


def ask(peer: Peer, name: str, problem: Problem, limit: float) -> Answer:
    """A verified answer. A process that takes far too long, or fails, has none."""
    if len(problem) > peer.most:
        return Answer(name, peer.name, limit, 0.0, None, "too large")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, peer, problem, limit))
    process.start()
    theirs.close()
    seconds, offsets = 0.0, None
    try:
        why = ours.recv() if ours.poll(LOADING) else "too slow to load"
        if not why:
            why = "too slow"
            if ours.poll(2 * limit + GRACE):
                seconds, offsets, why = ours.recv()
    except EOFError:
        why = "crashed"
    finally:
        process.kill()
        process.join()
    if offsets is None:
        return Answer(name, peer.name, limit, seconds, None, why or "none")
    return Answer(name, peer.name, limit, seconds, *_checked(problem, offsets))


def _checked(problem: Problem, offsets: Int64Array) -> tuple[float | None, str]:
    plan = Plan.of(problem, offsets, "peer")
    if verify(plan):
        return None, "collides"
    return plan.peak / lower_bound(problem), ""


def _work(pipe: Connection, peer: Peer, problem: Problem, limit: float) -> None:
    """Sends why it cannot begin, or nothing; then seconds, offsets, and why none."""
    try:
        # What is imported, and made once, does not count.
        peer.ask(Problem.of([0, 0], [1, 1], [1, 2]), 1.0)
    except Exception as error:
        pipe.send(_reason(error))
        return
    pipe.send("")
    begin = time.perf_counter()
    try:
        offsets = peer.ask(problem, limit)
        pipe.send((time.perf_counter() - begin, offsets, ""))
    except Exception as error:
        pipe.send((0.0, None, _reason(error)))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:40]}"


def table(answers: Sequence[Answer]) -> str:
    """Markdown: a row an instance, a column a peer, at the longest limit each had."""
    names = list(dict.fromkeys(answer.instance for answer in answers))
    asked = list(dict.fromkeys(answer.peer for answer in answers))
    last = {(a.instance, a.peer): a for a in sorted(answers, key=lambda a: a.limit)}
    lines = ["| | " + " | ".join(asked) + " |", "|---" * (len(asked) + 1) + "|"]
    for name in names:
        cells = [last[name, peer].text for peer in asked]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    means = []
    for peer in asked:
        ratios = [last[name, peer].ratio for name in names]
        known = [ratio for ratio in ratios if ratio is not None]
        mean = f"{statistics.geometric_mean(known):.4f}" if known else "-"
        means.append(f"{mean} of {len(known)}")
    lines.append("| geometric mean | " + " | ".join(means) + " |")
    return "\n".join(lines)


def draw(answers: Sequence[Answer], path: Path) -> None:
    """Quality over time: a panel an instance, a line a peer, a point a limit."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(answer.instance for answer in answers))
    asked = list(dict.fromkeys(answer.peer for answer in answers))
    across = min(len(names), 3)
    down = -(-len(names) // across)
    figure = Figure(figsize=(4.4 * across, 3 * down + 1), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for name, axes in zip(names, panels, strict=False):
        for k, peer in enumerate(asked):
            points = [
                (max(answer.seconds, 1e-3), 100 * (answer.ratio - 1))
                for answer in answers
                if (answer.instance, answer.peer) == (name, peer)
                and answer.ratio is not None
            ]
            shape = "os^vDPX*<>ph"[k % 12]
            style = {"marker": shape, "label": peer, "color": f"C{k % 10}"}
            if points:
                axes.plot(*zip(*points, strict=True), **style)
        axes.set(title=name, xscale="log", xlabel="seconds")
        axes.set_ylabel("% above the bound")
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set_ylim(bottom=0)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    drawn = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        drawn.update(zip(labels, handles, strict=True))
    figure.legend(drawn.values(), drawn, loc="outside lower center", ncols=4)
    figure.savefig(path)
