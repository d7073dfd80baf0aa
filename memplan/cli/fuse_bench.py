"""The paper's networks, measured beside what else runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from memplan.cli import show
from memplan.cli.progress import working
from memplan.errors import UsageError
from memplan.fusing.bench.record import BenchOptions, Key, Record, bench, cases
from memplan.fusing.networks.stack import BATCH as STACK_BATCH
from memplan.recording.shim import require_torch

USUAL_BATCH = 8
_GAP = 2  # between columns


@dataclass(frozen=True)
class Bench:
    """What to measure: networks at batches, by contenders, in so many rounds.

    batches: as given; None for a network's usual one. threads: None for torch's own.
    """

    networks: tuple[str, ...]
    batches: tuple[str, ...] | None
    contenders: tuple[str, ...]
    threads: int | None
    rounds: int

    def keys(self, threads: int) -> list[Key]:
        """The cases. Raises UsageError, see `record.cases`."""
        if self.batches is not None:
            sizes = [_whole(each) for each in self.batches]
            return cases(self.networks, sizes, (threads,))
        found: list[Key] = []
        for name in self.networks:
            batch = STACK_BATCH if name.startswith("stack:") else USUAL_BATCH
            found += cases([name], [batch], (threads,))
        return list(dict.fromkeys(found))


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{text!r} is no batch: write whole numbers, as in 1,8,32")
    return int(text)


def run_bench(wanted: Bench, json_: bool) -> None:
    """Measure, and print a table, or a list of records as JSON.

    After Ctrl-C with what there is until then. Raises UsageError for networks and
    batches that there are not.
    """
    options = BenchOptions(contenders=wanted.contenders, repeats=wanted.rounds)
    wanted.keys(1)  # what is wrong with it is said before torch is loaded
    torch = require_torch("measuring networks")
    keys = wanted.keys(wanted.threads or torch.get_num_threads())
    records: list[Record] = []
    interrupted = False
    with working("bench") as told:
        measured = bench(keys, options)
        try:
            for number, key in enumerate(keys, 1):
                if told is not None:
                    told(f"{key[0]}, batch {key[1]}, {number} of {len(keys)}")
                records.append(next(measured))
        except KeyboardInterrupt:
            if not records:
                raise
            interrupted = True
    _print(records, wanted.contenders, json_)
    if interrupted:
        show.complaint(f"interrupted after {len(records)} of {len(keys)}")
        raise KeyboardInterrupt


def _print(records: list[Record], contenders: tuple[str, ...], json_: bool) -> None:
    if json_:
        import json

        named = {"schema": "memplan.fuse-bench", "version": 1}
        listed = [{**named, **record} for record in records]
        print(json.dumps(listed, indent=2, sort_keys=True))
        return
    for title, columns in _tables(records, contenders, show.width()):
        rows = zip(*(each.cells for each in columns), strict=True)
        show.table(title, [each.head for each in columns], list(rows))
    for line in dict.fromkeys(_failures(records)):
        show.complaint(line)


@dataclass(frozen=True)
class _Column:
    """A column: its head, whose words may stand on several lines, and its cells."""

    head: str
    cells: list[str]

    @property
    def width(self) -> int:
        return max(len(each) for each in (*self.head.split("\n"), *self.cells))


Group = tuple[str, list[_Column]]


def _tables(
    records: list[Record], contenders: tuple[str, ...], room: int
) -> Iterator[Group]:
    """Titles and columns of tables that are no wider than `room`, as few as can be,
    each with networks and batches at the left."""
    first = [
        _Column("network", [record["network"] for record in records]),
        _Column("batch", [str(record["batch"]) for record in records]),
    ]
    title, columns = "", list(first)
    for name, group in _groups(records, contenders):
        whole = _width([*first, *group]) <= room
        for piece in [group] if whole else [[each] for each in group]:
            if _width([*columns, *piece]) > room and len(columns) > len(first):
                yield title, columns
                title, columns = "", list(first)
            columns += piece
            if name not in title:
                title += f"; {name}" if title else name
    yield title, columns


def _groups(records: list[Record], contenders: tuple[str, ...]) -> Iterator[Group]:
    """What belongs together: times, ratios, what the first call and memory take."""
    threads = records[0]["threads"]
    many = "1 thread" if threads == 1 else f"{threads} threads"
    times: list[_Value] = [
        (_head(name), _in("seconds", name), 1e3) for name in contenders
    ]
    yield f"Milliseconds a call, {many}", _columns(records, times)
    ratios = _columns(
        records,
        [
            (f"×\n{_head(name)}", _median(name), 1)
            for name in contenders
            if name != "memplan"
        ],
    )
    errors = [_error(record["max_relative_error"]) for record in records]
    if any(errors):
        ratios.append(_Column("error", errors))
    yield "ratios (×) above 1 where memplan is faster", ratios
    rest: list[_Value] = [
        ("first\ncall", _in("first_call_seconds", "memplan"), 1),
        ("com-\npile's", _in("first_call_seconds", "compile"), 1),
        ("peak", _in("peak_activation_bytes", "memplan"), 2**-20),
        ("eager's", _in("peak_activation_bytes", "eager"), 2**-20),
    ]
    yield "first calls in s, peaks of activations in MiB", _columns(records, rest)


_Value = tuple[str, Callable[[Record], float | None], float]  # head, value, scale


def _head(name: str) -> str:
    name = name.replace("_", "\n").replace(":", ":\n")
    return name.replace("onnxruntime", "onnx\nruntime")


def _columns(records: list[Record], values: Sequence[_Value]) -> list[_Column]:
    """Columns of numbers, without those that have none."""
    found = [
        _Column(head, [_number(value(record), scale) for record in records])
        for head, value, scale in values
    ]
    return [column for column in found if any(column.cells)]


def _in(field: str, name: str) -> Callable[[Record], float | None]:
    return lambda record: record[field].get(name)


def _median(name: str) -> Callable[[Record], float | None]:
    return lambda record: record["ratios"].get(name, {"median": None})["median"]


def _number(value: float | None, scale: float) -> str:
    """Three digits that count, and none cut off before the point."""
    if value is None:
        return ""
    value *= scale
    for limit, digits in ((99.95, 0), (9.995, 1), (0.9995, 2)):
        if value >= limit:
            return f"{value:,.{digits}f}"
    return f"{value:.3f}"


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"


def _failures(records: Iterable[Record]) -> Iterable[str]:
    for record in records:
        for name, reason in record["failures"].items():
            missing = reason.endswith("is not installed")
            where = "" if missing else f", {record['network']}, batch {record['batch']}"
            yield f"{name}{where}: {reason}"
        for name, remarks in record["remarks"].items():
            for remark in remarks:
                said = remark.removeprefix("memplan.fuse: ")
                yield f"{name}, {record['network']}, batch {record['batch']}: {said}"


def _width(columns: Sequence[_Column]) -> int:
    return sum(each.width for each in columns) + _GAP * (len(columns) - 1)
