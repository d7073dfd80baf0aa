"""Run ResNet-50 on random images: an ordinary program, unaware of memplan.

python scripts/infer_resnet50.py --batch-size 4 --image-size 224 --steps 20
"""

from __future__ import annotations

from images import image_arguments, infer
from models.resnet import RESNET50, ResNet
from program import prepare


def main() -> None:
    parser = image_arguments(
        "Evaluate ResNet-50 on random images.", batch_size=4, image_size=224, steps=20
    )
    parser.add_argument(
        "--layers", type=int, nargs=4, default=RESNET50, help="blocks in each stage"
    )
    parser.add_argument("--width", type=int, default=64, help="of the first stage")
    args = parser.parse_args()
    prepare(args)
    infer(ResNet(args.layers, args.width, args.classes), args)


if __name__ == "__main__":
    main()
