"""Plans that do not fit, on a GPU: what they may cost is the arena, and no calls.

    python scripts/gpu/unfit.py [--steps 10]

GPT-2 is planned for a batch of 8, and trained natively and under that plan with batches
of 8, 4, 12 and 16, and with 400 MiB on another stream in every step. Prints for each
the calls of cudaMalloc, cudaFree and of synchronisations after the warm-up, and the
most that was reserved; ends with 1 where a plan costs more calls, or more bytes than
its arena.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))

from bench.gpu_case import PROGRAM  # noqa: E402 - it lies one folder up
from bench.gpu_runs import run  # noqa: E402

CALLS = ("num_device_alloc", "num_device_free", "num_sync_all_streams")
CASES = {
    "as planned": "",
    "batch 4": "--batch-size 4",
    "batch 12": "--batch-size 12",
    "batch 16": "--batch-size 16",
    "side stream": "--side-stream 400",
}
_SAID = re.compile(r"^cuda (\{.*\})$", re.MULTILINE)


def trained(command: list[str], timeout: float) -> dict[str, int]:
    """What the program says of torch.cuda at its end."""
    found = _SAID.search(run(command, "native", timeout))
    if found is None:
        sys.exit(f"{' '.join(command)}: it does not say what it took")
    entries: dict[str, int] = json.loads(found.group(1))
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=300, help="seconds a program")
    args = parser.parse_args()
    program = [PROGRAM, "gpt2", "--steps", str(args.steps)]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        trace, plan = f"{folder}/t.parquet", f"{folder}/p.json"
        memplan = ["-m", "memplan"]
        record = [*memplan, "record", "-q", "--device", "cuda", "-o", trace]
        run([*record, PROGRAM, "gpt2", "--steps", "5"], "native", args.timeout)
        run([*memplan, "solve", trace, "-o", plan], "native", args.timeout)
        arena = json.loads(Path(plan).read_text(encoding="utf-8"))["peak"]
        print(f"the arena: {arena / 1e9:.2f} GB")
        print("| case | native calls, reserved | planned calls, reserved | ratio |")
        print("|---|---|---|---|")
        for name, flags in CASES.items():
            words = [*program, *flags.split()]
            native = trained(words, args.timeout)
            planned = trained([*memplan, "apply", "-q", plan, *words], args.timeout)
            held = planned["reserved"] <= native["reserved"] + arena and all(
                planned[call] <= native[call] for call in CALLS
            )
            failed = failed or not held
            cells = [
                f"{', '.join(str(each[call]) for call in CALLS)}; "
                f"{each['reserved'] / 1e9:.2f} GB"
                for each in (native, planned)
            ]
            ratio = planned["reserved"] / native["reserved"]
            cells.append(f"{ratio:.3f}" + ("" if held else ", more than it may"))
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
