"""Translate random sentences with an LSTM encoder-decoder with attention, word by
word, each time taking the likeliest: an ordinary program, unaware of memplan.

python scripts/infer_seq2seq.py --longest 50 --words 100 --steps 20
"""

from __future__ import annotations

import argparse

import torch
from models.seq2seq import Seq2Seq
from program import prepare
from sentences import Sentences, parse, sentence_arguments
from step_log import StepLog
from torch import Tensor, nn


def parse_arguments() -> argparse.Namespace:
    parser = sentence_arguments(
        "Translate random sentences with an encoder-decoder, greedily.",
        batch_size=1,
        steps=20,
    )
    parser.add_argument(
        "--words", type=int, default=100, help="to translate to, always as many"
    )
    args = parse(parser)
    if args.words < 1:
        parser.error("--words must be at least 1")
    return args


class Greedy(nn.Module):
    """Token numbers (N, S) to the mean log-probability of the words chosen."""

    def __init__(self, model: Seq2Seq, words: int) -> None:
        super().__init__()
        self.model, self.words = model, words

    def forward(self, source: Tensor) -> Tensor:
        encoded, state = self.model.encode(source)
        word = torch.ones_like(source[:, :1])
        total = torch.zeros(())
        for _ in range(self.words):
            logits, state = self.model.decode(word, state, encoded, source)
            likeliest, word = logits.log_softmax(2).max(2)
            total = total + likeliest.mean()
        return total / self.words


@torch.inference_mode()
def main() -> None:
    args = parse_arguments()
    prepare(args)
    translate = Greedy(Seq2Seq(args.vocabulary, args.width, args.layers), args.words)
    translate.eval()
    sentences, log = Sentences(args), StepLog()
    for _ in range(args.steps):
        source, _ = sentences.draw()
        log.step(-translate(source).item())
    log.finish()


if __name__ == "__main__":
    main()
