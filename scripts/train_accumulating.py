"""Train a small ResNet with gradients accumulated over several batches a step, the last
of them shorter: an ordinary program, unaware of memplan.

python scripts/train_accumulating.py --batch-size 8 --accumulated 4 --steps 10
"""

from __future__ import annotations

import torch
from images import RandomImages, evaluate, train_arguments
from models.resnet import ResNet
from program import prepare
from step_log import StepLog
from torch.nn import functional


def main() -> None:
    parser = train_arguments(
        "Train with accumulated gradients.", batch_size=8, image_size=96
    )
    parser.add_argument("--accumulated", type=int, default=4, help="batches a step")
    parser.add_argument("--layers", type=int, nargs=4, default=(2, 2, 2, 2))
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    prepare(args)
    model = ResNet(args.layers, args.width, args.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    data, log = RandomImages(args), StepLog()
    for step in range(1, args.steps + 1):
        total = 0.0
        for number in range(1, args.accumulated + 1):
            images, labels = data.draw(short=number == args.accumulated)
            loss = functional.cross_entropy(model(images), labels) / args.accumulated
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        log.step(total)
        if args.epoch > 0 and step % args.epoch == 0:
            evaluate(model, data)
    log.finish()


if __name__ == "__main__":
    main()
