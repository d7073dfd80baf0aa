"""Train ResNet-50 on random images: an ordinary program, unaware of memplan.

python scripts/train_resnet50.py --batch-size 6 --image-size 160 --steps 10
"""

from __future__ import annotations

from images import train, train_arguments
from models.resnet import RESNET50, ResNet
from program import prepare


def main() -> None:
    parser = train_arguments(
        "Train ResNet-50 on random images with SGD.", batch_size=6, image_size=160
    )
    parser.add_argument(
        "--layers", type=int, nargs=4, default=RESNET50, help="blocks in each stage"
    )
    parser.add_argument("--width", type=int, default=64, help="of the first stage")
    args = parser.parse_args()
    prepare(args)
    model = ResNet(args.layers, args.width, args.classes)
    train(model, args)


if __name__ == "__main__":
    main()
