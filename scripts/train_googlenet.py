"""Train GoogLeNet on random images: an ordinary program, unaware of memplan.

python scripts/train_googlenet.py --batch-size 12 --image-size 160 --steps 10
"""

from __future__ import annotations

import argparse

import torch
from models.googlenet import GoogLeNet
from step_log import StepLog
from torch.nn import functional


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train GoogLeNet on random images with SGD.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--image-size", type=int, default=160, help="pixels a side")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: PyTorch's choice")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument(
        "--auxiliary", action="store_true", help="train the two auxiliary heads too"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)

    model = GoogLeNet(args.classes, args.auxiliary)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.learning_rate, momentum=0.9, weight_decay=2e-4
    )
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    log = StepLog()
    for _ in range(args.steps):
        images = torch.randn(shape, generator=generator)
        labels = torch.randint(args.classes, shape[:1], generator=generator)
        optimizer.zero_grad()
        logits, *others = model(images)
        loss = functional.cross_entropy(logits, labels)
        for other in others:
            loss = loss + 0.3 * functional.cross_entropy(other, labels)
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.finish()


if __name__ == "__main__":
    main()
