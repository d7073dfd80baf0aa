"""Chunked models beside the model as it is, and torch.compile.

Models with random weights of one layer or block (models/published.py, which needs
transformers and diffusers). Activations are bytes by the allocator's events, beyond
parameters and inputs. A budget that no plan meets is measured at the nearest one.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from models import published

from bench.runner import Contender, Figures, Metric, Suite, or_error, timed
from memplan.chunking.chunk import chunk
from memplan.chunking.options import BudgetError, ChunkOptions
from memplan.graph.measure import activation_peak

# Model, attention, size, budgets. The paper's claims: over 80 % saved at 10 % of speed
# for the first four with written-out attention, over 70 % at 5 % with fused attention.
CASES = {
    f"{name}, {attention}, {size}": (name, attention, size, budgets)
    for name, attention, size, budgets in (
        ("gpt2", "eager", 2048, ("20%", "15%", "10%")),
        ("vit", "eager", 768, ("20%", "15%", "10%")),
        ("esmfold", "eager", 128, ("20%", "15%")),
        ("unet", "eager", 64, ("20%", "15%", "10%")),
        ("gpt2", "sdpa", 2048, ("30%", "25%")),
        ("unet", "sdpa", 64, ("50%", "30%")),
        ("llama", "eager", 2048, ("15%", "10%")),
        ("whisper", "eager", 1500, ("15%", "10%")),
        ("t5", "eager", 2048, ("20%", "10%")),
        ("esmfold", "eager", 160, ("20%", "15%")),
    )
}


def contenders(
    case: tuple[str, str, int, tuple[str, ...]], args: argparse.Namespace, folder: Path
) -> Sequence[Contender]:
    """The model as it is, in chunks for each budget, and compiled."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    name, attention, size, budgets = case
    model, inputs = published.BUILDERS[name](args.size or size, attention)
    compiled = torch.compile(model)  # at its first call

    def measured(call: Callable[..., object]) -> Figures:
        with torch.no_grad():
            peak = activation_peak(lambda: call(*inputs))
            return {"activations": peak, **timed(call, *inputs)()}

    found = [Contender("eager", lambda: measured(model))]
    for budget in args.budgets or budgets:
        try:
            options = ChunkOptions(max_slowdown=None)
            module, title = chunk(model, inputs, budget, options=options), budget
        except BudgetError as error:
            module, title = error.closest, f"{budget}, nearest"
        if module is not None:
            found.append(Contender(title, lambda module=module: measured(module)))
    return [*found, Contender("torch.compile", or_error(lambda: measured(compiled)))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budgets", nargs="+", help="as in 15%%")
    parser.add_argument("--size", type=int, help="of the inputs")


SUITE = Suite(
    summary="Chunked models beside eager ones and torch.compile.",
    cases=CASES,
    contenders=contenders,
    metrics=(
        Metric("activations", "activations MiB", 1 / (1 << 20), 1),
        Metric("seconds", "ms", 1e3, 1),
        Metric("cpu_seconds", "CPU ms", 1e3, 1),
    ),
    packages=("torch", "transformers", "diffusers"),
    add_arguments=add_arguments,
)
