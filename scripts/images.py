"""Training and inference on random images: what the example programs share."""

from __future__ import annotations

import argparse

import torch
from step_log import StepLog
from torch import Tensor, nn
from torch.nn import functional

AUXILIARY_WEIGHT = 0.3


def image_arguments(
    description: str, *, batch_size: int, image_size: int, steps: int = 10
) -> argparse.ArgumentParser:
    """A parser of what every image program takes, with these defaults."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument(
        "--image-size", type=int, default=image_size, help="pixels a side"
    )
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: PyTorch's choice")
    parser.add_argument("--classes", type=int, default=1000)
    return parser


def prepare(args: argparse.Namespace) -> None:
    """Set the threads and the seed, before a model is made."""
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)


class RandomImages:
    """Images (N, 3, H, W) and labels (N,), the same for the same seed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._shape = (args.batch_size, 3, args.image_size, args.image_size)
        self._classes = args.classes
        self._generator = torch.Generator().manual_seed(args.seed)

    def draw(self) -> tuple[Tensor, Tensor]:
        """The next batch."""
        images = torch.randn(self._shape, generator=self._generator)
        labels = torch.randint(
            self._classes, self._shape[:1], generator=self._generator
        )
        return images, labels


def train(
    model: nn.Module,
    args: argparse.Namespace,
    *,
    learning_rate: float = 0.01,
    weight_decay: float = 1e-4,
) -> None:
    """Train with SGD and momentum. A model with auxiliary heads returns their logits
    after its own."""
    optimizer = torch.optim.SGD(
        model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=weight_decay
    )
    data, log = RandomImages(args), StepLog()
    for _ in range(args.steps):
        images, labels = data.draw()
        optimizer.zero_grad()
        outputs = model(images)
        logits, *others = [outputs] if isinstance(outputs, Tensor) else outputs
        loss = functional.cross_entropy(logits, labels)
        for other in others:
            loss = loss + AUXILIARY_WEIGHT * functional.cross_entropy(other, labels)
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.finish()


@torch.inference_mode()
def infer(model: nn.Module, args: argparse.Namespace) -> None:
    """Evaluate batch after batch."""
    model.eval()
    data, log = RandomImages(args), StepLog()
    for _ in range(args.steps):
        images, labels = data.draw()
        outputs = model(images)
        logits = outputs if isinstance(outputs, Tensor) else outputs[0]
        log.step(functional.cross_entropy(logits, labels).item())
    log.finish()
