"""Continue random prompts of free lengths, token by token, with a cache that grows: an
ordinary program, unaware of memplan.

python scripts/generate_text.py --batch-size 16 --words 64 --steps 12
"""

from __future__ import annotations

import argparse

import torch
from models.cached_decoder import CachedDecoder
from program import prepare, program_arguments
from step_log import StepLog


def parse_arguments() -> argparse.Namespace:
    parser = program_arguments("Continue random prompts.", batch_size=16, steps=12)
    parser.add_argument("--words", type=int, default=64, help="after each prompt")
    parser.add_argument("--shortest", type=int, default=16, help="of the prompts")
    parser.add_argument("--longest", type=int, default=96)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    args = parser.parse_args()
    if not 1 <= args.shortest <= args.longest or args.words < 1:
        parser.error("--words and --shortest must be at least 1, --longest no less")
    return args


@torch.inference_mode()
def main() -> None:
    args = parse_arguments()
    prepare(args)
    generator = torch.Generator().manual_seed(args.seed)
    context = args.longest + args.words
    model = CachedDecoder(
        args.vocabulary, context, args.layers, args.width, args.heads
    ).eval()
    log = StepLog()
    for _ in range(args.steps):
        bounds = (args.shortest, args.longest + 1)
        length = int(torch.randint(*bounds, (1,), generator=generator))
        shape = (args.batch_size, length)
        tokens = torch.randint(args.vocabulary, shape, generator=generator)
        caches, total = None, 0.0
        for _ in range(args.words):
            logits, caches = model(tokens, caches)
            likeliest, tokens = logits.log_softmax(1).max(1, keepdim=True)
            total -= likeliest.mean().item()
        log.step(total / args.words)
    log.finish()


if __name__ == "__main__":
    main()
