"""Measure memplan beside its peers: `python scripts/benchmark.py SUITE --help`.

A suite is a module of `bench/` with a `SUITE`: see `bench/runner.py`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bench.runner import run_suite


def suites() -> list[str]:
    """The names of all suites."""
    folder = Path(__file__).parent / "bench"
    return sorted(
        path.stem
        for path in folder.glob("*.py")
        if "\nSUITE = " in path.read_text(encoding="utf-8")
    )


def main() -> int:
    """Run the suite that the first argument names; the exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in suites():
        print(f"usage: benchmark.py {{{','.join(suites())}}} [--help]", file=sys.stderr)
        return 2
    return run_suite(
        importlib.import_module(f"bench.{sys.argv[1]}").SUITE, sys.argv[2:]
    )


if __name__ == "__main__":
    sys.exit(main())
