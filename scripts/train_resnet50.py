"""Train ResNet-50 on random images: an ordinary program, unaware of memplan.

python scripts/train_resnet50.py --batch-size 6 --image-size 160 --steps 10
"""

from __future__ import annotations

import argparse

import torch
from models.resnet import RESNET50, ResNet
from step_log import StepLog
from torch.nn import functional


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train ResNet-50 on random images with SGD.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--image-size", type=int, default=160, help="pixels a side")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: PyTorch's choice")
    parser.add_argument(
        "--layers", type=int, nargs=4, default=RESNET50, help="blocks in each stage"
    )
    parser.add_argument("--width", type=int, default=64, help="of the first stage")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)

    model = ResNet(args.layers, args.width, args.classes)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.learning_rate, momentum=0.9, weight_decay=1e-4
    )
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    log = StepLog()
    for _ in range(args.steps):
        images = torch.randn(shape, generator=generator)
        labels = torch.randint(args.classes, shape[:1], generator=generator)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.finish()


if __name__ == "__main__":
    main()
