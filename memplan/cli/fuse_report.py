"""The result of `memplan fuse`: as text, as JSON and as a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from memplan.cli import show
from memplan.cli.chunk_report import place
from memplan.compiling.examine import Examined
from memplan.compiling.summary import Part, Run
from memplan.fusing.collapse import pools_of, sizes
from memplan.fusing.layers import Layer
from memplan.units import format_bytes, format_seconds
from memplan.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from memplan.plotting.stacks import DrawnSequence

MOST_REASONS = 8  # reasons listed one by one
MOST_NAMED = 3  # layers named with one reason


def report(found: Examined) -> None:
    """Print what fusing a model saved."""
    show.facts(f"memplan: {found.name} {_title(found)}", _facts(found))


def _title(found: Examined) -> str:
    summary, ratio = found.summary, found.ratios.get("median", 1.0)
    if summary.status == "unchanged":
        return f"runs unchanged: {summary.reason}"
    fast = f"{ratio:.2f} times as fast"
    if summary.status == "parts":
        return f"runs fused in parts, {fast}"
    return f"runs fused, {fast}"


def _facts(found: Examined) -> list[tuple[str, str]]:
    parts = found.summary.parts
    threads = "1 thread" if found.threads == 1 else f"{found.threads} threads"
    eager, peak = found.seconds["eager"], found.peaks["eager"]
    if found.summary.status == "unchanged":
        rows = [
            ("time", f"{format_seconds(eager)} a call, {threads}"),
            ("activations", f"{format_bytes(peak)} at their peak"),
        ]
        return rows + _not_fused(parts)
    error = found.error
    seconds, first = map(format_seconds, (found.seconds["memplan"], found.first_call))
    after = format_bytes(found.peaks["memplan"])
    ratio = "{median:.2f}, from {min:.2f} to {max:.2f} in rounds taken in turns"
    rows = [
        ("time", f"{format_seconds(eager)} before, {seconds} after, {threads}"),
        ("ratio", ratio.format(**found.ratios)),
        ("difference", f"{error:.1e} at most, relative" if error else "none"),
        ("first call", f"{first}, compilation included"),
        ("activations", f"{format_bytes(peak)} before, {after} after, at their peak"),
    ]
    if found.summary.status == "parts":
        rows.append(("not fused whole", found.summary.reason))
    for part in parts:
        rows += _part_facts(part, named=len(parts) > 1 or bool(part.path))
    return [*rows, *_predicted(found), *_not_fused(parts)]


def _part_facts(part: Part, named: bool) -> list[tuple[str, str]]:
    rows = [("part", part.path)] if named else []
    if part.status != "fused":
        return [*rows, ("", f"runs unchanged: {part.reason}")]
    became = Counter(each.became for each in part.layers)
    first, *others = _outcomes(became)
    rows += show.listed("layers", [f"{len(part.layers):,}: {first}", *others])
    if part.kernels:
        kernels = ", ".join(f"{each} {name}" for name, each in part.kernels.items())
        rows.append(("convolutions", f"{became['convolution']}: {kernels}"))
    if part.running:
        many = f"{len(part.running):,} with {_inside(part.running)}"
        rows.append(("stacks", many))
    if part.at_a_time < part.images:
        rows.append(("images", f"{part.at_a_time} at a time, of {part.images}"))
    least = ", equal to the lower bound" if part.arena == part.bound else ""
    if part.arena > part.bound:
        least = f", lower bound {format_bytes(part.bound)}"
    rows.append(("arena", format_bytes(part.arena) + least))
    return rows


_WORDS = {
    "convolution": "{} convolutions",
    "joined": "{} joined into them",
    "stack": "{} in stacks",
    "placed": "{} concatenated without a copy",
    "nothing": "{} without computation",
    "torch": "{} run by torch",
}


def _outcomes(became: Counter[str]) -> list[str]:
    return [
        words.format(became[name]) for name, words in _WORDS.items() if became[name]
    ]


def _inside(runs: Sequence[Run]) -> str:
    """As in "9 operations in 4 steps, 3 sequences"."""
    stacks = [each.stack for each in runs]
    operations = sum(len(each.operations) for each in stacks)
    steps = sum(len(each.steps) for each in stacks)
    sequences = sum(len(each.sequences) for each in stacks)
    return (
        f"{count(operations, 'operation')} in {count(steps, 'step')}, "
        f"{count(sequences, 'sequence')}"
    )


def count(number: int, what: str) -> str:
    """As in "1 step" or "1,200 steps"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _predicted(found: Examined) -> list[tuple[str, str]]:
    """The memory traffic that the paper's stacks would save, and the time."""
    runs = [run for part in found.summary.parts for run in part.found]
    if not runs:
        return []
    whole, saved = sum(run.traffic[0] for run in runs), sum(run.saved for run in runs)
    traffic = f"{format_bytes(saved)} of their {format_bytes(whole)} of traffic saved"
    return [
        ("paper stacks", f"{count(len(runs), 'stack')} with {_inside(runs)}"),
        ("", f"{traffic}: {format_seconds(saved / found.bandwidth)}"),
        ("", f"at {format_bytes(found.bandwidth)}/s, the speed of a copy"),
    ]


def _not_fused(parts: Iterable[Part]) -> list[tuple[str, str]]:
    """Reasons why torch runs layers, and those layers."""
    places: dict[str, list[str]] = {}
    for part in parts:
        for layer in part.layers:
            if layer.became == "torch" and layer.reason:
                places.setdefault(layer.reason, []).append(_path(part, layer))
    rows: list[tuple[str, str]] = []
    for reason, names in list(places.items())[:MOST_REASONS]:
        more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > 3 else ""
        listed = ", ".join(names[:MOST_NAMED])
        rows.append(("" if rows else "not fused", f"{listed}{more}: {reason}"))
    if len(places) > MOST_REASONS:
        rows.append(("", f"and {len(places) - MOST_REASONS:,} more reasons"))
    return rows


def _path(part: Part, layer: Layer) -> str:
    return f"{part.path}.{layer.place}" if part.path else layer.place


def layers(found: Examined) -> None:
    """Print of every layer what became of it."""
    for part in found.summary.parts:
        numbers = {run.name: at for at, run in enumerate(part.running, 1)}
        names = {layer.name: _path(part, layer) for layer in part.layers}
        rows = []
        for one in part.layers:
            outcome = _OUTCOMES[one.became].format(
                kernel=one.kernel,
                layer=names.get(one.into),
                stack=numbers.get(one.into),
                reason=one.reason or part.reason,
            )
            rows.append((place(names[one.name]), one.operator, outcome))
        show.line("")
        title = f"Layers{_of(part)}, in order"
        show.table(title, ("layer", "operator", "outcome"), rows, 3)


def _of(part: Part) -> str:
    return f" of {part.path}" if part.path else ""


_OUTCOMES = {
    "convolution": "convolution: {kernel}",
    "joined": "joined into {layer}",
    "stack": "in stack {stack} of those that run",
    "placed": "concatenated without a copy",
    "nothing": "no computation",
    "torch": "run by torch: {reason}",
}


def stacks(found: Examined) -> None:
    """Print the stacks that run, and those that the paper would find."""
    for part in found.summary.parts:
        running = f"Stacks{_of(part)} that run, one kernel each"
        _listed(running, part.running, part, found)
        _listed(f"Stacks{_of(part)} as the paper finds them", part.found, part, found)


def _listed(title: str, runs: Sequence[Run], part: Part, found: Examined) -> None:
    if not runs:
        return
    show.line("")
    show.line(f"{title}: {len(runs):,} with {_inside(runs)}")
    names = {layer.name: _path(part, layer) for layer in part.layers}
    became = {layer.name: layer.became for layer in part.layers}
    for number, run in enumerate(runs, 1):
        for line in _stack(number, run, names, part.limit):
            show.line(line)
        moved, saved = run.traffic[0], run.saved
        outcomes = Counter(became[name] for name in run.layers)
        gain = format_seconds(saved / found.bandwidth) if saved else "none"
        show.line(
            f"      predicted gain {gain}: {format_bytes(saved)} of "
            f"{format_bytes(moved)} of traffic"
            + (f"; here {', '.join(_outcomes(outcomes))}" if not run.by else "")
        )


def _stack(number: int, run: Run, names: dict[str, str], limit: int) -> Iterator[str]:
    first, last = names[run.layers[0]], names[run.layers[-1]]
    span = first if len(run.layers) == 1 else f"{first} … {last}"
    shape = "×".join(map(str, run.shape))
    yield f"  {number}. {span}: {shape}, {_inside([run])}"
    height, width = run.shape[2:]
    for sequence in run.stack.sequences:
        after = sizes(pools_of(sequence.steps), height, width)[-1]
        patch = f"{sequence.patch.rows}×{sequence.patch.columns}"
        cache = "in registers"
        if sequence.bytes:
            cache = f"{format_bytes(sequence.bytes)} of {format_bytes(limit)} of cache"
        over = ", over the limit" if sequence.bytes > limit else ""
        yield (
            f"      sequence: {height}×{width} to {after[0]}×{after[1]}, "
            f"{patch} at a time, {cache}{over}"
        )
        for step in sequence.steps:
            yield f"        step: {step}"
        height, width = after


def document(found: Examined) -> dict[str, Any]:
    """The document of `memplan fuse --json`; docs/formats.md says what is in it."""
    summary, error = found.summary, found.error
    return {
        **show.picked(summary, "status", "reason"),
        **show.picked(found, "torch", "threads", "seconds", "warnings", model="name"),
        "producer": f"memplan {__version__}",
        "device": "cpu",
        "ratio_to_eager": found.ratios.get("median"),
        "ratios": found.ratios or None,
        "max_relative_error": error if error is not None and isfinite(error) else None,
        "first_call_seconds": found.first_call,
        "peak_activation_bytes": found.peaks,
        "copy_bytes_per_second": found.bandwidth,
        "parts": [_part_entry(each, found.bandwidth) for each in summary.parts],
    }


def _part_entry(part: Part, bandwidth: float) -> dict[str, Any]:
    sizes = {"arena_bytes": "arena", "arena_bound_bytes": "bound"}
    sizes |= {"cache_limit_bytes": "limit", "images_at_a_time": "at_a_time"}
    of_layer = ("name", "place", "operator", "shape", "became", "into", "kernel")
    return {
        **show.picked(part, "path", "status", "reason", "inputs", "images", "kernels"),
        **show.picked(part, **sizes),
        "layers": [show.picked(each, *of_layer, "reason") for each in part.layers],
        "stacks": [_stack_entry(each, bandwidth) for each in part.running],
        "paper_stacks": [_stack_entry(each, bandwidth) for each in part.found],
    }


def _stack_entry(run: Run, bandwidth: float) -> dict[str, Any]:
    layerwise, depth_first = run.traffic
    return {
        **show.picked(run, "name", "layers", input="shape", runs_by="by"),
        "operations": len(run.stack.operations),
        "steps": len(run.stack.steps),
        "traffic_bytes": layerwise,
        "traffic_bytes_fused": depth_first,
        "predicted_gain_seconds": run.saved / bandwidth,
        "sequences": [
            {
                "steps": [list(map(str, step.operations)) for step in one.steps],
                "patch": list(one.patch),
                "cache_bytes": one.bytes,
            }
            for one in run.stack.sequences
        ],
    }


# Labels of boxes, by a layer's kind, beside those of element-wise operators.
_LABELS = {"convolution": "conv", "max pool": "max", "average pool": "mean"}


def picture(found: Examined) -> Figure:
    """The stacks that the paper would find in a model, and what became of its layers:
    of all of it, or of the part that has most layers."""
    from memplan.plotting.stacks import DrawnLayer, DrawnNetwork
    from memplan.plotting.stacks import stacks as draw

    part = max(found.summary.parts, key=lambda each: len(each.layers))
    name = found.name + (f", {part.path}" if part.path else "")
    numbers = {layer.name: at for at, layer in enumerate(part.layers)}
    drawn = DrawnNetwork(
        [DrawnLayer(_label(layer), layer.became) for layer in part.layers],
        [_drawn(run, numbers) for run in part.found],
        part.limit,
        _caption(found, part),
    )
    return draw(drawn, name)


def _label(layer: Layer) -> str:
    from memplan.fusing.operators import OPERATORS

    if layer.does in OPERATORS:
        return OPERATORS[layer.does].label or layer.does
    own = layer.operator.lower() if layer.kind in ("call", "same") else layer.does
    return _LABELS.get(layer.does, own)


def _drawn(run: Run, numbers: dict[str, int]) -> list[DrawnSequence]:
    from memplan.plotting.stacks import DrawnSequence

    return [
        DrawnSequence(
            [[numbers[name] for name in step] for step in steps],
            sequence.bytes,
            _steps_label(sequence.steps),
        )
        for steps, sequence in zip(run.steps, run.stack.sequences, strict=True)
    ]


def _steps_label(steps: Sequence[object]) -> str:
    return str(steps[0]) if len(steps) == 1 else f"{len(steps)} steps: {steps[0]}; …"


def _caption(found: Examined, part: Part) -> str:
    steps = sum(len(run.stack.steps) for run in part.found)
    sequences = sum(len(run.stack.sequences) for run in part.found)
    facts = [
        f"{count(len(part.layers), 'layer')} in the order they run",
        f"{count(len(part.found), 'stack')}, {count(steps, 'step')}, "
        f"{count(sequences, 'sequence')}",
    ]
    if part.status != "fused":
        facts.append("runs unchanged")
    elif found.ratios:
        facts.append(f"{found.ratios['median']:.2f} times as fast")
    return "  ·  ".join(facts)
