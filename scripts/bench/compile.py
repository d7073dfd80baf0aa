"""Models in one arena beside the model as it is, and other runtimes.

Activations are bytes by the allocator's events beyond parameters and inputs, with the
arena; requests are calls of the allocator. Batch 1 and random weights. The transformers
have one block of the model's size (models/published.py, which needs transformers and
diffusers). What other runtimes than PyTorch need is counted as planned.py says.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import published, small, unet, vision

from bench import planned
from bench.runner import Contender, Figures, Metric, Suite, or_error, timed
from memplan.compiling.bench import CompileOptions
from memplan.compiling.compile import compile as compiled
from memplan.errors import NoPlanError
from memplan.graph.measure import footprint

SHORTEST = 0.02  # seconds; what takes less is called several times
SIZES = {
    **{"gpt2": 1024, "llama": 1024, "vit": 224, "whisper": 1500},
    **{"t5": 512, "esmfold": 96, "unet": 32},
}


def network(name: str) -> published.Built:
    """A vision network, and an image."""
    return vision.build(name), (torch.randn(1, *vision.input_shape(name)),)


CASES: dict[str, Callable[[], published.Built]] = {
    **{name: partial(network, name) for name in vision.NAMES},
    "unet 16": unet.factory,
    **small.BUILDERS,
    **{
        f"{name}, {attention}, {size}": partial(
            published.BUILDERS[name], size, attention
        )
        for name, size in SIZES.items()
        for attention in ("eager", "sdpa")
        if (name, attention) not in {("esmfold", "sdpa"), ("t5", "sdpa")}
    },
}


def contenders(
    build: Callable[[], published.Built], args: argparse.Namespace, folder: Path
) -> Sequence[Contender]:
    """The model as it is, in one arena, packed, within budgets, and by Inductor."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, inputs = build()
    # It compiles at its first call, but marks the model, which memplan's modules see.
    by_inductor: Any = torch.compile(model)

    def measured(call: Callable[..., object], arena: int = 0) -> Figures:
        with torch.no_grad():
            run = partial(call, *inputs)
            peak, asked = footprint(run)
            found = {"activations": peak + arena}
            calls = max(1, round(SHORTEST / timed(run)()["seconds"]))
            return {**found, "requests": asked, **timed(run, number=calls)()}

    found = [Contender("eager", partial(measured, model))]
    ways: dict[str, tuple[str | None, CompileOptions]] = {
        "one arena": (None, CompileOptions()),
        "packed": (None, CompileOptions(pack=True)),
        **{each: (each, CompileOptions(args.slowdown)) for each in args.budgets or ()},
    }
    for title, (budget, options) in ways.items():
        try:
            module = compiled(model, inputs, budget, options)
        except NoPlanError:  # the table lacks it
            continue
        if module.runner is not None:
            arena = module.memplan.arena
            found.append(Contender(title, partial(measured, module, arena)))
    peer = or_error(partial(measured, by_inductor))
    others = planned.contenders(build, folder, args.threads)
    return [*found, Contender("torch.compile", peer), *others]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budgets", nargs="+", help="as in 25%%")
    parser.add_argument("--slowdown", type=float, help="accepted within budgets")


SUITE = Suite(
    summary="Models in one arena beside eager ones and other runtimes.",
    cases=CASES,
    contenders=contenders,
    metrics=(
        Metric("activations", "activations MiB", 1 / (1 << 20), 1),
        Metric("requests", "requests", 1, 0),
        Metric("seconds", "ms", 1e3, 2),
        Metric("cpu_seconds", "CPU ms", 1e3, 2),
    ),
    packages=("torch", "transformers", "diffusers", "onnxruntime", "executorch"),
    add_arguments=add_arguments,
)
