"""Who holds what is alive when a recording ends, and what waits for the collector."""

from __future__ import annotations

import collections
import functools
import gc
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memplan
from memplan.errors import MemplanError
from memplan.recording.source import Lines
from memplan.reporting.stats import Stats
from tests.conftest import Run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

STEPS = 14


class Store:
    shared: list[Any] = []  # noqa: RUF012 - what a class keeps is a case

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        self.total = torch.zeros(())


store = Store()
listed: list[Any] = []
arrays: list[Any] = []
queue: collections.deque[Any] = collections.deque()
nested: dict[str, Any] = {"runs": {"outputs": []}}


@functools.lru_cache(None)
def table(step: int) -> Any:
    return torch.ones(64, 100) * step


def noting() -> Callable[[Any], None]:
    seen = []

    def note(value: Any) -> None:
        seen.append(value)

    return note


def generated() -> Generator[None, Any, None]:
    received: list[Any] = []
    while True:
        received.append((yield))


note, generator = noting(), generated()
next(generator)


def to_total(values: Any) -> None:
    store.total = store.total + values.requires_grad_().tanh().sum()


# How a step leaks, the variable that holds it, and what stands in the line that adds.
LEAKS: dict[str, tuple[Callable[[int, Any], object], str]] = {
    "list": (lambda i, x: listed.append(x), "listed[*]"),
    "dict": (lambda i, x: store.items.update({f"step {i}": x}), "store.items[*]"),
    "class": (lambda i, x: Store.shared.append(x), "Store.shared[*]"),
    "deque": (lambda i, x: queue.append(x), "queue[*]"),
    "closure": (lambda i, x: note(x), "note.seen[*]"),
    "generator": (lambda i, x: generator.send(x), "generator.received[*]"),
    "cache": (lambda i, x: table(i), "table[*]"),
    "numpy": (lambda i, x: arrays.append(x.numpy()), "arrays[*]"),
    "key": (
        lambda i, x: nested["runs"]["outputs"].append({"x": x}),
        "nested['runs']['outputs'][*]['x']",
    ),
    "graph": (lambda i, x: to_total(x), "graph of store.total"),
}


def let_go() -> None:
    store.total = torch.zeros(())
    for held in (listed, arrays, queue, store.items, Store.shared):
        held.clear()
    nested["runs"]["outputs"].clear()
    table.cache_clear()


def recorded(path: Path, body: Callable[[int], object], device: str = "cpu") -> Stats:
    with memplan.record(path, device=device, steps="all") as recording:
        for step in range(STEPS):
            memplan.step()
            body(step)
    assert recording.trace is not None
    return memplan.summarize(recording.trace)


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_named_with_what_holds_it(tmp_path: Path, name: str) -> None:
    leaks, holder = LEAKS[name]
    try:
        found = recorded(
            tmp_path / "t.parquet", lambda i: leaks(i, torch.rand(64, 100) + 1)
        )
    finally:
        let_go()
    assert found.leak is not None
    assert found.leak.holder is not None
    assert found.leak.holder.name == holder
    assert found.leak.holder.place == "global of test_holders.py"


def test_a_fake_recording_names_holders_too(tmp_path: Path) -> None:
    def step(_: int) -> None:
        listed.append(torch.rand(64, 100))

    try:
        found = recorded(tmp_path / "t.parquet", step, "fake")
    finally:
        let_go()
    assert found.leak is not None
    assert found.leak.holder is not None
    assert found.leak.holder.name == "listed[*]"
    line = step.__code__.co_firstlineno + 1
    assert f"test_holders.py:{line}" in found.leak.holder.filled


class Node:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.children: list[Node] = []
        self.parent: Node | None = None

    def add(self, child: Node) -> None:
        self.children.append(child)
        child.parent = self


def tree() -> None:
    Node(torch.rand(64, 100)).add(Node(torch.rand(64, 100)))


def caught() -> None:
    big = torch.rand(64, 100)
    try:
        raise ValueError(big.shape)
    except ValueError as error:
        kept = error  # noqa: F841 - it keeps the frame, and the frame keeps it


def recursive() -> None:
    big = torch.rand(64, 100)

    def turn(times: int) -> Any:
        return turn(times - 1) if times else big

    turn(2)


def method() -> None:
    node = Node(torch.rand(64, 100))
    node.call = node.add  # type: ignore[attr-defined]


CYCLES = {
    tree: "Node.children[*].parent",
    caught: "caught().kept",
    recursive: "recursive.<locals>.turn.turn",
    method: "Node.call",
}


@pytest.fixture
def no_garbage() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # so that the runs of the collector are short, to the end
    gc.disable()  # and only those that are asked for
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("makes", CYCLES)
def test_what_waits_for_the_collector_is_counted(
    tmp_path: Path, makes: Callable[[], None]
) -> None:
    def step(number: int) -> None:
        makes()
        if number % 4 == 3:
            gc.collect(0)

    found = recorded(tmp_path / "t.parquet", step)
    assert found.cycles is not None
    each = 2 if makes is tree else 1
    assert found.cycles.bytes == 12 * each * 64 * 100 * 4
    assert found.cycles.runs == 3
    assert found.cycles.shares[0].cycle == CYCLES[makes]
    assert found.cycles.shares[0].site.function == makes.__name__


@pytest.mark.usefixtures("no_garbage")
def test_a_cycle_that_is_not_collected_holds_its_tensors(tmp_path: Path) -> None:
    gc.disable()
    try:
        found = recorded(
            tmp_path / "t.parquet", lambda i: Node(torch.rand(256, 256)).add(Node(0))
        )
    finally:
        gc.enable()
    assert found.leak is not None
    assert found.leak.holder is not None
    assert found.leak.holder.name == "uncollected cycle Node.children[*].parent"


def clean(step: int) -> None:
    with torch.no_grad():
        queue.append(torch.rand(10, 10) + step)
        if len(queue) > 4:
            queue.popleft()
    try:
        torch.rand(2, 3) @ torch.rand(2, 3)
    except RuntimeError as error:
        str(error)


def test_a_program_without_leaks_or_cycles_has_none(tmp_path: Path) -> None:
    try:
        found = recorded(tmp_path / "t.parquet", clean)
    finally:
        let_go()
    assert found.leak is None
    assert found.cycles is None


class Hostile(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__dict__"):
            raise AssertionError(name)
        return super().__getattribute__(name)

    def __eq__(cls, other: object) -> bool:
        raise AssertionError

    __hash__ = type.__hash__


class Trap(metaclass=Hostile):
    def __init__(self) -> None:
        self.tensor = torch.rand(64, 100)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = None  # type: ignore[assignment]


class Silent(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError


def test_reading_objects_runs_nothing_of_the_programs(tmp_path: Path) -> None:
    trap = Trap()
    listed.append(trap)
    Store.shared.append(Silent([torch.rand(30, 30)]))
    try:
        found = recorded(tmp_path / "t.parquet", lambda i: torch.rand(10).sum())
        with memplan.record(tmp_path / "u.parquet", steps="all") as recording:
            object.__setattr__(trap, "tensor", torch.rand(64, 100))
            list.__setitem__(Store.shared[0], 0, torch.rand(30, 30))
        names = {each.name for each in recording.trace.info.holders}
    finally:
        let_go()
    assert not recording.notes
    assert names >= {"trap", "Store.shared[**]"}
    assert found.leak is None


def held_by(recording: Any) -> dict[str, int]:
    return {each.name: len(each.addresses) for each in recording.trace.info.holders}


def test_what_lies_deep_is_found(tmp_path: Path) -> None:
    inner: list[Any] = []
    outer = inner
    for _ in range(50_000):
        outer = [outer]
    graph = torch.rand(30, requires_grad=True)
    with memplan.record(tmp_path / "t.parquet", steps="all") as recording:
        inner.append(torch.rand(64, 100))
        for _ in range(3_000):
            graph = torch.tanh(graph)
        del inner
    held = held_by(recording)
    assert held["outer[**]"] == 1
    assert held["graph of graph"] >= 2_999
    while outer:  # freeing it would be as deep
        outer = outer[0] if isinstance(outer[0], list) else []


def test_what_lies_among_many_objects_is_found(tmp_path: Path) -> None:
    listed.append([(i,) for i in range(300_000)])
    try:
        with memplan.record(tmp_path / "t.parquet", steps="all") as recording:
            queue.append(torch.rand(50, 50))
    finally:
        let_go()
    assert held_by(recording)["queue[*]"] == 1


@pytest.mark.usefixtures("no_garbage")
def test_a_whole_collection_names_young_cycles(tmp_path: Path) -> None:
    def step(number: int) -> None:
        tree()
        if number % 4 == 3:
            gc.collect()

    found = recorded(tmp_path / "t.parquet", step)
    assert found.cycles is not None
    assert found.cycles.shares[0].cycle == CYCLES[tree]


LEAKING = """\
import torch
model = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for step in range(16):
    loss = model(torch.rand(64, 100)).square()
    history.append(loss)
    loss.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CYCLIC = """\
import gc
import torch
class Node:
    def __init__(self, values):
        self.values, self.me = values, None
        self.me = self
model = torch.nn.Linear(100, 100)
for step in range(16):
    Node(model(torch.rand(640, 100)))
gc.collect()
"""


def test_stats_and_check_tell_of_a_leak_and_its_holder(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(LEAKING)
    assert memplan("record", "-o", "t.parquet", "train.py").returncode == 0
    told = memplan("stats", "t.parquet", "--at", "end", "--by", "holder").stdout
    held = "history[*] (global of train.py), filled at train.py:7"
    assert f"held by {held}" in told
    assert told.count("history[*]") == 2  # the leak's row, and the table's
    failed = memplan("check", "t.parquet", "--no-leak")
    assert failed.returncode == 1
    assert held in failed.stderr


def test_stats_and_check_tell_of_cycles(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CYCLIC)
    done = memplan("record", "--steps", "all", "-o", "t.parquet", "train.py")
    assert done.returncode == 0, done.stderr
    told = memplan("stats", "t.parquet", "--cycles").stdout
    assert "freed by Python's cycle collector" in told
    assert "train.py:9 <module>" in told
    refused = memplan("stats", "t.parquet", "--cycles", "--by", "module")
    assert refused.returncode == 2
    assert "--by is for the table of what is live" in refused.stderr
    failed = memplan("check", "t.parquet", "--no-cycles")
    assert failed.returncode == 1
    assert "train.py:9" in failed.stderr
    assert memplan("check", "t.parquet", "--max", "1GiB").returncode == 0


def test_a_leak_that_is_collected_later_is_said_to_be(
    memplan: Run, tmp_path: Path
) -> None:
    text = CYCLIC.replace("import gc\n", "import gc\ngc.disable()\n")
    (tmp_path / "train.py").write_text(text)
    options = "--steps", "all", "-o", "t.parquet"
    assert memplan("record", *options, "train.py").returncode == 0
    told = memplan("stats", "t.parquet").stdout
    assert "leak         grows by" in told
    assert "the cycle collector freed buffers of this line later" in told


def test_a_recording_that_fails_leaves_no_callback(tmp_path: Path) -> None:
    before = list(gc.callbacks)
    path = tmp_path / "t.parquet"
    Path(f"{path}.journal").mkdir()
    with pytest.raises(MemplanError), memplan.record(path):
        pass
    with memplan.record(tmp_path / "u.parquet"):
        torch.rand(3)
    assert gc.callbacks == before


def test_without_call_sites_there_are_no_holders(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAKING)
    options = "--stacks", "none", "-o", "t.parquet"
    assert memplan("record", *options, "train.py").returncode == 0
    refused = memplan("stats", "t.parquet", "--by", "holder")
    assert refused.returncode == 2
    assert "--stacks none" in refused.stderr


def test_lines_that_add_and_assign(tmp_path: Path) -> None:
    file = tmp_path / "lines.py"
    file.write_text(
        "a.log.append(1)\n"
        "total += 1\n"
        "total = total + 1\n"
        "cache[3] = x\n"
        "state['outs'].extend(y)\n"
        "node.parent = other\n"
        "node.parent = None\n"
        "other = 3\n"
    )
    lines = Lines([str(file), str(tmp_path / "gone.py")])
    assert lines.adding("log") == ("lines.py:1",)
    assert lines.adding("total") == ("lines.py:2", "lines.py:3")
    assert lines.adding("cache") == ("lines.py:4",)
    assert lines.adding("outs") == ("lines.py:5",)
    assert lines.assigning("parent") == ("lines.py:6",)
    assert lines.adding("other") == ()
    file.write_text("this is no Python")
    assert Lines([str(file)]).adding("log") == ()


def test_arrays_of_numpy_alone_hold_nothing(tmp_path: Path) -> None:
    arrays.append(np.ones(1000))
    try:
        found = recorded(tmp_path / "t.parquet", lambda i: torch.rand(10).sum())
    finally:
        let_go()
    assert not [h for h in found.trace.info.holders if h.name.startswith("arrays")]


def test_the_page_has_the_leak_and_the_cycles(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAKING + CYCLIC.replace("import torch\n", ""))
    options = "--steps", "all", "-o", "t.parquet"
    assert memplan("record", *options, "train.py").returncode == 0
    assert memplan("report", "t.parquet", "-o", "t.html").returncode == 0
    page = (tmp_path / "t.html").read_text()
    assert "freed in cycles" in page
