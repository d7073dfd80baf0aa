"""Whole networks on one hierarchy: the paper's method and ours."""

from __future__ import annotations

from bench.blocking_data import MIB, UNROLL
from memplan.blocking.design.network_design import design_network
from memplan.blocking.design.networks import NETWORKS
from memplan.blocking.nest.layer import Layer
from memplan.blocking.search.result import Options

BUDGETS = (MIB, 8 * MIB)
TIME_LIMIT = 120.0  # seconds a network and budget


def network_rows() -> list[tuple[str, ...]]:
    """A row for each network and budget."""
    rows = []
    for name, layers in NETWORKS.items():
        for budget in BUDGETS:
            found = design_network(
                layers, _datapath, budget, options=Options(time_limit=TIME_LIMIT)
            )
            paper, ours = found.common.energy, found.network.energy
            rows.append(
                (
                    name,
                    f"{budget // MIB} MiB",
                    f"{paper / 1e9:.3f}",
                    f"{ours / 1e9:.3f}" + ("" if found.complete else " *"),
                    f"{ours / paper:.3f}",
                    "" if found.gap is None else f"{found.gap:.1%}",
                    f"{found.seconds:.0f}",
                )
            )
    return rows


def _datapath(layer: Layer) -> dict[str, int]:
    """The paper's, cut to the channels that the layer has."""
    return {dim: min(count, layer.size(dim)) for dim, count in UNROLL.items()}
