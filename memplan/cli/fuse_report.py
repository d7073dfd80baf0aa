"""What became of a fused model, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from memplan.cli import show
from memplan.cli.chunk_report import place
from memplan.fusing.collapse import pools_of, sizes
from memplan.fusing.examine import Examined
from memplan.fusing.summary import Fate, Part, Run
from memplan.fusing.traffic import traffic
from memplan.units import format_bytes, format_seconds

MOST_LEFT_ALONE = 8  # reasons listed one by one
MOST_NAMED = 3  # layers named with one reason


def report(found: Examined) -> None:
    """Print what a model was worth, fused: a title and facts."""
    show.facts(f"memplan: {found.name} {_title(found)}", _facts(found))


def _title(found: Examined) -> str:
    summary, ratio = found.summary, found.worth.ratios.get("median", 1.0)
    if summary.status == "unchanged":
        return f"runs as it was: {summary.reason}"
    fast = f"{ratio:.2f} times as fast"
    if summary.status == "parts":
        return f"runs fused in parts, {fast}"
    return f"runs fused, {fast}"


def _facts(found: Examined) -> list[tuple[str, str]]:
    worth, parts = found.worth, found.summary.parts
    threads = "1 thread" if found.threads == 1 else f"{found.threads} threads"
    eager, peak = worth.seconds["eager"], worth.peaks["eager"]
    if found.summary.status == "unchanged":
        rows = [
            ("time", f"{format_seconds(eager)} a call, {threads}"),
            ("activations", f"{format_bytes(peak)} at their peak"),
        ]
        return rows + _left_alone(parts)
    ratios, error = worth.ratios, worth.error
    rows = [
        (
            "time",
            f"{format_seconds(eager)} before, "
            f"{format_seconds(worth.seconds['memplan'])} after, {threads}",
        ),
        (
            "ratio",
            f"{ratios['median']:.2f}, from {ratios['min']:.2f} to "
            f"{ratios['max']:.2f} in rounds taken in turns",
        ),
        ("difference", f"{error:.1e} at most, relative" if error else "none"),
        ("first call", f"{format_seconds(found.first_call)}, with all that it decides"),
        (
            "activations",
            f"{format_bytes(peak)} before, {format_bytes(worth.peaks['memplan'])} "
            "after, at their peak",
        ),
    ]
    if found.summary.status == "parts":
        rows.append(("not whole", found.summary.reason))
    for part in parts:
        rows += _part_facts(part, named=len(parts) > 1 or bool(part.path))
    return [*rows, *_predicted(found), *_left_alone(parts)]


def _part_facts(part: Part, named: bool) -> list[tuple[str, str]]:
    rows = [("part", part.path)] if named else []
    if part.status != "fused":
        return [*rows, ("", f"runs as it was: {part.reason}")]
    became = Counter(each.became for each in part.layers)
    first, *others = _fates(became)
    rows += show.listed("layers", [f"{len(part.layers):,}: {first}", *others])
    if part.kernels:
        kernels = ", ".join(f"{each} {name}" for name, each in part.kernels.items())
        rows.append(("convolutions", f"{became['convolution']}: {kernels}"))
    if part.running:
        by_torch = sum(each.by == "torch" for each in part.running)
        torch = f", {by_torch} of them run by torch" if by_torch else ""
        many = f"{len(part.running):,} with {_inside(part.running)}"
        rows.append(("stacks", many + torch))
    if part.at_a_time < part.images:
        rows.append(("images", f"{part.at_a_time} at a time, of {part.images}"))
    least = ", as small as can be" if part.arena == part.bound else ""
    if part.arena > part.bound:
        least = f", where {format_bytes(part.bound)} are live at once"
    rows.append(("arena", format_bytes(part.arena) + least))
    return rows


_WORDS = {
    "convolution": "{} convolutions",
    "joined": "{} joined into them",
    "stack": "{} in stacks",
    "placed": "{} concatenated without a copy",
    "nothing": "{} with nothing to compute",
    "torch": "{} left to torch",
}


def _fates(became: Counter[str]) -> list[str]:
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
    """What the paper's stacks would save of traffic, and what that is worth."""
    runs = [run for part in found.summary.parts for run in part.found]
    if not runs:
        return []
    moved = [traffic(run.stack, run.shape, run.itemsize) for run in runs]
    whole, saved = sum(each.layerwise for each in moved), sum(m.saved for m in moved)
    return [
        ("the paper's", f"{count(len(runs), 'stack')} with {_inside(runs)}"),
        (
            "",
            f"{format_bytes(saved)} of their {format_bytes(whole)} of traffic saved: "
            f"{format_seconds(saved / found.bandwidth)}",
        ),
        ("", f"where memory copies {format_bytes(found.bandwidth)} a second"),
    ]


def _left_alone(parts: Iterable[Part]) -> list[tuple[str, str]]:
    """Reasons for which layers are left to torch, and layers."""
    places: dict[str, list[str]] = {}
    for part in parts:
        for layer in part.layers:
            if layer.became == "torch" and layer.reason:
                places.setdefault(layer.reason, []).append(_path(part, layer))
    rows: list[tuple[str, str]] = []
    for reason, names in list(places.items())[:MOST_LEFT_ALONE]:
        more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > 3 else ""
        listed = ", ".join(names[:MOST_NAMED])
        rows.append(("" if rows else "left alone", f"{listed}{more}: {reason}"))
    if len(places) > MOST_LEFT_ALONE:
        rows.append(("", f"and {len(places) - MOST_LEFT_ALONE:,} more reasons"))
    return rows


def _path(part: Part, layer: Fate) -> str:
    return f"{part.path}.{layer.place}" if part.path else layer.place


def layers(found: Examined) -> None:
    """Print of every layer what became of it."""
    for part in found.summary.parts:
        show.line("")
        numbers = {run.name: at for at, run in enumerate(part.running, 1)}
        names = {layer.name: _path(part, layer) for layer in part.layers}
        shown = {name: place(path) for name, path in names.items()}
        width = max(map(len, shown.values()), default=0)
        kind = max((len(layer.operator) for layer in part.layers), default=0)
        show.line(f"Layers{_of(part)}, in order")
        for layer in part.layers:
            fate = _fate(layer, part, names, numbers)
            show.line(
                f"  {shown[layer.name]:<{width}}  {layer.operator:<{kind}}  {fate}"
            )


def _of(part: Part) -> str:
    return f" of {part.path}" if part.path else ""


def _fate(
    layer: Fate, part: Part, names: dict[str, str], numbers: dict[str, int]
) -> str:
    if layer.became == "convolution":
        return f"convolution: {layer.kernel}"
    if layer.became == "joined":
        return f"joined into {names[layer.into]}"
    if layer.became == "stack":
        return f"in stack {numbers[layer.into]} of those that run"
    if layer.became == "placed":
        return "no copy: its pieces are written side by side"
    if layer.became == "nothing":
        return "nothing to compute"
    return f"left to torch: {layer.reason or part.reason}"


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
        moved = traffic(run.stack, run.shape, run.itemsize)
        fates = Counter(became[name] for name in run.layers)
        gain = format_seconds(moved.saved / found.bandwidth) if moved.saved else "none"
        show.line(
            f"      predicted gain {gain}: {format_bytes(moved.saved)} of "
            f"{format_bytes(moved.layerwise)} of traffic"
            + (f"; here {', '.join(_fates(fates))}" if not run.by else "")
        )


def _stack(number: int, run: Run, names: dict[str, str], limit: int) -> Iterator[str]:
    first, last = names[run.layers[0]], names[run.layers[-1]]
    span = first if len(run.layers) == 1 else f"{first} … {last}"
    shape = "×".join(map(str, run.shape))
    by = ", by torch" if run.by == "torch" else ""
    yield f"  {number}. {span}: {shape}, {_inside([run])}{by}"
    height, width = run.shape[2:]
    for sequence in run.stack.sequences:
        after = sizes(pools_of(sequence.steps), height, width)[-1]
        patch = f"{sequence.patch.rows}×{sequence.patch.columns}"
        cache = (
            f"{format_bytes(sequence.bytes)} of {format_bytes(limit)} of cache"
            if sequence.bytes
            else "in registers"
        )
        over = ", more than it should" if sequence.bytes > limit else ""
        yield (
            f"      sequence: {height}×{width} to {after[0]}×{after[1]}, "
            f"{patch} at a time, {cache}{over}"
        )
        for step in sequence.steps:
            yield f"        step: {step}"
        height, width = after
