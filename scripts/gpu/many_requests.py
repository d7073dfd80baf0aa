"""Many requests on a GPU, and what one costs with its free: to be recorded.

    python scripts/gpu/many_requests.py 700000

Prints the microseconds of CPU time of one. Eight blocks are alive at any time.
"""

from __future__ import annotations

import sys
import time
from collections import deque

import torch

import memplan

ALIVE = 8
STEP = 370  # requests; ten of each size


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    held = deque([torch.empty(1, device="cuda")], maxlen=ALIVE)
    begun = time.process_time()
    for i in range(count):
        if i % STEP == 0:
            memplan.step()
        size = 512 * (i % 37 + 1)
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    cost = (time.process_time() - begun) / count * 1e6
    print(f"{cost:.3f} us a request and its free")


if __name__ == "__main__":
    main()
