"""Train a vision transformer on random images, as it is, compiled or checkpointed: an
ordinary program, unaware of memplan.

python scripts/train_vit.py --batch-size 8 --image-size 128 --compiled --steps 10
"""

from __future__ import annotations

import os

from images import train, train_arguments
from models.vision_transformer import VisionTransformer
from program import prepare


def main() -> None:
    parser = train_arguments(
        "Train a vision transformer with SGD.", batch_size=8, image_size=128
    )
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="by torch.compile")
    parser.add_argument(
        "--checkpointed", action="store_true", help="keep only what enters a block"
    )
    args = parser.parse_args()
    if args.compiled:
        # One after the other, in this process: a pool of compilers would be measured.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    prepare(args)
    model = VisionTransformer(
        args.image_size,
        args.classes,
        layers=args.layers,
        width=args.width,
        heads=args.heads,
        checkpointed=args.checkpointed,
    )
    if args.compiled:
        model.compile()
    train(model, args)


if __name__ == "__main__":
    main()
