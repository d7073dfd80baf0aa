"""What was measured on a GPU, as the tables of the README."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from bench.gpu_runs import MODES

WIDTH = 80
MOST_BYTES, MOST_TIME = 1.0, 1.01  # of another allocator's, where nothing is to be said
_HEAD = ("", "reserved", "×", "allocated", "driver", "calls", "ms", "×")
_WIDTHS = (11, 8, 5, 9, 6, 5, 6, 5)


def tables(figures: Mapping[str, Any]) -> list[str]:
    """Lines: bytes, calls and times, what to say of them, and the largest batches.

    figures: as `Case.to_json` has it, by network, under "networks"; "steps" of a run;
    "free_gib" when the largest batches were looked for.
    """
    networks: dict[str, Any] = figures["networks"]
    trained = {name: one for name, one in networks.items() if any(one["runs"].values())}
    lines: list[str] = []
    if trained:
        lines += [_line(_HEAD, _WIDTHS), _rule(_WIDTHS)]
        for name, network in trained.items():
            lines += _rows(name, network)
        lines += ["", *_notes(trained, figures["steps"])]
    sought = {name: one["largest"] for name, one in networks.items() if one["largest"]}
    if sought:
        lines += [*[""] * bool(lines), *_largest(sought, figures["free_gib"])]
    return lines


def _rows(name: str, network: Mapping[str, Any]) -> Iterator[str]:
    """A network's: its name, and a line for each mode."""
    title = (name, f"batch {network['batch']}", *[""] * (len(_HEAD) - 2))
    yield _line(title, _WIDTHS)
    runs = network["runs"]
    for mode in MODES:
        made = runs.get(mode, [])
        if not made:
            yield _line((mode, *["-"] * (len(_HEAD) - 1)), _WIDTHS)
            continue
        ratios = bytes_ratio(runs, mode, "native"), time_ratio(runs, mode)
        cells = (
            _gigabytes(made, "reserved"),
            _ratio(ratios[0]),
            *(_gigabytes(made, what) for what in ("allocated", "driver")),
            f"{max(one['calls'] for one in made):,}",
            f"{statistics.median(one['seconds'] for one in made) * 1e3:.1f}",
            _ratio(ratios[1]),
        )
        yield _line((mode, *cells), _WIDTHS)


def bytes_ratio(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], mode: str, other: str
) -> float | None:
    """The most bytes that a run of `mode` reserved, over those of `other`."""
    most = [
        max((one["reserved"] for one in runs.get(each, [])), default=0)
        for each in (mode, other)
    ]
    return most[0] / most[1] if all(most) else None


def time_ratio(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], mode: str
) -> float | None:
    """Of a step to native's of the same round, the median of the rounds."""
    pairs = zip(runs.get(mode, []), runs.get("native", []), strict=False)
    ratios = [one["seconds"] / base["seconds"] for one, base in pairs]
    return statistics.median(ratios) if ratios else None


def _notes(networks: Mapping[str, Any], steps: int) -> Iterator[str]:
    """What the figures are, and where memplan's are not what they should be."""
    runs = {name: one["runs"] for name, one in networks.items()}
    every = [one for each in runs.values() for made in each.values() for one in made]
    rounds = [len(made) for each in runs.values() for made in each.values()]
    count = f"{min(rounds)} to {max(rounds)}" if len({*rounds}) > 1 else f"{rounds[0]}"
    yield from _paragraph(
        f"{'; '.join(sorted({one['on'] for one in every}))}. Each trained {count} "
        f"times, {steps} steps each; peaks are of the whole run, in GB, driver at its "
        "end; calls of cudaMalloc and cudaFree after the warm-up; ms a step, waited "
        "for; ×: of native's."
    )
    yield ""
    for other in ("native", "expandable"):
        found = {name: bytes_ratio(one, "memplan", other) for name, one in runs.items()}
        yield from _verdict(f"memplan reserved, of {other}'s", found, MOST_BYTES)
    found = {name: time_ratio(one, "memplan") for name, one in runs.items()}
    yield from _verdict("A step's time under memplan, of native's", found, MOST_TIME)
    yield from _paragraph(f"Losses: {'; '.join(_losses(runs)) or 'none to compare'}.")


def _verdict(
    what: str, found: Mapping[str, float | None], most: float
) -> Iterator[str]:
    known = {name: each for name, each in found.items() if each is not None}
    if not known:
        return
    span = sorted({f"{min(known.values()):.3f}", f"{max(known.values()):.3f}"})
    more = [f"{name} {each:.3f}" for name, each in known.items() if each > most]
    said = f"at most {most:g} for all"
    if more:
        said = f"more than {most:g} for {', '.join(more)}"
    yield from _paragraph(f"{what}: {' to '.join(span)}; {said}.")


def _losses(runs: Mapping[str, Any]) -> Iterator[str]:
    """Of each network, whether it computed the same under all."""
    same = []
    for name, one in runs.items():
        digests = {
            mode: {each["digest"] for each in made} for mode, made in one.items()
        }
        native = digests.get("native", set())
        wrong = [mode for mode, found in digests.items() if found - native]
        if len(native) > 1:
            yield f"{name}'s differ from run to run of native itself"
        elif native and wrong:
            yield f"{name}'s differ from native's under {' and '.join(wrong)}"
        elif native:
            same.append(name)
    if same:
        yield f"equal, bit for bit, for {', '.join(same)}"


def equal_losses(figures: Mapping[str, Any]) -> bool:
    """Whether each network computed the same in all its runs."""
    return all(
        len({each["digest"] for made in one["runs"].values() for each in made}) <= 1
        for one in figures["networks"].values()
    )


def _largest(sought: Mapping[str, Any], free: float) -> Iterator[str]:
    widths = (11, *(max(len(mode), 6) for mode in MODES))
    yield _line(("", *MODES), widths)
    yield _rule(widths)
    for name, found in sought.items():
        cells = [_batch(*found[mode]) if mode in found else "-" for mode in MODES]
        yield _line((name, *cells), widths)
    yield ""
    yield from _paragraph(
        f"The largest batch that trains while all of the GPU but {free:g} GiB is held "
        "by another process, to one part in 32; ≥: there was no time to try more."
    )


def _batch(batch: int, sure: bool) -> str:
    if sure:
        return f"{batch:,}"
    return f"≥ {batch:,}" if batch else "-"


def _gigabytes(made: Sequence[Mapping[str, Any]], what: str) -> str:
    return f"{max(one[what] for one in made) / 1e9:.2f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join((first, *others))} |"


def _rule(widths: Sequence[int]) -> str:
    dashes = ["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]
    return f"|{'|'.join(dashes)}|"


def _paragraph(text: str) -> list[str]:
    return wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
