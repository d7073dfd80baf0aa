"""Chunked models beside the model as it is, with attention written out, and compiled.

Models with random weights of one or two layers: the paper's and their like
(models/published.py), and those that memplan was not built for (models/zoo.py). They
need transformers, diffusers and timm. Activations are bytes by the allocator's events,
beyond parameters and inputs. What no plan meets is measured at the nearest one, and
named so.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import published, zoo
from models.published import Built
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.runner import BenchError, Contender, Figures, Metric, Suite, or_error, timed
from memplan.chunking.chunk import chunk
from memplan.chunking.module import Chunked
from memplan.chunking.options import BudgetError, ChunkOptions
from memplan.graph.check import relative_error
from memplan.graph.measure import activation_peak

MOST_ERROR = 1e-4  # relative, of a result; memplan's own check is stricter


@dataclass(frozen=True)
class Case:
    """A model, and the budgets that it is measured at. size: of the inputs, where they
    have one to choose."""

    build: Callable[..., Built]
    budgets: tuple[str, ...]
    size: int | None = None


# Model, attention, size, budgets. The paper's claims: over 80 % saved at 10 % of speed
# for the first four with written-out attention, over 70 % at 5 % with fused attention.
CASES = {
    f"{name}, {attention}, {size}": Case(
        partial(published.BUILDERS[name], attention=attention), budgets, size
    )
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
CASES |= {
    name: Case(build, ("50%", "20%", "min")) for name, build in zoo.BUILDERS.items()
}


def contenders(
    case: Case, args: argparse.Namespace, folder: Path
) -> Sequence[Contender]:
    """The model as it is, without fused attention, in chunks for each budget, and
    compiled."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if case.size is None:
        model, inputs = case.build()
    else:
        model, inputs = case.build(args.size or case.size)
    if args.type != "float32":
        model, inputs = _cast(model, inputs, getattr(torch, args.type))
    found: dict[str, Chunked] = {}
    for budget in args.budgets or case.budgets:
        try:
            options = ChunkOptions(
                max_slowdown=args.max_slowdown, time_limit=args.time_limit
            )
            found[budget] = chunk(model, inputs, budget, options=options)
        except BudgetError as error:
            found[f"{budget}, nearest"] = error.closest
    with torch.no_grad():
        expected = model(*inputs)
    compiled = torch.compile(model)  # at its first call

    def written_out(*given: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return model(*given)

    def measured(call: Callable[..., Any]) -> Figures:
        with torch.no_grad():
            peak = activation_peak(lambda: call(*inputs))
            figures = {"activations": peak, **timed(call, *inputs)()}
            error = relative_error(expected, call(*inputs))
        if not error <= args.most_error:
            raise BenchError(f"the results differ by {error:.0e}")
        if isinstance(call, Chunked):
            figures["estimate"] = call.memplan.peak_bytes_after / peak
        return {**figures, "error": error}

    return [
        Contender("eager", lambda: measured(model)),
        Contender("attention written out", lambda: measured(written_out)),
        *(
            Contender(title, lambda module=module: measured(module))
            for title, module in found.items()
        ),
        Contender("torch.compile", or_error(lambda: measured(compiled))),
    ]


def _cast(model: torch.nn.Module, inputs: Sequence[Any], kind: torch.dtype) -> Built:
    """A model and its inputs in another floating-point type."""
    return model.to(kind), tuple(
        each.to(kind)
        if isinstance(each, torch.Tensor) and each.is_floating_point()
        else each
        for each in inputs
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budgets", nargs="+", help="as in 15%%")
    parser.add_argument("--size", type=int, help="of the inputs")
    parser.add_argument("--type", default="float32", help="as in bfloat16")
    parser.add_argument(
        "--most-error", type=float, default=MOST_ERROR, help="relative, of a result"
    )
    parser.add_argument(
        "--max-slowdown", type=float, help="at which a plan is refused, as in 1.1"
    )
    parser.add_argument("--time-limit", type=float, help="s of a search")


SUITE = Suite(
    summary="Chunked models beside eager ones and torch.compile.",
    cases=CASES,
    contenders=contenders,
    metrics=(
        Metric("activations", "activations MiB", 1 / (1 << 20), 1),
        Metric("seconds", "ms", 1e3, 1),
        Metric("cpu_seconds", "CPU ms", 1e3, 1),
        Metric("estimate", "estimate / peak", compared=False),
        Metric("error", "error, 1e-6", 1e6, 1, compared=False),
    ),
    packages=("torch", "transformers", "diffusers", "timm"),
    add_arguments=add_arguments,
)
