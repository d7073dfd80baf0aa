"""Train a generator and a discriminator of images in turn: an ordinary program, unaware
of memplan, with two models and two optimizers.

python scripts/train_gan.py --batch-size 32 --steps 10
"""

from __future__ import annotations

import torch
from models.gan import discriminator, generator
from program import prepare, program_arguments
from step_log import StepLog
from torch.nn import functional


def main() -> None:
    parser = program_arguments("Train a GAN with Adam.", batch_size=32, steps=10)
    parser.add_argument("--noise", type=int, default=100)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    prepare(args)
    random = torch.Generator().manual_seed(args.seed)
    made, judged = generator(args.noise, args.width), discriminator(args.width)
    rates = {"lr": 2e-4, "betas": (0.5, 0.999)}
    making = torch.optim.Adam(made.parameters(), **rates)
    judging = torch.optim.Adam(judged.parameters(), **rates)
    true, false = torch.ones(args.batch_size, 1), torch.zeros(args.batch_size, 1)
    log = StepLog()
    for _ in range(args.steps):
        real = torch.randn(args.batch_size, 3, 64, 64, generator=random)
        noise = torch.randn(args.batch_size, args.noise, 1, 1, generator=random)
        images = made(noise)

        judging.zero_grad()
        on_real = functional.binary_cross_entropy_with_logits(judged(real), true)
        on_made = functional.binary_cross_entropy_with_logits(
            judged(images.detach()), false
        )
        (on_real + on_made).backward()
        judging.step()

        making.zero_grad()
        fooled = functional.binary_cross_entropy_with_logits(judged(images), true)
        fooled.backward()
        making.step()
        log.step((on_real + on_made + 3 * fooled).item())
    log.finish()


if __name__ == "__main__":
    main()
