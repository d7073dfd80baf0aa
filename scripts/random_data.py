"""Random images and sentences, the same for the same seed."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor


class RandomImages:
    """Images (N, 3, H, W) and labels (N,), the same for the same seed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._shape = (args.batch_size, 3, args.image_size, args.image_size)
        self._classes = args.classes
        self._generator = torch.Generator().manual_seed(args.seed)

    def draw(self, *, short: bool = False) -> tuple[Tensor, Tensor]:
        """The next batch; a short one, of half the size, ends an epoch."""
        count = (self._shape[0] + 1) // 2 if short else self._shape[0]
        shape = (count, *self._shape[1:])
        images = torch.randn(shape, generator=self._generator)
        labels = torch.randint(self._classes, (count,), generator=self._generator)
        return images, labels


class NumberedImages(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """As many random images (3, H, H) and labels as wanted, the same by number."""

    def __init__(self, size: int, classes: int) -> None:
        self._size, self._classes = size, classes

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(number)
        image = torch.randn((3, self._size, self._size), generator=generator)
        return image, number % self._classes


class LoadedImages:
    """Batches that worker processes make."""

    def __init__(self, args: argparse.Namespace) -> None:
        images = NumberedImages(args.image_size, args.classes)
        self._batches = iter(
            torch.utils.data.DataLoader(
                images, args.batch_size, num_workers=args.workers
            )
        )

    def draw(self, *, short: bool = False) -> tuple[Tensor, Tensor]:
        """The next batch; a short one, of half the size, ends an epoch."""
        images, labels = next(self._batches)
        count = (len(images) + 1) // 2 if short else len(images)
        return images[:count], labels[:count]


class Sentences:
    """Batches of padded sentences, as a corpus in buckets of similar lengths has them:
    each batch has a length of its own, for each language."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._generator = torch.Generator().manual_seed(args.seed)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Source and target, (N, S) and (N, T), padded with 0."""
        return self._language(), self._language()

    def _language(self) -> Tensor:
        args, generator = self._args, self._generator
        bounds = (args.shortest, args.longest + 1)
        length = int(torch.randint(*bounds, (1,), generator=generator))
        shape = (args.batch_size, length)
        words = torch.randint(1, args.vocabulary, shape, generator=generator)
        shortest = max(1, length * 3 // 4)
        ends = torch.randint(
            shortest, length + 1, (args.batch_size, 1), generator=generator
        )
        return words.masked_fill(torch.arange(length) >= ends, 0)
