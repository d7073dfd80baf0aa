"""What the words of blocking commands' options stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.design.task import Task
from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.machine.technology import FORTY_FIVE
from memplan.blocking.machine.technology_file import load_technology
from memplan.blocking.nest.array import Datapath, parse_array
from memplan.blocking.nest.layer import parse_layer
from memplan.blocking.nest.nest import parse_unroll
from memplan.blocking.nest.precision import Precision, parse_precision
from memplan.blocking.run.inventory import ModelLayer
from memplan.blocking.run.sources import is_model, layers_of_source
from memplan.blocking.search.result import Options
from memplan.cli.blocking import model_notes
from memplan.errors import UsageError
from memplan.units import parse_bytes


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
        model_notes.tell(model)
        if not model.layers:
            raise UsageError(f"{text} runs no convolution, product or pooling")
        found += model.layers
    return found


def machine(
    memory: str | None,
    budget: str | None,
    bits: str | None = None,
    technology: Path | None = None,
    sliding: bool = False,
) -> Objective:
    """The memories and the elements. Raises UsageError for a hierarchy with a budget or
    with a technology, which its file holds, and for bits that make no sense."""
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
        hierarchy = hierarchy.at(parse_precision(bits))
    return Fixed(hierarchy.slid() if sliding else hierarchy)


def own_memories(
    budget: str | None, bits: str | None, technology: Path | None, sliding: bool
) -> Codesign:
    """A memory for each buffer, within a budget, of elements of so many bits."""
    made = FORTY_FIVE if technology is None else load_technology(technology)
    return Codesign(
        curves=made.curves(),
        budget=None if budget is None else parse_bytes(budget),
        precision=Precision() if bits is None else parse_precision(bits),
        technology=made,
        sliding=sliding,
    )


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
