"""Training and inference on random images: what the example programs share."""

from __future__ import annotations

import argparse

import torch
from program import program_arguments
from step_log import StepLog
from torch import Tensor, nn
from torch.nn import functional

AUXILIARY_WEIGHT = 0.3
EVALUATED = 2  # batches at the end of an epoch


def image_arguments(
    description: str, *, batch_size: int, image_size: int, steps: int = 10
) -> argparse.ArgumentParser:
    """A parser of what every image program takes, with these defaults."""
    parser = program_arguments(description, batch_size=batch_size, steps=steps)
    parser.add_argument(
        "--image-size", type=int, default=image_size, help="pixels a side"
    )
    parser.add_argument("--classes", type=int, default=1000)
    return parser


def train_arguments(
    description: str, *, batch_size: int, image_size: int
) -> argparse.ArgumentParser:
    """A parser of what every program that trains on images takes."""
    parser = image_arguments(description, batch_size=batch_size, image_size=image_size)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument(
        "--epoch",
        type=int,
        default=0,
        help="steps, the last with half a batch, and an evaluation after it; 0: none",
    )
    return parser


class RandomImages:
    """Images (N, 3, H, W) and labels (N,), the same for the same seed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._shape = (args.batch_size, 3, args.image_size, args.image_size)
        self._classes = args.classes
        self._generator = torch.Generator().manual_seed(args.seed)

    def draw(self, *, short: bool = False) -> tuple[Tensor, Tensor]:
        """The next batch; a short one is what is left over at an epoch's end."""
        count = (self._shape[0] + 1) // 2 if short else self._shape[0]
        shape = (count, *self._shape[1:])
        images = torch.randn(shape, generator=self._generator)
        labels = torch.randint(self._classes, (count,), generator=self._generator)
        return images, labels


def train(
    model: nn.Module,
    args: argparse.Namespace,
    *,
    weight_decay: float = 1e-4,
) -> None:
    """Train with SGD and momentum. A model with auxiliary heads returns their logits
    after its own. With epochs, each ends with a short batch and an evaluation."""
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=args.learning_rate,
        momentum=0.9,
        weight_decay=weight_decay,
    )
    data, log = RandomImages(args), StepLog()
    for step in range(1, args.steps + 1):
        ends = args.epoch > 0 and step % args.epoch == 0
        images, labels = data.draw(short=ends)
        optimizer.zero_grad()
        outputs = model(images)
        logits, *others = [outputs] if isinstance(outputs, Tensor) else outputs
        loss = functional.cross_entropy(logits, labels)
        for other in others:
            loss = loss + AUXILIARY_WEIGHT * functional.cross_entropy(other, labels)
        loss.backward()
        optimizer.step()
        log.step(loss.item())
        if ends:
            evaluate(model, data)
    log.finish()


@torch.no_grad()
def evaluate(model: nn.Module, data: RandomImages) -> None:
    """Some batches without gradients, and back to training."""
    model.eval()
    for _ in range(EVALUATED):
        images, _ = data.draw()
        model(images)
    model.train()


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
