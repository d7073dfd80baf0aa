"""How shares of memory are shown: places short, percentages that sum to 100."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from memplan.cli import show
from memplan.reporting.live import Share
from memplan.trace.sites import Site
from memplan.units import format_bytes

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # of a layer, in a module's path


def shown(title: str, kind: str, shares: Sequence[Share], most: int) -> None:
    """The largest `most` shares as a table, and one row for all others."""
    percents = percentages([share.bytes for share in shares])
    rows = [
        [
            *names(kind, share.name, share.sites),
            format_bytes(share.bytes),
            percent,
            f"{share.count:,}",
        ]
        for share, percent in zip(shares, percents, strict=True)
    ]
    if len(rows) > most:
        rest = shares[most:]
        blank = [""] * (len(rows[0]) - 4)
        size = sum(share.bytes for share in rest)
        tenths = sum(round(10 * float(p.split()[0])) for p in percents[most:])
        count = sum(share.count for share in rest)
        others = f"{len(rest):,} others"
        numbers = [format_bytes(size), f"{tenths / 10:.1f} %", f"{count:,}"]
        rows = [*rows[:most], [others, *blank, *numbers]]
    texts = ["where", "module", "operator"] if kind == "line" else [kind]
    show.table(title, [*texts, "bytes", "share", "buffers"], rows, len(texts))


def percentages(parts: Sequence[int]) -> list[str]:
    """Of their sum, with one decimal; what is shown sums to 100.0, too."""
    total = sum(parts)
    if not total:
        return ["0.0 %"] * len(parts)
    tenths = [part * 1000 // total for part in parts]
    # Largest remainders first get what rounding down left.
    order = sorted(range(len(parts)), key=lambda i: -(parts[i] * 1000 % total))
    for i in order[: 1000 - sum(tenths)]:
        tenths[i] += 1
    return [f"{tenth / 10:.1f} %" for tenth in tenths]


def place(site: Site) -> str:
    """ "train.py:12 forward", the file as short as it is clear."""
    if not site.file:
        return "unknown"
    return f"{short_file(site.file)}:{site.line} {site.function}".rstrip()


def short_file(file: str) -> str:
    """Relative to this folder, or to where packages are installed, where it can be."""
    here = Path.cwd()
    path = Path(file)
    if path.is_relative_to(here):
        return str(path.relative_to(here))
    for folder in ("site-packages", "dist-packages"):
        if folder in path.parts:
            within = path.parts[path.parts.index(folder) + 1 :]
            return os.path.join(*within) if within else file
    return file


def module_pattern(modules: Iterable[str]) -> str:
    """One path for all: layers' numbers as `*`; the first of several, and how many."""
    patterns: dict[str, str] = {}
    for module in modules:
        patterns.setdefault(_NUMBER.sub("*", module), module)
    named = [pattern for pattern in patterns if pattern]
    if not named:
        return ""
    if len(patterns) == 1 and len(set(modules)) == 1:
        return patterns[named[0]]
    return named[0] + (f" +{len(named) - 1}" if len(named) > 1 else "")


def names(kind: str, name: str, sites: Sequence[Site]) -> list[str]:
    """A row's texts: of a line its place, modules and operators, else its name.

    sites: of the row, the one to be named first.
    """
    if kind == "size":
        return [format_bytes(int(name))]
    if kind != "line":
        return [name]
    operators = list(dict.fromkeys(s.operator for s in sites if s.operator))
    more = f" +{len(operators) - 1}" if len(operators) > 1 else ""
    return [
        place(sites[0]),
        module_pattern([site.module for site in sites]),
        operators[0] + more if operators else "",
    ]
