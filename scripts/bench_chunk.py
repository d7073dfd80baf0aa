"""Chunking measured: memory by the allocator, time in pairs, beside what peers do.

    python scripts/bench_chunk.py                     # models by budgets
    python scripts/bench_chunk.py --paper             # its figures laid out anew
    python scripts/bench_chunk.py --ablation          # its strategies off one by one
    python scripts/bench_chunk.py --longest           # sequences under a fixed budget
    python scripts/bench_chunk.py --models gpt2,vit --budgets 15%,10% --compile

Bytes are of activations beyond parameters and inputs. A time is the ratio of medians
of runs that alternate, chunked over eager. Needs transformers and diffusers.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import time
import warnings
from typing import Any

import chunk_models
import torch

from memplan.chunking.canonical import searchable
from memplan.chunking.choice import Effort
from memplan.chunking.chunk import chunk
from memplan.chunking.measure import paired
from memplan.chunking.module import Chunk
from memplan.chunking.options import BudgetError, ChunkOptions
from memplan.chunking.parts import Target
from memplan.chunking.search import Search
from memplan.chunking.timing import calibrated
from memplan.graph.export import export
from memplan.graph.infer import Inference
from memplan.graph.lower import lower
from memplan.graph.measure import activation_peak

# Model, attention, size, budgets: what is to be shown.
CASES = [
    ("gpt2", "eager", 2048, ("15%", "10%")),
    ("llama", "eager", 2048, ("15%", "10%")),
    ("vit", "eager", 768, ("15%", "10%")),
    ("whisper", "eager", 1500, ("15%", "10%")),
    ("t5", "eager", 2048, ("20%", "10%")),
    ("gpt2", "sdpa", 2048, ("25%",)),
    ("esmfold", "eager", 128, ("20%", "15%")),
    ("esmfold", "eager", 160, ("20%", "15%")),
    ("unet", "eager", 64, ("15%", "10%")),
    ("unet", "sdpa", 64, ("50%",)),
]
STRATEGIES = {
    "all of them": {},
    "no chunks in chunks": {"nested": False},
    "nothing runs twice": {"copies": False},
    "no results over operands": {"fresh": True},
    "no beam": {"width": 1, "wanted": 1},
    "the paper's costs": {"cost": "paper"},
}
# Paper: figure or table, model, attention, size, the share of memory left, its claim.
PAPER = [
    ("GPT", "gpt2", "eager", 2048, "20%", "> 80 % saved at ≤ 10 % of speed"),
    ("ViT", "vit", "eager", 768, "20%", "> 80 % saved at ≤ 10 % of speed"),
    ("AlphaFold", "esmfold", "eager", 128, "20%", "> 80 % saved at ≤ 10 % of speed"),
    ("UNet", "unet", "eager", 64, "20%", "> 80 % saved at ≤ 10 % of speed"),
    ("GPT, fused", "gpt2", "sdpa", 2048, "30%", "> 70 % saved at 5 % of speed"),
    ("UNet, fused", "unet", "sdpa", 64, "30%", "> 70 % saved at 5 % of speed"),
]
# Model, attention, a size, to how much it is told apart, the paper's claim. Sizes are
# such that eager needs some hundred MiB: the attention's squares count then, as they do
# on the paper's GPUs.
LONGEST = [
    ("gpt2", "eager", 2048, 256, 11.7),
    ("vit", "eager", 768, 64, 3.2),
    ("esmfold", "eager", 320, 32, 3.2),
    ("unet", "eager", 64, 16, 3.2),
]


def built(name: str, attention: str, size: int) -> chunk_models.Built:
    torch.manual_seed(0)
    return chunk_models.BUILDERS[name](size, attention=attention)


def mib(size: float) -> str:
    return f"{size / 2**20:,.1f}"


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def head(*cells: str) -> None:
    row(*cells)
    row(*("---" for _ in cells))


def chunked(model: Any, inputs: Any, budget: str, **effort: Any) -> tuple[Any, str]:
    """The chunked module, and "" or that no plan was found; then the nearest."""
    options = ChunkOptions(max_slowdown=None, effort=Effort(**effort))
    try:
        return chunk(model, inputs, budget, options=options), ""
    except BudgetError as error:
        return error.closest, "nearest"


def timed(model: Any, module: Any, inputs: Any) -> list[float]:
    """The ratio, chunked over eager, of three rounds of pairs, from least to most."""
    return sorted(
        paired(lambda: model(*inputs), lambda: module(*inputs)).ratio for _ in range(3)
    )


def budgets(args: argparse.Namespace) -> None:
    head(
        "model", "eager MiB", "budget", "chunked MiB", "saved", "estimate off",
        "time, least · median · most", "error", "regions", "search s",
    )  # fmt: skip
    for name, attention, size, shares in cases(args):
        model, inputs = built(name, attention, size)
        for share in shares:
            module, note = chunked(model, inputs, share)
            plan = module.memplan
            low, middle, high = timed(model, module, inputs)
            off = plan.peak_bytes_after / plan.measured_bytes_after - 1
            row(
                f"{name} {attention} {size}",
                mib(plan.measured_bytes_before),
                f"{share} {note}".strip(),
                mib(plan.measured_bytes_after),
                f"{100 * plan.saved:.1f} %",
                f"{100 * off:+.1f} %",
                f"{low:.2f} · {middle:.2f} · {high:.2f}",
                f"{plan.max_relative_error:.0e}",
                len(plan.regions),
                f"{search_seconds(model, inputs, plan.budget_bytes):.1f}",
            )
            del module
            gc.collect()
        if args.compile:
            compiled(name, attention, size, model, inputs)


def compiled(name: str, attention: str, size: int, model: Any, inputs: Any) -> None:
    """torch.compile on the same model."""
    began = time.perf_counter()
    fast = torch.compile(model)
    try:
        with torch.no_grad():
            fast(*inputs)
        took = time.perf_counter() - began
        before = activation_peak(lambda: model(*inputs))
        after = activation_peak(lambda: fast(*inputs))
        low, middle, high = timed(model, fast, inputs)
    except Exception as error:
        row(f"{name} {attention} {size}", "torch.compile", type(error).__name__)
        return
    row(
        f"{name} {attention} {size}",
        mib(before),
        "torch.compile",
        mib(after),
        f"{100 * (1 - after / before):.1f} %",
        "",
        f"{low:.2f} · {middle:.2f} · {high:.2f}",
        "",
        "",
        f"{took:.0f}",
    )


def search_seconds(model: Any, inputs: Any, budget: int) -> float:
    """The time of the search alone, and of nothing else."""
    search = searcher(model, inputs)
    began = time.perf_counter()
    search.run(budget)
    return time.perf_counter() - began


def searcher(model: Any, inputs: Any, **effort: Any) -> Search:
    inference = Inference()
    program = searchable(lower(export(model, inputs, {}), inference), inference)
    return Search(program, inference, calibrated(), Effort(**effort))


def ablation(args: argparse.Namespace) -> None:
    head("model", "budget", *STRATEGIES)
    for name, attention, size, shares in cases(args):
        model, inputs = built(name, attention, size)
        cells = []
        for effort in STRATEGIES.values():
            module, note = chunked(model, inputs, shares[-1], **effort)
            if module is None:
                cells.append("none")
                continue
            plan = module.memplan
            ratio = timed(model, module, inputs)[1]
            cells.append(f"{100 * plan.saved:.1f} %, {ratio:.2f} {note}".strip())
        row(f"{name} {attention} {size}", shares[-1], *cells)


def paper(args: argparse.Namespace) -> None:
    head("paper's model", "here", "budget", "saved", "time", "claim", "verdict")
    for title, name, attention, size, share, claim in PAPER:
        model, inputs = built(name, attention, size)
        module, note = chunked(model, inputs, share)
        saved = 100 * module.memplan.saved
        ratio = timed(model, module, inputs)[1]
        goal, slow = (80.0, 1.10) if "80" in claim else (70.0, 1.05)
        short = [f"{saved:.1f} % saved"] if saved < goal - 0.05 else []
        short += [f"{ratio:.2f} times as long"] if ratio > slow else []
        verdict = "reproduces" if not short else f"falls short: {', '.join(short)}"
        row(
            title, f"{name} {attention} {size}", f"{share} {note}".strip(),
            f"{saved:.1f} %", f"{ratio:.2f}", claim, verdict,
        )  # fmt: skip
    longest(args)


def longest(args: argparse.Namespace) -> None:
    """How long an input fits where eager just fits: by estimate, then by a run."""
    head("model", "eager", "MiB", "chunked", "ratio", "claim", "measured MiB", "run s")
    for name, attention, size, by, claim in LONGEST:
        if args.models and name not in args.models.split(","):
            continue
        model, inputs = built(name, attention, size)
        budget = activation_peak(lambda: model(*inputs))  # noqa: B023 - called here
        low, high = size, int(1.6 * size * claim) // by * by
        while high - low > by:  # it fits at `low`; what is beyond takes hours to run
            middle = (low + high) // 2 // by * by
            if fitting(built(name, attention, middle), budget) is None:
                high = middle
            else:
                low = middle
        model, inputs = built(name, attention, low)
        run = fitting((model, inputs), budget)
        measured, seconds = 0, 0.0
        if run is not None:
            began = time.perf_counter()
            measured = activation_peak(lambda: run(inputs, {}))  # noqa: B023
            seconds = time.perf_counter() - began
        row(
            f"{name} {attention}", size, mib(budget), low, f"{low / size:.1f}",
            f"{claim}", mib(measured), f"{seconds:.0f}",
        )  # fmt: skip
        gc.collect()


def fitting(case: chunk_models.Built, budget: int) -> Chunk | None:
    """The model in chunks within `budget` bytes by estimate; None if none was found.

    It is not compared with the model: that would not fit.
    """
    model, inputs = case
    inference = Inference()
    exported = export(model, inputs, {})
    program = searchable(lower(exported, inference), inference)
    search = Search(program, inference, calibrated(), Effort(seconds=60.0))
    trials = [search.start] if search.start.peak <= budget else search.run(budget)
    if not trials:
        return None
    return Chunk(Target("", model, exported, program), trials[0].program, "model")


def cases(args: argparse.Namespace) -> list[tuple[str, str, int, tuple[str, ...]]]:
    wanted = args.models.split(",") if args.models else None
    found = [case for case in CASES if wanted is None or case[0] in wanted]
    if args.budgets:
        shares = tuple(args.budgets.split(","))
        found = [(name, how, size, shares) for name, how, size, _ in found]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="which, as in gpt2,vit")
    parser.add_argument("--budgets", help="as in 15%%,10%%")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--paper", dest="run", action="store_const", const=paper)
    mode.add_argument("--ablation", dest="run", action="store_const", const=ablation)
    mode.add_argument("--longest", dest="run", action="store_const", const=longest)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    processor = platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, {args.threads} thread(s), {processor}\n")
    (args.run or budgets)(args)


if __name__ == "__main__":
    sys.exit(main())
