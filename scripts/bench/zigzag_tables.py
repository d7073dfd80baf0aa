"""Records of blocking beside ZigZag, as a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench.json_lines import Record


def line(record: Record) -> str:
    """A record as it comes in."""
    macs, pj, theirs = record["macs"], record["pj"], record["zigzag_pj"]
    return (
        f"{record['memories']}, {record['network']}, {record['layer']}: "
        f"{pj / macs:.3f} and {theirs / macs:.3f} pJ/MAC, {pj / theirs:.3f}, in "
        f"{record['seconds']:.1f} and {record['zigzag_seconds']:.1f} s"
    )


def tables(records: Sequence[Record]) -> str:
    """Markdown: a row for each layer, and what each of the memories comes to."""
    memories = list(dict.fromkeys(record["memories"] for record in records))
    rows: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        own = rows.setdefault((record["network"], record["layer"]), {})
        own[record["memories"]] = record
    columns = ["network", "layer"]
    for name in memories:
        columns += [f"{name}: memplan", "ZigZag", "ratio"]
    lines = [
        f"| {' | '.join(columns)} |",
        "| --- | --- |" + " ---: |" * (len(columns) - 2),
    ]
    for at, found in rows.items():
        cells = [*at, *(cell for name in memories for cell in _cells(found.get(name)))]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    lines += [_summary(name, records) for name in memories]
    return "\n".join(lines)


def _cells(record: Record | None) -> Iterator[str]:
    if record is None:
        yield from ("", "", "")
        return
    macs, pj, theirs = record["macs"], record["pj"], record["zigzag_pj"]
    best = " *" * (pj > record["bound_pj"])  # a proved one's bound is its energy
    yield from (f"{pj / macs:.3f}{best}", f"{theirs / macs:.3f}", f"{pj / theirs:.3f}")


def _summary(memories: str, records: Sequence[Record]) -> str:
    rows = [record for record in records if record["memories"] == memories]
    parts = []
    for key, what in (("pj", "as counted"), ("pj_first_reads", "with first reads")):
        ratios = [row[key] / row["zigzag_pj"] for row in rows]
        above = sum(ratio > 1 for ratio in ratios)
        parts.append(
            f"{what} {statistics.geometric_mean(ratios):.3f} in the geometric mean, "
            f"{max(ratios):.3f} at worst, above 1 on {above}"
        )
    seconds = [sum(row[key] for row in rows) for key in ("seconds", "zigzag_seconds")]
    return (
        f"- {memories} KiB, {len(rows)} layers, energy to ZigZag's: {'; '.join(parts)}."
        f" Seconds in all: {seconds[0]:.0f} and {seconds[1]:.0f}."
    )
