"""Train GoogLeNet on random images: an ordinary program, unaware of memplan.

python scripts/train_googlenet.py --batch-size 12 --image-size 160 --steps 10
"""

from __future__ import annotations

from images import train, train_arguments
from models.googlenet import GoogLeNet
from program import prepare


def main() -> None:
    parser = train_arguments(
        "Train GoogLeNet on random images with SGD.", batch_size=12, image_size=160
    )
    parser.add_argument(
        "--auxiliary", action="store_true", help="train the two auxiliary heads too"
    )
    args = parser.parse_args()
    prepare(args)
    model = GoogLeNet(args.classes, args.auxiliary)
    train(model, args, weight_decay=2e-4)


if __name__ == "__main__":
    main()
