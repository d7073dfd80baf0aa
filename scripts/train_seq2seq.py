"""Train an LSTM encoder-decoder with attention on random sentences whose lengths are
drawn freely: an ordinary program, unaware of memplan, whose steps all differ.

python scripts/train_seq2seq.py --batch-size 32 --longest 50 --steps 200
"""

from __future__ import annotations

import argparse

import torch
from images import prepare
from models.seq2seq import Seq2Seq
from step_log import StepLog
from torch import Tensor, nn
from torch.nn import functional


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train an encoder-decoder on random sentences with SGD.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--shortest", type=int, default=10, help="of a batch's length")
    parser.add_argument("--longest", type=int, default=50)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: PyTorch's choice")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=0.1)
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


def main() -> None:
    args = parse_arguments()
    prepare(args)
    model = Seq2Seq(args.vocabulary, args.width, args.layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    sentences, log = Sentences(args), StepLog()
    for _ in range(args.steps):
        source, target = sentences.draw()
        begin = functional.pad(target[:, :-1], (1, 0), value=1)
        optimizer.zero_grad()
        logits = model(source, begin)
        loss = functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=0
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        log.step(loss.item())
    log.finish()


if __name__ == "__main__":
    main()
