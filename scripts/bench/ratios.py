"""Paired ratios, and the table that shows them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.child import BenchError, Run

Runs = Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Metric:
    """A figure of a run: its field, its title, and how to show it."""

    field: str
    title: str
    shown: Callable[[float], str]

    def of(self, runs: Sequence[Run]) -> list[float | None]:
        """The figure of each run, in order."""
        return [getattr(run, self.field) for run in runs]


def _mebibytes(value: float) -> str:
    return f"{value / (1 << 20):,.1f}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


METRICS = (
    Metric("peak_bytes", "peak resident, whole run, MiB", _mebibytes),
    Metric("steady_peak_bytes", "peak resident, steady, MiB", _mebibytes),
    Metric("step_seconds", "seconds a step", lambda value: f"{value:.4f}"),
    Metric("cpu_seconds", "CPU seconds a step", lambda value: f"{value:.4f}"),
    Metric("step_faults", "page faults a step", _count),
)


@dataclass(frozen=True)
class Spread:
    """The smallest, the middle and the largest of some values."""

    low: float
    median: float
    high: float


def spread(values: Sequence[float | None]) -> Spread | None:
    """The spread of `values`; None where one is missing, or there are none."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return Spread(min(known), statistics.median(known), max(known))


def paired_ratios(
    metric: Metric, runs: Sequence[Run], base: Sequence[Run]
) -> list[float | None]:
    """Run by run, `runs` over `base`; None where there is nothing to divide by.

    Both sequences are in the order of the rounds, so that a pair ran back to back.
    """
    pairs = zip(metric.of(runs), metric.of(base), strict=True)
    return [
        None if above is None or not below else above / below for above, below in pairs
    ]


def require_equal_losses(program: str, runs: Runs) -> dict[str, str]:
    """Raise BenchError unless the default's and memplan's runs computed the same losses
    to the last bit; and why those of others differ, by the other's name.

    Another allocator aligns blocks in another way, and operators choose their kernels
    by that: its losses may differ and be right; its figures are of other kernels then.
    """
    digests = {name: sorted({run.digest for run in of}) for name, of in runs.items()}
    ours = {name: of for name, of in digests.items() if name in ("default", "memplan")}
    if len({digest for found in ours.values() for digest in found}) > 1:
        lines = (
            f"{name}: {', '.join(digest[:12] for digest in found)}"
            for name, found in digests.items()
        )
        raise BenchError(f"{program}: losses differ\n  " + "\n  ".join(lines))
    expected = digests["default"]
    return {
        name: f"other losses than the default's ({', '.join(d[:12] for d in found)}): "
        "other alignments make operators take other kernels"
        for name, found in digests.items()
        if found != expected
    }


def geometric_means(
    programs: Mapping[str, Runs],
) -> dict[str, dict[str, float | None]]:
    """Per comparison and field, over programs: the geometric mean of the medians; None
    where one is missing."""
    found: dict[str, dict[str, float | None]] = {}
    pairs = {pair for runs in programs.values() for pair in comparisons(list(runs))}
    for name, base in sorted(pairs):
        found[f"{name}/{base}"] = {}
        for metric in METRICS:
            spreads = [
                spread(paired_ratios(metric, runs[name], runs[base]))
                for runs in programs.values()
                if name in runs and base in runs
            ]
            medians = [one.median for one in spreads if one is not None]
            whole = len(medians) == len(spreads) and all(medians)
            found[f"{name}/{base}"][metric.field] = (
                statistics.geometric_mean(medians) if whole and medians else None
            )
    return found


def comparisons(names: Sequence[str]) -> list[tuple[str, str]]:
    """Which allocators to compare: each with the default, memplan with each."""
    found = [(name, "default") for name in names if name != "default"]
    if "memplan" in names:
        found += [("memplan", n) for n in names if n not in ("memplan", "default")]
    return found


def to_json(runs: Runs) -> dict[str, dict[str, dict[str, float] | None]]:
    """Per comparison ("memplan/default") and field: the spread of its ratios."""
    return {
        f"{name}/{base}": {
            metric.field: None if found is None else asdict(found)
            for metric in METRICS
            for found in [spread(paired_ratios(metric, runs[name], runs[base]))]
        }
        for name, base in comparisons(list(runs))
    }


def table(runs: Runs) -> str:
    """The figures of each allocator and their ratios, at most 80 columns wide."""
    head = ("", "min", "median", "max", "min", "median", "max")
    measured, ratio = "measured", "ratio to default"
    lines = [f"{'':19}{measured:>31} {ratio:>27}", _line(head)]
    others = [pair for pair in comparisons(list(runs)) if pair[1] != "default"]
    for metric in METRICS:
        lines.append(metric.title)
        for name, of in runs.items():
            ratios: Spread | None = None
            if name != "default":
                ratios = spread(paired_ratios(metric, of, runs["default"]))
            figures = _cells(spread(metric.of(of)), metric.shown)
            blank = ("", "", "") if name == "default" else _cells(ratios, _ratio)
            lines.append(_line(("  " + name, *figures, *blank)))
        for name, base in others:
            ratios = spread(paired_ratios(metric, runs[name], runs[base]))
            label = f"  {name}/{base}"
            lines.append(_line((label, "", "", "", *_cells(ratios, _ratio))))
    return "\n".join(lines)


def _cells(found: Spread | None, shown: Callable[[float], str]) -> tuple[str, ...]:
    if found is None:
        return ("-", "-", "-")
    return shown(found.low), shown(found.median), shown(found.high)


def _ratio(value: float) -> str:
    if 0 < value < 0.0005:
        return "<0.001"
    return f"{value:.3f}" if value < 999.9995 else f"{value:,.0f}"


def _line(cells: Sequence[str]) -> str:
    label, *rest = cells
    widths = (10, 9, 9, 9, 8, 8)
    body = "".join(f" {c:>{w}}" for c, w in zip(rest, widths, strict=True))
    return f"{label:19}{body}".rstrip()
