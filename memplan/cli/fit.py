"""memplan fit"""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import click

from memplan.cli import arguments, show
from memplan.errors import UsageError
from memplan.recording.fake_device import GPUS
from memplan.recording.target import Target
from memplan.recording.trial import Trial, trial
from memplan.reporting.fit import MARGIN, Fitted, Search
from memplan.units import format_bytes, parse_bytes

_RANGE = re.compile(r"(-{0,2})([A-Za-z0-9][\w.-]*)=(\d{1,12})\.\.(\d{1,12})")


@dataclass(frozen=True)
class Flag:
    """The program's flag that is varied, with its dashes, and from what to what."""

    name: str
    low: int
    high: int

    def of(self, target: Target, value: int) -> Target:
        """The program with the flag at `value`: for {NAME} in its words, or last."""
        place = "{" + self.name.lstrip("-") + "}"
        words = target.arguments
        if any(place in word for word in words):
            words = tuple(word.replace(place, str(value)) for word in words)
        else:
            words = (*words, self.name, str(value))
        return replace(target, arguments=words)


class FlagType(click.ParamType[Any]):
    """NAME=LOW..HIGH."""

    name = "flag"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Flag:
        """The flag. A name without dashes gets two, of one letter one."""
        if isinstance(value, Flag):
            return value
        match = _RANGE.fullmatch(value)
        if match is None:
            raise UsageError(f"--vary {value}: write NAME=LOW..HIGH: batch-size=1..512")
        dashes, name, low, high = match.groups()
        dashes = dashes or ("-" if len(name) == 1 else "--")
        return Flag(f"{dashes}{name}", int(low), int(high))


class CapacityType(click.ParamType[Any]):
    """Bytes, or the name of a GPU."""

    name = "capacity"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Bytes."""
        if isinstance(value, int):
            return value
        if value.lower() in GPUS:
            return GPUS[value.lower()] << 30
        return parse_bytes(value)


@click.command("fit", cls=arguments.ProgramCommand)
@click.option(
    "--capacity",
    type=CapacityType(),
    required=True,
    metavar="SIZE|GPU",
    help=f"Memory it must fit into: a size such as 24GiB, or {', '.join(GPUS)}.",
)
@click.option(
    "--vary",
    type=FlagType(),
    metavar="NAME=LOW..HIGH",
    help="Flag of SCRIPT to vary. memplan replaces {NAME} in SCRIPT's arguments, or "
    "appends --NAME VALUE. Without --vary: check SCRIPT as it is.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="What to count. cpu: live tensors; cuda: the memory that PyTorch's allocator "
    "would reserve.",
)
@click.option(
    "--beside",
    default="0",
    metavar="SIZE",
    show_default=True,
    help="Memory to leave free, for CUDA's context or other processes.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Steps to record at each value.",
)
@click.option(
    "--confirm",
    is_flag=True,
    help="Also run SCRIPT for real on the CPU, at the answer and at the next value.",
)
@arguments.json_
@click.option("-q", "--quiet", is_flag=True, help="Do not print each recording.")
@arguments.program
def command(
    capacity: int,
    vary: Flag | None,
    device: Literal["cpu", "cuda"],
    beside: str,
    steps: int,
    confirm: bool,
    json_: bool,
    quiet: bool,
    module: str | None,
    script: tuple[str, ...],
) -> None:
    """Find the largest batch size (or other flag) with which SCRIPT fits a device.

    memplan records SCRIPT under fake tensors, which take no memory. It tries a few
    values of the flag, among them the answer and the next value. It exits 1 if
    nothing fits.

    \b
    Example: memplan fit --capacity 24GiB --vary batch-size=1..512 train.py
    """
    if confirm and device != "cpu":
        raise UsageError("--confirm runs SCRIPT on the CPU: use it with --device cpu")
    limit = capacity - parse_bytes(beside)
    if limit <= 0:
        raise UsageError(f"--beside {beside} leaves nothing of --capacity")
    runs = Runs(arguments.target(module, script), vary, device, steps, quiet)
    flag = vary or Flag("", 0, 0)
    found = Search(lambda value: runs.fake(value, limit), flag.low, flag.high).run(
        limit
    )
    confirmed = runs.confirmed(found, limit) if confirm else {}
    answer = _answer(found, limit, confirmed)
    if json_:
        show.as_json(_entries(found, runs, limit, confirmed))
    else:
        _tell(found, runs, limit, confirmed)
    sys.exit(0 if answer is not None else 1)


class Runs:
    """The recordings that one search makes."""

    def __init__(
        self,
        target: Target,
        flag: Flag | None,
        device: Literal["cpu", "cuda"],
        steps: int,
        quiet: bool,
    ) -> None:
        self.target, self.flag, self.device = target, flag, device
        self.steps, self.quiet = steps, quiet
        self.notes: dict[str, None] = {}

    def label(self, value: int) -> str:
        """ "--batch-size 8", or the program's name where nothing is varied."""
        return f"{self.flag.name} {value}" if self.flag else self.target.name

    def fake(self, value: int, limit: int) -> tuple[int, bool]:
        """The bytes that `Search` asks for, and whether the device had them."""
        of = "fake" if self.device == "cpu" else f"fake:cuda:{limit}"
        found = self._trial(value, of)
        self.notes.update(dict.fromkeys(found.notes))
        size = found.live if self.device == "cpu" else found.reserved
        fits = not found.out_of_memory
        if not self.quiet:
            told = format_bytes(size) if fits else "out of memory"
            show.note(f"{self.label(value)}: {told}")
        return size, fits

    def confirmed(self, found: Fitted, limit: int) -> dict[int, int]:
        """By value the live bytes of real runs: of the answer's and the next one's; and
        where the answer really needs more than `limit`, of smaller ones, to find the
        largest that does not."""
        ends = (found.best, found.beyond)
        sizes = {one.value: self._real(one.value) for one in ends if one is not None}

        def real(value: int) -> tuple[int, bool]:
            if value not in sizes:
                sizes[value] = self._real(value)
            return sizes[value], True

        if found.best is not None and sizes[found.best.value] > limit:
            low = found.measured[0].value
            Search(real, low, found.best.value).largest(limit)
        return sizes

    def _real(self, value: int) -> int:
        size = self._trial(value, "cpu").live
        if not self.quiet:
            show.note(f"{self.label(value)}, really run: {format_bytes(size)}")
        return size

    def _trial(self, value: int, device: str) -> Trial:
        target = self.flag.of(self.target, value) if self.flag else self.target
        return trial(target, device, self.steps)


def _answer(found: Fitted, limit: int, confirmed: dict[int, int]) -> int | None:
    """The largest value that fits; of those really run, if any were; None if none."""
    if found.best is None:
        return None
    if not confirmed:
        return found.best.value
    fit = (v for v, size in confirmed.items() if size <= limit)
    return max((value for value in fit if value <= found.best.value), default=None)


def _tell(found: Fitted, runs: Runs, limit: int, confirmed: dict[int, int]) -> None:
    what = "live tensors" if runs.device == "cpu" else "reserved by torch's allocator"
    exact = _look_alike(found, limit)
    rows = [("limit", f"{_size(limit, exact)} of {what}")]
    answer = _answer(found, limit, confirmed)
    for title, one in (("fits", found.best), ("does not", found.beyond)):
        if one is not None:
            size = _size(one.bytes, exact) if one.fits else "out of memory"
            rows.append((title, f"{runs.label(one.value)}: {size}"))
            if one.value in confirmed:
                real = _size(confirmed[one.value], exact=True)
                rows.append(("", f"really run: {real}"))
    if found.best is not None and confirmed and answer != found.best.value:
        for value in sorted(confirmed, reverse=True):
            if value < found.best.value:
                word = "really fits" if value == answer else "does not really"
                real = _size(confirmed[value], exact=True)
                rows.append((word, f"{runs.label(value)}: {real}"))
    percent = f"{float(MARGIN):.0%}".replace("%", " %")
    if found.best is not None:
        if runs.flag is None:
            sure = "no" if found.sure is None else "yes"
        else:
            sure = "nothing" if found.sure is None else runs.label(found.sure.value)
        rows.append((f"with {percent} to spare", sure))
    if not found.steady:
        rows.append(("unsteady", "a larger value took less memory; see the list"))
    count = len(found.measured)
    smallest = found.measured[0].value
    title = (
        f"{runs.label(smallest)} does not fit"
        if answer is None
        else f"{runs.label(answer)} fits"
    )
    show.facts(f"{title} ({count} recording{'s' * (count > 1)}, no memory used)", rows)
    show.line(
        "  Workspaces that kernels allocate are not counted"
        + (" except those of convolutions" if runs.device == "cpu" else "")
        + f"; the {percent} allow for them."
    )
    for note in runs.notes:
        show.note(note)


def _look_alike(found: Fitted, limit: int) -> bool:
    """Whether two sizes that differ, of those compared, are rounded to one text."""
    ends = (found.best, found.beyond)
    sizes = {limit, *(one.bytes for one in ends if one is not None and one.fits)}
    return len(set(map(format_bytes, sizes))) < len(sizes)


def _size(size: int, exact: bool) -> str:
    rounded = format_bytes(size)
    return f"{rounded}, {size:,} bytes" if exact else rounded


def _entries(
    found: Fitted, runs: Runs, limit: int, confirmed: dict[int, int]
) -> dict[str, object]:
    def entry(one: object) -> object:
        return None if one is None else asdict(one)  # type: ignore[call-overload]

    return {
        "schema": "memplan.fit",
        "version": 1,
        "flag": runs.flag.name if runs.flag else None,
        "device": runs.device,
        "counts": "live" if runs.device == "cpu" else "reserved",
        "limit_bytes": limit,
        "best": entry(found.best),
        "beyond": entry(found.beyond),
        "sure": entry(found.sure),
        "margin": float(MARGIN),
        "steady": found.steady,
        "measured": [asdict(one) for one in found.measured],
        "confirmed": {str(value): size for value, size in confirmed.items()},
        "answer": _answer(found, limit, confirmed),
        "notes": list(runs.notes),
    }
