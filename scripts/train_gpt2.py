"""Train GPT-2 on random tokens: an ordinary program, unaware of memplan.

python scripts/train_gpt2.py --batch-size 1 --sequence-length 256 --steps 10
"""

from __future__ import annotations

import argparse

import torch
from models.gpt2 import GPT2
from program import prepare, program_arguments
from step_log import StepLog
from torch.nn import functional


def parse_arguments() -> argparse.Namespace:
    parser = program_arguments(
        "Train GPT-2 on random tokens with AdamW.", batch_size=1, steps=10
    )
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--context", type=int, default=1024, help="longest sequence")
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--autocast", action="store_true", help="to bfloat16")
    args = parser.parse_args()
    if args.sequence_length > args.context:
        parser.error("--sequence-length is longer than --context")
    if args.width % args.heads:
        parser.error("--width is no multiple of --heads")
    return args


def main() -> None:
    args = parse_arguments()
    prepare(args)
    generator = torch.Generator().manual_seed(args.seed)

    model = GPT2(args.vocabulary, args.context, args.layers, args.width, args.heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    shape = (args.batch_size, args.sequence_length + 1)
    log = StepLog()
    for _ in range(args.steps):
        text = torch.randint(args.vocabulary, shape, generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            logits = model(text[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.finish()


if __name__ == "__main__":
    main()
