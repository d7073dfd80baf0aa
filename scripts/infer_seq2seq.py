"""Translate random sentences with an LSTM encoder-decoder with attention, word by
word, each time taking the likeliest: an ordinary program, unaware of memplan.

python scripts/infer_seq2seq.py --longest 50 --words 100 --steps 20
"""

from __future__ import annotations

import argparse

import torch
from images import prepare
from models.seq2seq import Seq2Seq
from step_log import StepLog
from torch import Tensor, nn
from train_seq2seq import Sentences


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Translate random sentences with an encoder-decoder, greedily.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--shortest", type=int, default=10, help="of a batch's length")
    parser.add_argument("--longest", type=int, default=50)
    parser.add_argument(
        "--words", type=int, default=100, help="to translate to, always as many"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: PyTorch's choice")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()
    if not 1 <= args.shortest <= args.longest:
        parser.error("--shortest must be at least 1, and at most --longest")
    if args.words < 1:
        parser.error("--words must be at least 1")
    return args


class Greedy(nn.Module):
    """Token numbers (N, S) to the mean log-probability of the words chosen."""

    def __init__(self, model: Seq2Seq, words: int) -> None:
        super().__init__()
        self.model, self.words = model, words

    def forward(self, source: Tensor) -> Tensor:
        model = self.model
        encoded, state = model.encoder(model.source(source))
        padding = (source == 0).unsqueeze(1)
        word = torch.ones_like(source[:, :1])
        total = torch.zeros(())
        for _ in range(self.words):
            decoded, state = model.decoder(model.target(word), state)
            scores = torch.bmm(model.attention(decoded), encoded.transpose(1, 2))
            weights = scores.masked_fill(padding, float("-inf")).softmax(2)
            context = torch.bmm(weights, encoded)
            attended = torch.tanh(model.joined(torch.cat([context, decoded], 2)))
            likeliest, word = model.projection(attended).log_softmax(2).max(2)
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
