"""Run Inception-ResNet-v2 on random images: an ordinary program, unaware of memplan.

python scripts/infer_inception_resnet.py --batch-size 1 --image-size 171 --steps 20
"""

from __future__ import annotations

from images import image_arguments, infer
from models.inception_resnet import InceptionResNet
from program import prepare


def main() -> None:
    args = image_arguments(
        "Evaluate Inception-ResNet-v2 on random images.",
        batch_size=1,
        image_size=171,
        steps=20,
    ).parse_args()
    prepare(args)
    infer(InceptionResNet(args.classes), args)


if __name__ == "__main__":
    main()
