"""Train an LSTM encoder-decoder with attention on random sentences whose lengths are
drawn freely: an ordinary program, unaware of memplan, whose steps all differ.

python scripts/train_seq2seq.py --batch-size 32 --longest 50 --steps 200
"""

from __future__ import annotations

import torch
from models.seq2seq import Seq2Seq
from program import prepare
from sentences import Sentences, parse, sentence_arguments
from step_log import StepLog
from torch import nn
from torch.nn import functional


def main() -> None:
    parser = sentence_arguments(
        "Train an encoder-decoder on random sentences with SGD.",
        batch_size=32,
        steps=200,
    )
    parser.add_argument("--learning-rate", type=float, default=0.1)
    args = parse(parser)
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
