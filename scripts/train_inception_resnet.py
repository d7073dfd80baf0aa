"""Train Inception-ResNet-v2 on random images: an ordinary program, unaware of memplan.

python scripts/train_inception_resnet.py --batch-size 4 --image-size 171 --steps 10
"""

from __future__ import annotations

from images import image_arguments, prepare, train
from models.inception_resnet import InceptionResNet


def main() -> None:
    parser = image_arguments(
        "Train Inception-ResNet-v2 on random images with SGD.",
        batch_size=4,
        image_size=171,
    )
    parser.add_argument("--learning-rate", type=float, default=0.01)
    args = parser.parse_args()
    prepare(args)
    train(InceptionResNet(args.classes), args, learning_rate=args.learning_rate)


if __name__ == "__main__":
    main()
