"""Train Inception-ResNet-v2 on random images: an ordinary program, unaware of memplan.

python scripts/train_inception_resnet.py --batch-size 4 --image-size 171 --steps 10
"""

from __future__ import annotations

from images import train, train_arguments
from models.inception_resnet import InceptionResNet
from program import prepare


def main() -> None:
    parser = train_arguments(
        "Train Inception-ResNet-v2 on random images with SGD.",
        batch_size=4,
        image_size=171,
    )
    args = parser.parse_args()
    prepare(args)
    train(InceptionResNet(args.classes), args)


if __name__ == "__main__":
    main()
