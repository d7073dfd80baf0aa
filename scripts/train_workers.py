"""Train a small ResNet on random images that worker processes make, in epochs with a
short last batch and an evaluation: an ordinary program, unaware of memplan.

python scripts/train_workers.py --batch-size 8 --workers 2 --epoch 5 --steps 15
"""

from __future__ import annotations

import torch
from images import train_arguments
from models.resnet import ResNet
from program import prepare
from step_log import StepLog
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    """Random images (3, H, H) and their labels, the same by number."""

    def __init__(self, count: int, size: int, classes: int) -> None:
        self._count, self._size, self._classes = count, size, classes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(number)
        image = torch.randn((3, self._size, self._size), generator=generator)
        return image, number % self._classes


@torch.no_grad()
def evaluate(model: nn.Module, batches: DataLoader[tuple[Tensor, int]]) -> float:
    """The mean loss of all batches, and back to training."""
    model.eval()
    losses = [functional.cross_entropy(model(x), y).item() for x, y in batches]
    model.train()
    return sum(losses) / len(losses)


def main() -> None:
    parser = train_arguments(
        "Train with data from worker processes.", batch_size=8, image_size=112
    )
    parser.set_defaults(epoch=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--layers", type=int, nargs=4, default=(2, 2, 2, 2))
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    prepare(args)
    model = ResNet(args.layers, args.width, args.classes)
    optimizer = torch.optim.SGD(model.parameters(), args.learning_rate, momentum=0.9)
    short = (args.batch_size + 1) // 2
    counts = (args.epoch * args.batch_size - short, 2 * args.batch_size)
    training, testing = (
        DataLoader(
            Images(count, args.image_size, args.classes),
            args.batch_size,
            num_workers=args.workers,
            persistent_workers=args.workers > 0,
        )
        for count in counts
    )
    log, done = StepLog(), 0
    while done < args.steps:
        for images, labels in training:
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.step(loss.item())
            done += 1
            if done == args.steps:
                break
        evaluate(model, testing)
    log.finish()


if __name__ == "__main__":
    main()
