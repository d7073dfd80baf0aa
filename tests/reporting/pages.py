"""Traces to make pages of, and pages taken apart."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.core.plan import Program
from memplan.core.problem import Problem
from memplan.solving.bestfit import best_fit
from memplan.trace.stacks import Frame, Origin, Phase, StackTable
from memplan.trace.trace import Action, Category, Columns, Mark, Trace, TraceInfo
from tests.programs import events_of

KINDS = {"u1": np.uint8, "u4": np.uint32, "f8": np.float64}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;'\"\u2028"


class Page(HTMLParser):
    """A page, taken apart: its scripts, and all attributes that name something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        elif self._inside != "style":
            self.words += data

    def script(self, name: str) -> str:
        """The contents of the script element with that id."""
        return next(text for found, text in self.scripts if found.get("id") == name)

    @property
    def scene(self) -> dict[str, Any]:
        """The page's JSON."""
        found: dict[str, Any] = json.loads(self.script("scene"))
        return found

    def figures(self) -> dict[str, tuple[str, str]]:
        """By name the numbers at the top, each with its note."""
        rows = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd><dd.*?>(.*?)</dd>", self.text)
        return {name: (value, note) for name, value, note in rows}

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The page's columns, as its script reads them."""
        data = gzip.decompress(base64.b64decode(self.script("columns")))
        found, at = {}, 0
        for entry in self.scene["columns"]:
            kind: type[np.generic] = KINDS[entry["kind"]]
            width, count = np.dtype(kind).itemsize, entry["count"]
            planes = np.frombuffer(data, np.uint8, width * count, at)
            rows = np.ascontiguousarray(planes.reshape(width, count).T)
            values = rows.view(kind).ravel()
            if entry["delta"]:
                values = np.cumsum(values, dtype=kind)
            found[entry["name"]] = values
            at += width * count
        assert at == len(data)
        return found


def loop(
    steps: int = 5, layers: int = 8, *, labels: bool = True, oom: int = 0
) -> Trace:
    """A training loop: parameters, then in every step activations and their frees.

    oom: bytes of a request that failed at the end, if not 0.
    """
    rows: list[
        tuple[int, int, int, int, int]
    ] = []  # action, address, size, mark, stack
    for k in range(layers):
        rows.append((Action.ALLOC, 1 << 20 | k << 16, 4096 * (k + 1), 0, 0))
        if labels:
            rows.append((Action.LABEL, 1 << 20 | k << 16, Category.PARAMETERS, 0, -1))
    for _ in range(steps):
        rows.append((Action.STEP, 0, 0, Mark.OPTIMIZER, -1))
        for k in range(layers):
            rows.append((Action.ALLOC, 2 << 20 | k << 14, 16384, 0, 1 + k % 2))
            rows.append((Action.ALLOC, 3 << 20, 512, 0, 3))
            rows.append((Action.FREE_COMPLETED, 3 << 20, 512, 0, -1))
        for k in reversed(range(layers)):
            rows.append((Action.FREE_COMPLETED, 2 << 20 | k << 14, 16384, 0, -1))
    if oom:
        rows.append((Action.OOM, 0, oom, 0, 1))
    return traced(rows, stacks())


def of_kinds() -> Trace:
    """Steps of two blocks each, after one and around one of other sizes."""
    rows: list[tuple[int, int, int, int, int]] = []
    hot = (4096, 8192)
    for sizes in ((512,), *[hot] * 4, (1024, 2048, 16384), *[hot] * 3):
        rows.append((Action.STEP, 0, 0, Mark.OPTIMIZER, -1))
        for k, size in enumerate(sizes):
            rows.append((Action.ALLOC, 1 << 20 | k << 16, size, 0, k))
            rows.append((Action.LABEL, 1 << 20 | k << 16, Category.INPUTS, 0, -1))
        for k, size in enumerate(sizes):
            rows.append((Action.FREE_COMPLETED, 1 << 20 | k << 16, size, 0, -1))
    return traced(rows, stacks())


def of_threads(threads: int = 2, steps: int = 6) -> Trace:
    """Threads that take turns, all in the midst of a step when the next one goes on."""
    rows: list[tuple[int, int, int, int, int]] = []
    thread: list[int] = []

    def add(at: int, *row: int) -> None:
        action, address, size, mark, stack = row
        rows.append((action, address, size, mark, stack))
        thread.append(at + 1)

    for _ in range(steps):
        for at in range(threads):
            add(at, Action.STEP, 0, 0, Mark.FORWARD, -1)
            add(at, Action.ALLOC, 1 << 20 | at << 16, 4096, 0, 1)
            add(at, Action.LABEL, 1 << 20 | at << 16, Category.ACTIVATIONS, 0, -1)
        for at in range(threads):
            add(at, Action.ALLOC, 2 << 20 | at << 16, 8192, 0, 2)
            add(at, Action.LABEL, 2 << 20 | at << 16, Category.ACTIVATIONS, 0, -1)
            add(at, Action.FREE_COMPLETED, 1 << 20 | at << 16, 4096, 0, -1)
        for at in range(threads):
            add(at, Action.FREE_COMPLETED, 2 << 20 | at << 16, 8192, 0, -1)
    trace = traced(rows, stacks())
    return replace(trace, events=replace(trace.events, thread=np.array(thread)))


def stacks(name: str = "model.py") -> StackTable:
    """Four stacks, with what ran there."""
    main = Frame("/home/me/train.py", 10, "main")
    return StackTable(
        [
            (Frame(f"/home/me/{name}", 3, "__init__"), main),
            (Frame(f"/home/me/{name}", 7, "forward"), main),
            (Frame(f"/home/me/{name}", 9, "forward"), main),
            (main,),
        ],
        [
            Origin("", "", Phase.OUTSIDE),
            Origin("layers.0", "linear", Phase.FORWARD),
            Origin("layers.1", "gelu", Phase.FORWARD),
            Origin("", "AddmmBackward0", Phase.BACKWARD),
        ],
    )


def traced(
    rows: list[tuple[int, int, int, int, int]],
    table: StackTable,
    script: str = "train.py",
) -> Trace:
    """A trace of rows (action, address, size, mark, stack), a microsecond apart."""
    times = range(0, 1000 * len(rows), 1000)
    events = events_of("action address size mark stack", rows, time_ns=times)
    info = TraceInfo(program=Program(script=script, torch="2.13.0"), stacks="python")
    return Trace(events, table, info)


def many(buffers: int, seed: int = 0) -> Trace:
    """So many buffers of all sizes, freed after a while, their rooms used anew."""
    rng = np.random.default_rng(seed)
    begin = np.sort(rng.integers(0, 10 * buffers, buffers))
    end = begin + rng.geometric(1 / 4000, buffers)
    size = (2 ** rng.uniform(6, 22, buffers)).astype(np.int64)
    action = np.repeat([Action.ALLOC, Action.FREE_COMPLETED], buffers)
    order = np.lexsort((np.repeat([1, 0], buffers), np.concatenate([begin, end])))
    place = best_fit(Problem.of(begin, end, size)) + 64
    stack = np.concatenate([np.arange(buffers) % 4, np.full(buffers, -1)])
    events = Columns.of(
        time_ns=np.arange(2 * buffers, dtype=np.int64) * 700,
        action=action[order],
        address=np.tile(place, 2)[order],
        size=np.tile(size, 2)[order],
        requested_size=np.tile(size, 2)[order],
        stack=stack[order],
    )
    return Trace(events, stacks(), TraceInfo(program=Program(script="many.py")))


def hostile() -> Trace:
    """Names that would be elements, scripts and ends of scripts."""
    return traced(
        [(Action.ALLOC, 1 << 20, 64, 0, 1), (Action.ALLOC, 2 << 20, 64, 0, 0)],
        stacks(HOSTILE),
        HOSTILE,
    )
