"""The picture of a fused model's layers and stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.cli.fuse_report import count
from memplan.fusing.collapse import Step
from memplan.fusing.examine import Examined
from memplan.fusing.summary import Fate, Part, Run
from memplan.plotting.stacks import DrawnLayer, DrawnNetwork, DrawnSequence, stacks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What stands in a box, by a layer's kind.
_LABELS = {
    "convolution": "conv",
    "affine": "norm",
    "max pool": "max",
    "average pool": "mean",
    "cat": "cat",
    "add": "+",
    "sub": "−",
    "mul": "×",
    "add_number": "+ n",
    "mul_number": "× n",
    "gate": "gate",
    "hardsigmoid": "hsigm",
    "hardswish": "hswish",
    "leaky_relu": "leaky",
}


def picture(found: Examined) -> Figure:
    """The stacks that the paper would find in a model, and what became of its layers:
    of all of it, or of the part that has most layers."""
    part = max(found.summary.parts, key=lambda each: len(each.layers))
    name = found.name + (f", {part.path}" if part.path else "")
    numbers = {layer.name: at for at, layer in enumerate(part.layers)}
    drawn = DrawnNetwork(
        [DrawnLayer(_label(layer), layer.became) for layer in part.layers],
        [_drawn(run, numbers) for run in part.found],
        part.limit,
        _facts(found, part),
    )
    return stacks(drawn, name)


def _label(layer: Fate) -> str:
    return _LABELS.get(layer.kind) or (
        layer.operator.lower() if layer.kind in ("call", "same") else layer.kind
    )


def _drawn(run: Run, numbers: dict[str, int]) -> list[DrawnSequence]:
    return [
        DrawnSequence(
            [[numbers[name] for name in step] for step in steps],
            sequence.bytes,
            _words(sequence.steps),
        )
        for steps, sequence in zip(run.steps, run.stack.sequences, strict=True)
    ]


def _words(steps: Sequence[Step]) -> str:
    return str(steps[0]) if len(steps) == 1 else f"{len(steps)} steps: {steps[0]}; …"


def _facts(found: Examined, part: Part) -> str:
    steps = sum(len(run.stack.steps) for run in part.found)
    sequences = sum(len(run.stack.sequences) for run in part.found)
    facts = [
        f"{count(len(part.layers), 'layer')} in the order they run",
        f"{count(len(part.found), 'stack')}, {count(steps, 'step')}, "
        f"{count(sequences, 'sequence')}",
    ]
    if part.status != "fused":
        facts.append("runs as it was")
    elif found.worth.ratios:
        facts.append(f"{found.worth.ratios['median']:.2f} times as fast")
    return "  ·  ".join(facts)
