"""Train a network on a GPU with random data: an ordinary program, unaware of memplan.

    python scripts/gpu/train.py resnet50 --batch-size 64 --steps 20

Two runs with the same seed have the same losses, bit for bit: only algorithms that see
to it are used. The last line, `cuda {...}`, is what torch.cuda says of its memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA is used

import torch
from models.gpt2 import GPT2
from models.resnet import RESNET50, ResNet
from models.seq2seq import Translator
from models.unet import UNet
from step_log import StepLog
from torch import Tensor, nn
from torch.nn import functional

WARMUP = 4  # steps before the allocator's calls are counted
VOCABULARY = 50257
TEXTS = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16)}  # layers, width, heads
NETWORKS = (*TEXTS, "resnet50", "unet", "seq2seq")
CALLS = ("num_device_alloc", "num_device_free", "num_sync_all_streams")


def parse_arguments() -> argparse.Namespace:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--length", type=int, default=512, help="longest text")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument(
        "--no-cudnn", action="store_true", help="where it is not there, or not wanted"
    )
    parser.add_argument(
        "--side-stream",
        type=int,
        default=0,
        metavar="MIB",
        help="also ask for so much on another stream in every step",
    )
    return parser.parse_args()


def network(args: argparse.Namespace) -> nn.Module:
    if args.network in TEXTS:
        layers, width, heads = TEXTS[args.network]
        return GPT2(VOCABULARY, max(args.length, 1024), layers, width, heads)
    if args.network == "seq2seq":
        return Translator(8000, 512, 6, 8)
    return UNet() if args.network == "unet" else ResNet(RESNET50, 64, 1000)


def batches(args: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """What to learn from, and what: on the host, one after the other without end."""
    count, size, length = args.batch_size, args.image_size, args.length
    while args.network in TEXTS:
        text = torch.randint(VOCABULARY, (count, length + 1))
        yield text[:, :-1], text[:, 1:]
    while args.network == "seq2seq":  # of lengths that differ from step to step
        lengths = torch.randint(length // 8, length // 4, (2,)).tolist()
        source, text = (torch.randint(1, 8000, (count, n)) for n in lengths)
        yield source, text
    shape = (count, size, size) if args.network == "unet" else (count,)
    classes = 2 if args.network == "unet" else 1000
    # Two of them in turn: to make one takes longer than a step.
    yield from itertools.cycle(
        (torch.randn(count, 3, size, size), torch.randint(classes, shape))
        for _ in range(2)
    )


def loss_of(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Of one batch, sent over here."""
    source, target = source.cuda(), target.cuda()
    if isinstance(model, Translator):
        with torch.device("cuda"):  # where it makes its masks
            logits = model(source, target[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    logits = model(source)
    if isinstance(model, UNet):  # each pixel is one to be told
        logits = logits.movedim(1, -1)
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten())


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.enabled = not args.no_cudnn
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # none is read
    with torch.device("cuda"):
        model = network(args)
    parameters = model.parameters()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    if args.network == "resnet50":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    side = torch.cuda.Stream()
    log = StepLog()
    before = dict.fromkeys(CALLS, 0)
    for number, (source, target) in zip(range(args.steps), batches(args), strict=False):
        optimizer.zero_grad()
        loss = loss_of(model, source, target)
        if args.side_stream:
            with torch.cuda.stream(side):
                torch.ones(args.side_stream << 18, device="cuda")
        loss.backward()
        optimizer.step()
        log.step(loss.item())  # which waits for the device
        if number == WARMUP - 1:
            stats = torch.cuda.memory_stats()
            before = {name: stats.get(name, 0) for name in CALLS}
    log.finish()
    free, whole = torch.cuda.mem_get_info()
    stats = torch.cuda.memory_stats()
    said = {
        "on": f"{torch.cuda.get_device_name()}, torch {torch.__version__}",
        "reserved": stats["reserved_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.peak"],
        "driver": whole - free,
        **{name: stats.get(name, 0) - before[name] for name in CALLS},
    }
    print(f"cuda {json.dumps(said)}")


if __name__ == "__main__":
    main()
