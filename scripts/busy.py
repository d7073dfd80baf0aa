"""Run a command beside busy loops, on two cores; by default the whole test suite.

    python scripts/busy.py
    python scripts/busy.py --loops 8 -- python -m pytest -x tests/applying

The loops and the command share the cores. However the command ends, and however this
script is stopped, no loop outlives it: each ends by itself when its parent is gone.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from types import FrameType

TESTS = ["-m", "pytest", "-v", "-n", "2", "--dist", "worksteal", "-m", "not soak"]
SUITE = [sys.executable, *TESTS]  # -v: each failure is named as it comes
# A loop looks for its parent some times a second, so that even SIGKILL leaves none.
LOOP = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for _ in range(5_000_000):
        pass
"""


def stop(number: int, _: FrameType | None) -> None:
    """End as the signal would, after the loops were stopped."""
    raise SystemExit(128 + number)


def main() -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loops", type=int, default=16, help="number [default: 16]")
    parser.add_argument("--cores", type=int, default=2, help="to share [default: 2]")
    parser.add_argument("command", nargs="*", help="[default: the tests without soak]")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: args.cores]
    os.sched_setaffinity(0, cores)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(args.loops):
            words = [sys.executable, "-c", LOOP, str(os.getpid())]
            loops.append(subprocess.Popen(words))
        return subprocess.run(args.command or SUITE, check=False).returncode
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
