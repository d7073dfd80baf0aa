"""Serve batches of random images from a pool of threads, as a server would: an
ordinary program, unaware of memplan, whose requests run side by side.

python scripts/serve_threads.py --workers 4 --batch-size 4 --steps 100
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor

import torch
from images import image_arguments
from models.resnet import ResNet
from program import prepare
from step_log import StepLog
from torch import nn


def parse_arguments() -> argparse.Namespace:
    parser = image_arguments(
        "Answer requests from a pool of threads.",
        batch_size=4,
        image_size=160,
        steps=100,
    )
    parser.add_argument("--workers", type=int, default=4, help="threads of the pool")
    parser.add_argument("--layers", type=int, nargs=4, default=(2, 2, 2, 2))
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="requests of 1 to --batch-size images, rather than all of as many",
    )
    args = parser.parse_args()
    if args.workers < 1:
        parser.error("--workers must be at least 1")
    return args


def answer(model: nn.Module, args: argparse.Namespace, number: int) -> float:
    """The largest logit for the images of request `number`, the same every time."""
    generator = torch.Generator().manual_seed(args.seed + number)
    count = 1 + number * 7 % args.batch_size if args.mixed else args.batch_size
    shape = (count, 3, args.image_size, args.image_size)
    with torch.inference_mode():
        return float(model(torch.randn(shape, generator=generator)).max())


def main() -> None:
    args = parse_arguments()
    prepare(args)
    model = ResNet(args.layers, args.width, args.classes).eval()
    log = StepLog()
    with ThreadPoolExecutor(args.workers) as pool:
        # In the order of the requests, whichever thread is done first.
        for found in pool.map(lambda i: answer(model, args, i), range(args.steps)):
            log.step(found)
    log.finish()


if __name__ == "__main__":
    main()
