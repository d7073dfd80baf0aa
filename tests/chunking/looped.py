"""A model with a loop around some of its operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from memplan.chunking.code import compiled, source
from memplan.chunking.region import Region, chunked
from memplan.graph.export import export
from memplan.graph.infer import Inference
from memplan.graph.liveness import profile
from memplan.graph.lower import lower
from memplan.graph.measure import Observed, activation_peak, iterations
from memplan.graph.program import Loop, Program
from memplan.graph.weights import Weights


@dataclass
class Looped:
    """program: with the loop. found: what it returns. estimated, measured: its peak."""

    program: Program
    loop: Loop
    found: tuple[Any, ...]
    estimated: int
    measured: int


def looped(model: torch.nn.Module, x: Any, region: Region) -> Looped:
    inference = Inference()
    program = lower(export(model, (x,), {}), inference)
    weights = {value: model.get_parameter(n) for value, n in program.constants.items()}
    program = chunked(program, region, inference)
    run = compiled(source(program, "loops"), "loops")
    seen = Observed(weights).temporaries
    with torch.no_grad():
        found = run([x], Weights(model, {}))
        measured = activation_peak(lambda: run([x], Weights(model, {})))
    (loop,) = (each for each in program.ops if isinstance(each, Loop))
    estimated = profile(program, True, seen, bodies=iterations).peak
    return Looped(program, loop, found, estimated, measured)
