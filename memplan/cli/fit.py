"""memplan fit"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import click

from memplan.cli import arguments, show
from memplan.core.recompute import Recomputation
from memplan.errors import RecordError, UsageError, as_options
from memplan.recording.fake_device import GPUS
from memplan.recording.fake_values import WITH_VALUES, WITHOUT_GPU
from memplan.recording.forking import ForkServer
from memplan.recording.target import Target
from memplan.recording.trial import ProgramFailedError, Trial, trial
from memplan.reporting.fit import MARGIN, Fitted, Measured, Plateau, Search
from memplan.trace.trace import Trace
from memplan.units import format_bytes, parse_memory

_PERCENT = f"{float(MARGIN):.0%}".replace("%", " %")
_UNKNOWN_TO_ARGPARSE = r"unrecognized arguments:[^\n]* "
_UNKNOWN_TO_CLICK = r"No such option:? '?"
# What `memplan record` advises, and what there is to do with `memplan fit`.
_ADVICE = {
    as_options(WITHOUT_GPU): "use --device cpu",
    as_options(WITH_VALUES): "measure a real run: memplan record --device cpu",
}
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

    def refuse_unknown(self, target: Target, error: ProgramFailedError) -> None:
        """Raise UsageError if the program, by argparse or click, does not know it."""
        unknown = rf"({_UNKNOWN_TO_ARGPARSE}|{_UNKNOWN_TO_CLICK}){re.escape(self.name)}"
        if error.code != 2 or not re.search(rf"{unknown}(?![\w-])", error.said):
            return
        near = self._alike(error.said, target)
        name = self.name.lstrip("-")
        if near:
            short = near if len(near) == 2 else near.lstrip("-")
            advice = f"it mentions {near}: write --vary {short}={self.low}..{self.high}"
        else:
            advice = (
                f"write {{{name}}} among its arguments where the value belongs, "
                f"such as {name}={{{name}}}"
            )
        raise UsageError(
            f"{target.name} does not know {self.name}; {advice}"
        ) from error

    def _alike(self, said: str, target: Target) -> str | None:
        """The flag most like this one that the program's error or source mentions."""
        from difflib import get_close_matches

        text = said
        if not target.is_module:
            text += Path(target.name).read_text(encoding="utf-8", errors="replace")
        mentioned = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", text)) - {self.name}
        plain = {flag.strip("-").replace("_", "-"): flag for flag in sorted(mentioned)}
        wanted = self.name.strip("-").replace("_", "-")
        found = get_close_matches(wanted, plain, n=1)
        return plain[found[0]] if found else None


def _flag(text: str) -> Flag:
    """The flag in NAME=LOW..HIGH. A name without dashes gets two, of one letter one."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UsageError(f"--vary {text}: write NAME=LOW..HIGH: batch-size=1..512")
    dashes, name, low, high = match.groups()
    dashes = dashes or ("-" if len(name) == 1 else "--")
    return Flag(f"{dashes}{name}", int(low), int(high))


def _capacity(text: str) -> int:
    """Bytes, of a size or of the GPU with that name."""
    if text.lower() in GPUS:
        return GPUS[text.lower()] << 30
    return parse_memory(text)


@click.command("fit", cls=arguments.ProgramCommand)
@click.option(
    "--capacity",
    type=_capacity,
    required=True,
    metavar="SIZE|GPU",
    help=f"Memory it must fit into: a size such as 24GiB, or {', '.join(GPUS)}.",
)
@click.option(
    "--vary",
    type=_flag,
    metavar="NAME=LOW..HIGH",
    help="Flag of SCRIPT to vary. memplan replaces {NAME} in SCRIPT's arguments, or "
    "appends --NAME VALUE, or -N VALUE for a name of one letter. Without --vary: check "
    "SCRIPT as it is.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    help="What to count. cpu: live tensors; cuda: the memory that PyTorch's allocator "
    "would reserve.",
)
@click.option(
    "--beside",
    default="0",
    metavar="SIZE",
    help="Memory to leave free, for CUDA's context or other processes.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=3,
    help="Steps to record at each value.",
)
@click.option(
    "--recompute",
    is_flag=True,
    help="Count what SCRIPT, a training program, needs at least where it computes some "
    "modules again, as with memplan solve --budget.",
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
    recompute: bool,
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
    if recompute and (confirm or device != "cpu"):
        other = "--confirm" if confirm else f"--device {device}"
        raise UsageError(f"--recompute cannot be used with {other}")
    limit = capacity - parse_memory(beside)
    if limit <= 0:
        raise UsageError(f"--beside {beside} leaves nothing of --capacity")
    target = arguments.target(module, script)
    flag = vary or Flag("", 0, 0)
    with ForkServer() as server:
        runs = Runs(server, target, vary, device, steps, quiet, recompute)
        search = Search(lambda value: runs.fake(value, limit), flag.low, flag.high)
        found = search.run(limit)
        confirmed = runs.confirmed(found, limit) if confirm else {}
    result = Answer(found, runs, limit, confirmed)
    if json_:
        show.as_json(result.entries(), "memplan.fit")
    else:
        result.tell()
    sys.exit(0 if result.value is not None else 1)


def _advised(text: str) -> str:
    for recording, fitting in _ADVICE.items():
        text = text.replace(recording, fitting)
    return text


@dataclass(frozen=True)
class Runs:
    """The recordings that one search makes. server: where they run; notes: what they
    say, each once; ran: the values with which the program ran; chosen: by value, what
    is computed again so that it fits."""

    server: ForkServer
    target: Target
    flag: Flag | None
    device: Literal["cpu", "cuda"]
    steps: int
    quiet: bool
    recompute: bool = False
    chosen: dict[int, Recomputation] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    ran: list[int] = field(default_factory=list)

    def label(self, value: int) -> str:
        """ "--batch-size 8", or the program's name where nothing is varied."""
        return f"{self.flag.name} {value}" if self.flag else self.target.name

    def fake(self, value: int, limit: int) -> Measured:
        """A recording under fake tensors; its bytes are what the limit is for."""
        of = "fake" if self.device == "cpu" else f"fake:cuda:{limit}"
        found = self._trial(value, of)
        self.notes.update(dict.fromkeys(found.notes))
        size = found.live if self.device == "cpu" else found.reserved
        if found.trace is not None:
            size = self._least(value, found.trace, limit)
        fits = not found.out_of_memory
        if not self.quiet:
            told = format_bytes(size) if fits else "out of memory"
            show.note(f"{self.label(value)}: {told}")
        return Measured(value, size, fits, found.allocated)

    def _least(self, value: int, trace: Trace, limit: int) -> int:
        """The least budget; where that is within the limit, note the best choice."""
        from memplan.budgeting.choose import RESERVE, Budgeting

        budgeting = Budgeting(trace)
        least = budgeting.least.units.budget
        least += max(
            RESERVE, least >> 7
        )  # two recordings' least budgets differ by less
        if least <= limit:
            self.chosen[value] = budgeting.within(limit).units
        return least

    def confirmed(self, found: Fitted, limit: int) -> dict[int, int]:
        """By value the live bytes of real runs: of the answer's and the next one's; and
        where the answer really needs more than `limit`, of smaller ones, to find the
        largest that does not."""
        ends = (found.best, found.beyond)
        sizes = {one.value: self._real(one.value) for one in ends if one is not None}

        def real(value: int) -> Measured:
            if value not in sizes:
                sizes[value] = self._real(value)
            return Measured(value, sizes[value], True)

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
        try:
            found = trial(self.server, target, device, self.steps, self.recompute)
        except ProgramFailedError as error:
            if self.flag is not None and target != self.target:
                self.flag.refuse_unknown(self.target, error)
            raise RecordError(f"{_advised(str(error))}{self._hint(value)}") from error
        self.ran.append(value)
        return found

    def _hint(self, failed: int) -> str:
        """What range to name where smaller values ran."""
        ran = max((value for value in self.ran if value < failed), default=None)
        if ran is None:
            return ""
        return f"; it ran with {self.label(ran)}: name a range that ends below {failed}"


@dataclass(frozen=True)
class Answer:
    """What fits. confirmed: live bytes of real runs, by value; empty without any."""

    found: Fitted
    runs: Runs
    limit: int
    confirmed: dict[int, int]

    @property
    def value(self) -> int | None:
        """The largest that fits, of those really run, if any were; None if none."""
        best = self.found.best
        if best is None:
            return None
        if not self.confirmed:
            return best.value
        fit = (v for v, size in self.confirmed.items() if size <= self.limit)
        return max((value for value in fit if value <= best.value), default=None)

    def entries(self) -> dict[str, object]:
        """As JSON has it."""
        names = ("best", "beyond", "sure", "steady", "measured", "plateau")
        return {
            **show.picked(self.found, *names),
            "flag": self.runs.flag.name if self.runs.flag else None,
            "device": self.runs.device,
            "counts": "live" if self.runs.device == "cpu" else "reserved",
            "limit_bytes": self.limit,
            "margin": float(MARGIN),
            "recompute": self._recompute(),
            "confirmed": {str(value): size for value, size in self.confirmed.items()},
            "answer": self.value,
            "notes": list(self.runs.notes),
        }

    def _recompute(self) -> dict[str, object] | None:
        """What is computed again at the largest value that fits, if anything is."""
        part = None if self.value is None else self.runs.chosen.get(self.value)
        if part is None:
            return None
        share = part.recomputed_milli / 1000
        return {
            "eager_bytes": part.eager,
            "recomputed": share,
            "units": len(part.units),
        }

    def tell(self) -> None:
        """For people."""
        runs, found = self.runs, self.found
        count, first = len(found.measured), found.measured[0].value
        title = f"{runs.label(first)} does not fit"
        if self.value is not None:
            title = f"{runs.label(self.value)} fits"
            same = found.plateau
            if same is not None and same.unused and same.value < self.value:
                title = f"{runs.label(same.value)} to {self.value} fit alike"
        recordings = f"{count} recording{'s' * (count > 1)}, no memory used"
        show.facts(f"{title} ({recordings})", self._rows())
        cpu = runs.device == "cpu"
        counted = "only those of convolutions are" if cpu else "they are not"
        show.line(f"  The {_PERCENT} are for kernels' workspaces: {counted} counted.")
        for note in runs.notes:
            show.note(note)

    def _rows(self) -> list[tuple[str, str]]:
        runs, found, confirmed = self.runs, self.found, self.confirmed
        on_cpu = runs.device == "cpu"
        what = "live tensors" if on_cpu else "reserved by torch's allocator"
        ends = (("fits", found.best), ("does not", found.beyond))
        # Where two sizes that differ are rounded to one text, all are exact.
        sizes = {self.limit, *(one.bytes for _, one in ends if one and one.fits)}
        exact = len(set(map(format_bytes, sizes))) < len(sizes)
        rows = [("limit", f"{_size(self.limit, exact)} of {what}")]
        for title, one in ends:
            if one is not None:
                size = _size(one.bytes, exact) if one.fits else "out of memory"
                size += " at least" * runs.recompute
                rows.append((title, f"{runs.label(one.value)}: {size}"))
                if one.value in confirmed:
                    rows.append(("", f"really run: {_size(confirmed[one.value])}"))
        if part := runs.chosen.get(self.value or 0):
            rows.append(("as it is", f"{_size(part.eager, exact)} at that value"))
            share = f"{part.recomputed_milli / 10:.0f} %"
            what = f"{len(part.units)} units, {share} of a forward pass by bytes"
            rows.append(("recomputed", what if part.units else "nothing needs to be"))
        if found.best is not None and confirmed and self.value != found.best.value:
            for value in sorted(confirmed, reverse=True):
                if value < found.best.value:
                    word = "really fits" if value == self.value else "does not really"
                    real = _size(confirmed[value])
                    rows.append((word, f"{runs.label(value)}: {real}"))
        if found.best is not None:
            none, sure = ("nothing" if runs.flag else "no"), found.sure
            yes = "yes" if sure is None or not runs.flag else runs.label(sure.value)
            rows.append((f"with {_PERCENT} to spare", none if sure is None else yes))
        if found.plateau is not None:
            rows += self._unchanged(found.plateau)
        if (fall := found.fall) is not None:
            more, less = (runs.label(one.value) for one in fall)
            rows.append(("unsteady", f"{less} takes less memory than {more}"))
        return rows

    def _unchanged(self, plateau: Plateau) -> list[tuple[str, str]]:
        """From where on the peak does not change, and whether anything else does."""
        runs, flag = self.runs, self.runs.flag
        assert flag is not None
        count = sum(one.value >= plateau.value for one in self.found.measured)
        size = f"{format_bytes(plateau.bytes)} at all {count} recorded values"
        if plateau.value > flag.low:
            first = f"from {runs.label(plateau.value)} on the peak does not change"
            may = "the program may not use larger values"
        else:
            first = f"the peak does not depend on {flag.name}"
            may = "the program may ignore it"
        total = "but the bytes of all allocations together do"
        if plateau.unused:
            total = f"nor do the bytes of all allocations together: {may}"
        return [("no change", f"{first}: {size}"), ("", total)]


def _size(size: int, exact: bool = True) -> str:
    rounded = format_bytes(size)
    return f"{rounded}, {size:,} bytes" if exact else rounded
