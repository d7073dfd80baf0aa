"""Run an example program on a GPU, the program unaware of it.

    python scripts/bench/paper_cuda.py SCRIPT ARGUMENTS...

At the end, standard output tells what torch's allocator reserved at most. This path
has not run on a GPU yet.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAUNCHER = Path(__file__).resolve()
_RESERVED = re.compile(r"^cuda-reserved (\d+)$", re.MULTILINE)
_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def reserved_bytes(command: Sequence[str], expandable: bool, timeout: float) -> int:
    """What torch's own allocator reserves at most for `command`, which launches.

    expandable: with expandable_segments. Raises BenchError.
    """
    from bench.child import BenchError, environment, run_child

    env = {
        name: value for name, value in environment().items() if name not in _SETTINGS
    }
    if expandable:
        env[_SETTINGS[0]] = "expandable_segments:True"
    output, _, _ = run_child([sys.executable, *command], env, timeout)
    reserved = _RESERVED.search(output)
    if reserved is None:
        raise BenchError(f"no cuda-reserved in the output of: {' '.join(command)}")
    return int(reserved.group(1))


def launch(script: str, arguments: Sequence[str], device: str = "cuda") -> None:
    """Run `script` with all its tensors, and its random generators, on `device`."""
    import torch

    class Generator(torch.Generator):
        def __new__(cls, *_: Any) -> Generator:
            return super().__new__(cls, device)

    torch.set_default_device(device)
    torch.Generator = Generator
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
    if device == "cuda":
        print(f"cuda-reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    launch(sys.argv[1], sys.argv[2:])
