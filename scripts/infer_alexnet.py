"""Run AlexNet on random images: an ordinary program, unaware of memplan.

python scripts/infer_alexnet.py --batch-size 1 --image-size 227 --steps 20
"""

from __future__ import annotations

from images import image_arguments, infer
from models.alexnet import AlexNet
from program import prepare


def main() -> None:
    args = image_arguments(
        "Evaluate AlexNet on random images.", batch_size=1, image_size=227, steps=20
    ).parse_args()
    prepare(args)
    infer(AlexNet(args.classes), args)


if __name__ == "__main__":
    main()
