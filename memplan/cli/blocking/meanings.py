"""What the values of blocking options stand for, and how far a search is."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.machine.technology import FORTY_FIVE, load_technology
from memplan.blocking.nest.array import Datapath, parse_array
from memplan.blocking.nest.layer import Layer, parse_layer
from memplan.blocking.nest.nest import Nest, parse_nest, parse_unroll
from memplan.blocking.nest.precision import FORMATS, Precision
from memplan.blocking.run.inventory import LeftOut, ModelLayer, ModelLayers
from memplan.blocking.run.models import is_model, layers_of_source
from memplan.blocking.search.result import Options, Result, SearchProgress
from memplan.blocking.search.spatial import Task
from memplan.cli import show
from memplan.cli.blocking import report
from memplan.cli.progress import working
from memplan.errors import UsageError
from memplan.formats.plain import plain
from memplan.sweep import sweep
from memplan.units import format_gap, format_seconds

CACHES = "xeon-e5645"
BITS = "fp32"  # of the elements of emitted code


def all_layers(texts: Iterable[str]) -> list[ModelLayer]:
    """Every layer that is meant, and how often it is run.

    Says what of a model is in no layer, and where torch's own count differs. Raises
    UsageError, InputError or EnvironmentUnfitError.
    """
    found: list[ModelLayer] = []
    for text in texts:
        if not is_model(text):
            found.append(ModelLayer(parse_layer(text), 1))
            continue
        model = layers_of_source(text)
        note_model(model)
        if not model.layers:
            raise UsageError(f"{text} runs no convolution, product or pooling")
        found += model.layers
    return found


def machine(
    memory: str | None,
    budget: int | None,
    bits: Precision | None,
    technology: Path | None,
    sliding: bool,
    target: str | None = None,
) -> Objective:
    """The memories and the elements; of code for `target`, by default, caches and
    floats. Raises UsageError for a hierarchy with a budget or with a technology, which
    its file holds."""
    if target is not None:
        bits = bits or FORMATS[BITS]
        memory = memory or (CACHES if budget is None else None)
    if memory is None:
        return own_memories(budget, bits, technology, sliding)
    for name, given, what in (
        ("--budget", budget, "sizes, and --budget is for memories yet to be chosen"),
        ("--technology", technology, "energies, in its file"),
    ):
        if given is not None:
            raise UsageError(f"--memory {memory} has its own {what}; leave {name} out")
    hierarchy = load_hierarchy(memory)
    if bits is not None:
        hierarchy = hierarchy.at(bits)
    return Fixed(hierarchy.slid() if sliding else hierarchy)


def own_memories(
    budget: int | None,
    bits: Precision | None,
    technology: Path | None,
    sliding: bool,
) -> Codesign:
    """A memory for each buffer, within a budget, of elements of so many bits."""
    made = FORTY_FIVE if technology is None else load_technology(technology)
    return Codesign(
        curves=made.curves(),
        budget=budget,
        precision=bits or Precision(),
        technology=made,
        sliding=sliding,
    )


def nest(layer: Layer, string: str, unroll: str) -> Nest:
    """A nest that is given."""
    return parse_nest(string, layer, datapath(unroll))


def datapath(text: str) -> dict[str, int]:
    """What `--unroll` says of a nest that is given.

    Raises UsageError where it is to be searched for.
    """
    if parse_array(text) is not None:
        raise UsageError(
            f"--unroll {text} is searched for together with a nest, and here the nest "
            "is given: take the datapath that optimize --unroll auto found it with"
        )
    return {} if text.strip().lower() == "none" else parse_unroll(text)


def datapath_or_array(text: str) -> Datapath:
    """What `--unroll` says of a nest that is searched for."""
    return parse_array(text) or datapath(text)


def tasks(
    layers: Sequence[ModelLayer], objective: Objective, unroll: str, how: Options
) -> list[Task]:
    """A search for each layer, on the datapath given."""
    chosen = datapath_or_array(unroll)
    return [Task(one.layer, chosen, objective, how) for one in layers]


def note_model(model: ModelLayers) -> None:
    """As notes: what was left out and its share, what is counted in another form, and
    where torch's own counter says otherwise."""
    for one in model.left_out:
        show.note(f"left out {one.where}: {one.reason}; {share_text(model, one)}")
    for note in model.notes:
        show.note(note)
    if model.difference:
        show.complaint(f"the multiply-adds are not torch's: {check_text(model)}")


def share_text(model: ModelLayers, one: LeftOut) -> str:
    """Its part of all multiply-adds that are known."""
    if one.macs is None:
        return "its multiply-adds are not known"
    return f"{format_gap(model.share(one.macs))} of the multiply-adds"


def check_text(model: ModelLayers) -> str:
    """What torch's own counter says of the same run."""
    if model.reference is None:
        return "no count of torch's to compare with: nothing was run"
    said = f"torch's counter has {model.reference.macs:,}"
    for operation, macs in model.reference.unknown:
        part = format_gap(model.share(macs))
        said += f"; it has no formula for {operation}, {part} here"
    if not model.difference:
        return said + ("; otherwise the same" if model.reference.unknown else ", too")
    more = "more" if model.difference > 0 else "fewer"
    part = format_gap(model.share(abs(model.difference)))
    return f"{said}; of what both count there are {part} {more} here"


def model_entries(model: ModelLayers) -> dict[str, object]:
    """The same as JSON."""
    reference = model.reference
    return {
        "macs": model.macs,
        "counted_macs": model.counted,
        "left_out": [
            plain(one) | {"share": None if one.macs is None else model.share(one.macs)}
            for one in model.left_out
        ],
        "notes": list(model.notes),
        "torch": None
        if reference is None
        else {
            "macs": reference.macs,
            "without_formula": dict(reference.unknown),
            "difference": model.difference,
        },
    }


@contextlib.contextmanager
def searching(what: str) -> Iterator[Callable[[SearchProgress], None]]:
    """What to call with each SearchProgress, likewise."""
    with working(what) as report_line:
        yield lambda progress: report_line(describe(progress))


def swept(
    what: str, tasks: Sequence[Task], threads: int | None, ray: str | None
) -> list[Result]:
    """The results of all tasks, on a Ray cluster if its address is given."""
    ended = itertools.count(1)
    with working(what) as report_line:

        def progress(number: int, result: Result) -> None:
            report_line(f"{next(ended)} of {len(tasks)} done")

        processes = None if ray else threads
        return sweep(tasks, processes=processes, address=ray, progress=progress)


def describe(progress: SearchProgress) -> str:
    """The best energy, what was tried, and the time, in one line."""
    parts = [] if math.isinf(progress.energy) else [report.energy(progress.energy)]
    parts.append(f"{report.amount(progress.evaluated)} tried")
    parts.append(format_seconds(progress.seconds))
    return ", ".join(parts) + "; Ctrl-C keeps the best"
