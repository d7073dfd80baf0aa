"""What programs ask of torch.cuda beside tensors, each call with how it ended.

    python scripts/gpu/compatibility.py > native.txt
    memplan record --device cuda -o t.parquet scripts/gpu/compatibility.py --steps-only
    memplan solve t.parquet -o p.json
    memplan apply -q p.json scripts/gpu/compatibility.py > planned.txt
    diff native.txt planned.txt

A line is a call's name, and "ends" or the class of its exception: no values, so that
two runs compare. Training steps go on before, between and after the calls.
"""

from __future__ import annotations

import contextlib
import os
import sys

import calls_beside  # noqa: F401 - they are called in the order of these imports
import calls_of_memory  # noqa: F401
import torch
from calls import CALLS, training


def main() -> None:
    for _ in range(8):
        training.step()
    if "--steps-only" in sys.argv:
        return
    for function in CALLS:
        try:
            function()
            outcome = "ends"
        except Exception as failure:
            outcome = type(failure).__name__
        print(f"{function.__name__}: {outcome}", flush=True)
        with contextlib.suppress(RuntimeError):
            training.step()
    torch.cuda.synchronize()
    print("all: ends", flush=True)
    sys.stdout.flush()
    if os.environ.get("COMPATIBILITY_ABRUPT"):
        os._exit(0)


if __name__ == "__main__":
    main()
