"""Stacks as the paper finds them: runs of layers that work plane by plane (3.2)."""

from __future__ import annotations

from collections import Counter

from memplan.fusing.layers import Layer, Network
from memplan.graph.program import refs


def stacks(network: Network) -> list[list[Layer]]:
    """Maximal runs of element-wise and pooling layers, each of which takes the result
    of the one before and is the only one to.

    What computes nothing in inference, as dropout does, is of the run that it is in.
    Where a layer joins two runs, as an addition does, it carries on the later one.
    """
    users = Counter(name for layer in network.layers for name in layer.op.operands())
    users.update(refs(network.outputs))
    runs: list[list[Layer]] = []
    ends: dict[str, list[Layer]] = {}
    for layer in network.layers:
        if layer.kind not in ("operation", "same"):
            continue
        open_ = [ends[name] for name in layer.inputs if name in ends]
        open_ = [run for run in open_ if users[run[-1].name] == 1]
        run = max(open_, key=runs.index, default=None)
        if run is None:
            run = []
            runs.append(run)
        else:
            ends.pop(run[-1].name, None)
        run.append(layer)
        ends[layer.name] = run
    return [run for run in runs if any(layer.kind == "operation" for layer in run)]
