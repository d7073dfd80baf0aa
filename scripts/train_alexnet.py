"""Train AlexNet on random images: an ordinary program, unaware of memplan.

python scripts/train_alexnet.py --batch-size 32 --image-size 227 --steps 10
"""

from __future__ import annotations

from images import train, train_arguments
from models.alexnet import AlexNet
from program import prepare


def main() -> None:
    parser = train_arguments(
        "Train AlexNet on random images with SGD.", batch_size=32, image_size=227
    )
    args = parser.parse_args()
    prepare(args)
    train(AlexNet(args.classes), args)


if __name__ == "__main__":
    main()
