"""Train a small GPT-2 on random tokens in bfloat16, by autocast: an ordinary program,
unaware of memplan.

python scripts/train_autocast.py --batch-size 4 --sequence-length 256 --steps 10
"""

from __future__ import annotations

import torch
from models.gpt2 import GPT2
from program import prepare, program_arguments
from step_log import StepLog
from torch.nn import functional


def main() -> None:
    parser = program_arguments(
        "Train GPT-2 in bfloat16 with AdamW.", batch_size=4, steps=10
    )
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    args = parser.parse_args()
    prepare(args)
    generator = torch.Generator().manual_seed(args.seed)
    model = GPT2(
        args.vocabulary, args.sequence_length, args.layers, args.width, args.heads
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    shape = (args.batch_size, args.sequence_length + 1)
    log = StepLog()
    for _ in range(args.steps):
        text = torch.randint(args.vocabulary, shape, generator=generator)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(text[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.finish()


if __name__ == "__main__":
    main()
