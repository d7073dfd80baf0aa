"""The blocking paper's headlines, and whether they come out here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bench import blocking_data as data
from memplan.blocking.nest.layer import Tensor


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def claims() -> Iterator[tuple[str, str, str]]:
    """The paper's headlines, what comes out here, and whether that agrees."""
    layers = data.CONVOLUTIONS
    own = {x: data.on_diannao(x, False) for x in layers}
    best = {x: data.on_diannao(x, True) for x in layers}
    kernel = [own[x].of(Tensor.KERNEL) / best[x].of(Tensor.KERNEL) for x in layers]
    yield (
        "Figure 5: KB energy falls 2 to 15 x",
        f"{min(kernel):.1f} to {max(kernel):.1f} x",
        "overlaps" if max(kernel) > 2 and min(kernel) < 15 else "no",
    )
    large = {x: data.codesigned(x, 8 * data.MIB) for x in layers}
    ratios = [own[x].total * x.macs / large[x][0].energy for x in layers]
    shares = {x: own[x].total * x.macs - best[x].compulsory * x.macs for x in layers}
    without = [shares[x] / large[x][1].without_compulsory for x in layers]
    yield (
        "Figure 6: 8 MB saves at least 13 x over DianNao's architecture",
        "own schedule / this: "
        + ", ".join(f"{r:.0f}" for r in ratios)
        + "; optimal / this: "
        + ", ".join(
            f"{best[x].total * x.macs / large[x][0].energy:.1f}" for x in layers
        )
        + "; without compulsory DRAM: "
        + ", ".join(f"{r:.0f}" for r in without),
        "against its own schedule yes; against the optimal schedule no",
    )
    small = [data.codesigned(x, data.MIB)[0].energy for x in layers]
    by_optimal = [
        best[x].total * x.macs / pj for x, pj in zip(layers, small, strict=True)
    ]
    mean = geometric_mean(by_optimal)
    yield (
        "Figure 7: 1 MB saves 10 x, for 6 x the area",
        f"optimal / this: {', '.join(f'{r:.1f}' for r in by_optimal)}, geometric mean "
        f"{mean:.1f}; area {data.area_mm2(data.MIB) / data.area_mm2(36 << 10):.1f} x",
        "about" if mean > 7 else "no",
    )
    per_mac = [large[x][0].energy / x.macs for x in layers]
    reduced = [large[x][1].without_compulsory / x.macs for x in layers]
    yield (
        "Figure 8: memory takes less than 80 % of the computation's energy",
        f"{min(per_mac):.2f} to {max(per_mac):.2f}; without compulsory DRAM "
        f"{min(reduced):.2f} to {max(reduced):.2f}",
        "only without compulsory traffic" if max(reduced) < 0.8 else "no",
    )
