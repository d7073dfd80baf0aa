"""Blocking beside ZigZag: the same layers on the same memories, energy and time.

    python scripts/bench_zigzag.py --zigzag PYTHON --json-lines runs.jsonl
    python scripts/bench_zigzag.py --tables runs.jsonl  # as docs/blocking.md has them

PYTHON is an interpreter that has zigzag-dse 3.9.1. The layers: ResNet-50's convolutions
that differ, the depthwise ones of MobileNetV3-Large, and GPT-2's two products behind
attention, for 1,024 tokens and for one. Memories are private, of input, kernel and
output, priced by Table 3 for 16 bits; filling costs as reading does. Where ZigZag reads
a partial sum before its first write, its energy is above memplan's count of the same
nest; ours is given both ways. With --json-lines, what is in the file is not measured
again.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.against_zigzag import (
    LPF_LIMIT,
    MEMORIES,
    ask_zigzag,
    private,
    stringed,
)
from bench.json_lines import Record, append, read_records
from bench.zigzag_layers import cases
from bench.zigzag_tables import line, tables

from memplan.blocking.cost.evaluation import Evaluation, evaluate
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.layer import Tensor, elements
from memplan.blocking.search.optimize import optimize


def with_first_reads(found: Evaluation, hierarchy: Hierarchy) -> float:
    """pJ if the first of several partial sums were read, too, from wherever the others
    are: n updates take 2 n accesses."""
    prices = {
        level.name: hierarchy.price(depth, Tensor.OUTPUT)
        for depth, level in enumerate(hierarchy.levels)
    }
    alpha = elements(found.layer, Tensor.OUTPUT)
    own = [s for s in found.shares if s.tensor is Tensor.OUTPUT and s.accesses]
    pj = found.total
    if own[0].accesses > alpha and own[0].level in prices:
        pj += alpha * prices[own[0].level]
    for inside, outside in itertools.pairwise(own):
        if outside.accesses > alpha:
            at_main = outside.level not in prices
            pj += alpha * prices[inside.level]
            pj += alpha * (hierarchy.dram_pj if at_main else prices[outside.level])
    return pj


def measured(
    python: str, lpf_limit: int, known: set[tuple[str, str, str]]
) -> Iterator[Record]:
    """Records of what is not known yet."""
    for memories, levels in MEMORIES.items():
        hierarchy = private(levels)
        for network, layer, unroll in cases():
            if (memories, network, layer.name) in known:
                continue
            theirs = ask_zigzag(python, layer, unroll, hierarchy, lpf_limit)
            ours = optimize(layer, unroll, Fixed(hierarchy))
            detail = evaluate(layer, ours.nest, Fixed(hierarchy), choice=ours.memories)
            yield {
                "memories": memories,
                "network": network,
                "layer": layer.name,
                "macs": layer.macs,
                "unroll": unroll,
                "pj": ours.energy,
                "pj_first_reads": with_first_reads(detail, hierarchy),
                "bound_pj": ours.lower_bound,
                "seconds": ours.seconds,
                "nest": str(ours.nest),
                "zigzag_pj": theirs.pj,
                "zigzag_seconds": theirs.seconds,
                "zigzag_nest": stringed(theirs.loops, unroll),
                "zigzag_lpf_limit": lpf_limit,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zigzag", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--lpf-limit", type=int, default=LPF_LIMIT)
    parser.add_argument("--json-lines", type=Path, metavar="FILE")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="lay out records")
    args = parser.parse_args()
    if args.tables:
        print(tables(read_records(args.tables)))
        return
    file = args.json_lines
    records = read_records(file) if file and file.exists() else []
    known = {(one["memories"], one["network"], one["layer"]) for one in records}
    for record in measured(args.zigzag, args.lpf_limit, known):
        print(line(record), flush=True)
        if file:
            append(file, record)
        records.append(record)
    print(tables(records))


if __name__ == "__main__":
    main()
