"""Random sentences whose lengths are drawn freely: what training and inference of the
encoder-decoder share."""

from __future__ import annotations

import argparse

import torch
from program import program_arguments
from torch import Tensor


def sentence_arguments(
    description: str, *, batch_size: int, steps: int
) -> argparse.ArgumentParser:
    """A parser of what every program on sentences takes, with these defaults."""
    parser = program_arguments(description, batch_size=batch_size, steps=steps)
    parser.add_argument("--shortest", type=int, default=10, help="of a batch's length")
    parser.add_argument("--longest", type=int, default=50)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments given; ends the program where the lengths make no sense."""
    args = parser.parse_args()
    if not 1 <= args.shortest <= args.longest:
        parser.error("--shortest must be at least 1, and at most --longest")
    return args


class Sentences:
    """Batches of padded sentences, as a corpus sorted into buckets of like lengths
    gives them: each batch has a length of its own, for each language."""

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
