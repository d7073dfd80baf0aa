"""Train AlexNet on random images: an ordinary program, unaware of memplan.

python scripts/train_alexnet.py --batch-size 32 --image-size 227 --steps 10
"""

from __future__ import annotations

from images import image_arguments, prepare, train
from models.alexnet import AlexNet


def main() -> None:
    parser = image_arguments(
        "Train AlexNet on random images with SGD.", batch_size=32, image_size=227
    )
    parser.add_argument("--learning-rate", type=float, default=0.01)
    args = parser.parse_args()
    prepare(args)
    train(AlexNet(args.classes), args, learning_rate=args.learning_rate)


if __name__ == "__main__":
    main()
