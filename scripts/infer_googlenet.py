"""Run GoogLeNet on random images: an ordinary program, unaware of memplan.

python scripts/infer_googlenet.py --batch-size 1 --image-size 224 --steps 20
"""

from __future__ import annotations

from images import image_arguments, infer
from models.googlenet import GoogLeNet
from program import prepare


def main() -> None:
    args = image_arguments(
        "Evaluate GoogLeNet on random images.", batch_size=1, image_size=224, steps=20
    ).parse_args()
    prepare(args)
    infer(GoogLeNet(args.classes), args)


if __name__ == "__main__":
    main()
