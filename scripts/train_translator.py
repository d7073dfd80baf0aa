"""Train an encoder-decoder transformer on random sentences of free lengths, evaluating
it again and again: an ordinary program, unaware of memplan, whose steps all differ.

python scripts/train_translator.py --batch-size 16 --longest 64 --steps 60 --epoch 12
"""

from __future__ import annotations

import argparse

import torch
from models.translator import Translator
from program import prepare
from sentences import Sentences, parse, sentence_arguments
from step_log import StepLog
from torch import Tensor, nn
from torch.nn import functional


def parse_arguments() -> argparse.Namespace:
    parser = sentence_arguments(
        "Train an encoder-decoder transformer with AdamW.", batch_size=16, steps=60
    )
    parser.set_defaults(width=192, layers=3, longest=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument(
        "--epoch", type=int, default=12, help="steps before each evaluation"
    )
    parser.add_argument("--evaluated", type=int, default=3, help="batches each time")
    return parse(parser)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean loss of each next word."""
    source, target = batch
    begin = functional.pad(target[:, :-1], (1, 0), value=1)
    logits = model(source, begin)
    return functional.cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=0
    )


@torch.no_grad()
def evaluate(model: nn.Module, sentences: Sentences, batches: int) -> float:
    """The mean loss of some batches, and back to training."""
    model.eval()
    losses = [loss_of(model, sentences.draw()).item() for _ in range(batches)]
    model.train()
    return sum(losses) / len(losses)


def main() -> None:
    args = parse_arguments()
    prepare(args)
    # Nested tensors, which evaluation would use, warn that they are a prototype.
    torch.backends.mha.set_fastpath_enabled(False)
    model = Translator(args.vocabulary, args.width, args.layers, args.heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    sentences, log = Sentences(args), StepLog()
    evaluated = 0.0
    for step in range(1, args.steps + 1):
        loss = loss_of(model, sentences.draw())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % args.epoch == 0:
            evaluated = evaluate(model, sentences, args.evaluated)
        # The last evaluation's loss counts for the digest as well.
        log.step(loss.item() + evaluated)
    log.finish()


if __name__ == "__main__":
    main()
