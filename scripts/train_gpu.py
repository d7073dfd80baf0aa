"""Train a network on a GPU with random data: an ordinary program, unaware of memplan.

python scripts/train_gpu.py resnet50 --batch-size 64 --steps 20
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from models.gpt2 import GPT2
from models.resnet import RESNET50, ResNet
from models.unet import UNet
from program import prepare, program_arguments
from step_log import StepLog
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 50257
SHAPES = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16)}  # layers, width, heads
Made = tuple[nn.Module, Iterator[tuple[Tensor, Tensor]]]


def parse_arguments() -> argparse.Namespace:
    parser = program_arguments(__doc__ or "", batch_size=8, steps=20)
    parser.add_argument("network", choices=[*SHAPES, "resnet50", "unet", "seq2seq"])
    parser.add_argument("--length", type=int, default=512, help="of a text")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--side-stream", type=int, default=0, metavar="MIB",
                        help="ask for so much on another stream in every step")
    return parser.parse_args()


def texts(args: argparse.Namespace, seed: Tensor | None = None) -> Made:
    layers, width, heads = SHAPES[args.network]
    model = GPT2(VOCABULARY, max(args.length, 1024), layers, width, heads).cuda()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            text = torch.randint(VOCABULARY, (args.batch_size, args.length + 1))
            text = text.cuda()
            yield text[:, :-1], text[:, 1:]

    return model, batches()


def images(args: argparse.Namespace) -> Made:
    size = args.image_size
    if args.network == "unet":
        model: nn.Module = UNet().cuda()
        shape: tuple[int, ...] = (args.batch_size, size, size)
        classes = 2
    else:
        model = ResNet(RESNET50, 64, 1000).cuda()
        shape, classes = (args.batch_size,), 1000

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            x = torch.randn(args.batch_size, 3, size, size).cuda()
            yield x, torch.randint(classes, shape).cuda()

    return model, batches()


def main() -> None:
    args = parse_arguments()
    prepare(args)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model, batches = texts(args) if args.network in SHAPES else images(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    side = torch.cuda.Stream() if args.side_stream else None
    log = StepLog()
    for _, (x, target) in zip(range(args.steps), batches, strict=False):
        optimizer.zero_grad()
        logits = model(x)
        loss = functional.cross_entropy(
            logits.flatten(0, 1) if args.network in SHAPES else logits,
            target.flatten() if args.network in SHAPES else target,
        )
        if side is not None:
            with torch.cuda.stream(side):
                block = torch.empty(args.side_stream << 20, dtype=torch.uint8, device="cuda")
                block.fill_(1)
            del block
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.finish()
    print(f"cuda-reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
