"""The five networks of profile-guided memory optimization (Sekiyama et al., 2018,
section 5), and what is measured of each."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.child import Run, environment, run_child
from bench.programs import SCRIPTS, Program

SOLVE = SCRIPTS / "bench" / "paper_solve.py"
TINY_BATCH_SIZES = (2,)
BASE_BATCH_SIZE = 2  # of a tiny ResNet, with less than 2 MiB of tensors


@dataclass(frozen=True)
class Network:
    """Batch sizes to train with, and sizes to try the benchmark with.

    tiny_inference: more of them for inference. steps, recorded: as of `Program`.
    """

    batch_sizes: tuple[int, ...]
    tiny: str
    tiny_inference: str = ""
    steps: int = 0
    recorded: int | None = None


NETWORKS = {
    "alexnet": Network((32, 64), "--image-size 67 --classes 10"),
    "googlenet": Network((8, 16), "--image-size 32 --classes 10"),
    "resnet50": Network(
        (4, 8), "--image-size 32 --layers 1 1 1 1 --width 8 --classes 10"
    ),
    "inception_resnet": Network((2, 4), "--image-size 75 --classes 10"),
    # Its steps all differ: it runs on past the 10 steps that its plan knows.
    "seq2seq": Network(
        (32, 64),
        "--longest 12 --vocabulary 50 --width 16",
        tiny_inference="--words 5",
        steps=20,
        recorded=10,
    ),
}


@dataclass(frozen=True)
class Case:
    """A network in training with a batch size, or, without one, in inference."""

    network: str
    batch_size: int | None

    @property
    def mode(self) -> str:
        """ "training" or "inference"."""
        return "inference" if self.batch_size is None else "training"

    @property
    def batch(self) -> str:
        """As in the paper's Figure 4, "I" stands for inference."""
        return "I" if self.batch_size is None else str(self.batch_size)

    def program(self) -> Program:
        """The script, with the batch size among its arguments."""
        network, inference = NETWORKS[self.network], self.mode == "inference"
        batch = ("--batch-size", str(1 if self.batch_size is None else self.batch_size))
        tiny = f"{network.tiny} {network.tiny_inference if inference else ''}"
        return Program(
            f"{'infer' if inference else 'train'}_{self.network}.py",
            batch,
            (*batch, *tiny.split()),
            network.steps,
            network.recorded,
        )


def cases(
    names: Sequence[str], batch_sizes: Sequence[int] | None, tiny: bool
) -> list[Case]:
    """Training with each batch size, then inference, of each network."""
    found = []
    for name in names:
        default = TINY_BATCH_SIZES if tiny else NETWORKS[name].batch_sizes
        found += [Case(name, size) for size in batch_sizes or default]
        found.append(Case(name, None))
    return found


@dataclass(frozen=True)
class Device:
    """Where tensors live: "cpu" or "cuda", and how to call it."""

    kind: str
    title: str


@dataclass(frozen=True)
class Result:
    """What was found for one case: bytes.

    solved: what bench/paper_solve.py says. held: what each allocator holds at most,
    after the warm-up; empty where nothing was run. base: resident without tensors, and
    no part of held; 0 for CUDA. runs: all there is of those runs.
    """

    case: Case
    solved: dict[str, Any]
    held: dict[str, int] = field(default_factory=dict)
    base: int = 0
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def retained(self) -> int:
        """Bytes that live on from step to step: parameters, optimizer state."""
        return int(self.solved["retained_bytes"])

    def released(self, allocator: str) -> int | None:
        """Bytes that `allocator` holds beside the retained ones; None if not run."""
        held = self.held.get(allocator)
        return None if held is None else held - self.retained

    def to_json(self) -> dict[str, Any]:
        return {
            "program": self.case.network,
            "batch_size": 1 if self.case.batch_size is None else self.case.batch_size,
            "mode": self.case.mode,
            "solved": self.solved,
            "held_bytes": self.held,
            "base_bytes": self.base,
            "released_bytes": {name: self.released(name) for name in self.held},
            "runs": self.runs,
        }


_PROBE = """
import torch
cuda = torch.cuda.is_available()
print(torch.cuda.get_device_name() if cuda else "")
"""


def find_device(timeout: float) -> Device:
    """A GPU if torch finds one, else the CPU."""
    command = [sys.executable, "-c", _PROBE]
    output, _, _ = run_child(command, environment(), timeout)
    name = output.strip()
    return Device("cuda", f"CUDA, {name}") if name else Device("cpu", "CPU")


def base_case(mode: str) -> Case:
    """What to run, tiny, to see how much is resident beside tensors.

    Training takes some 80 MiB more of code and its data than inference does.
    """
    return Case("resnet50", BASE_BATCH_SIZE if mode == "training" else None)


def resident(run: Run) -> int:
    """Bytes resident at most after the warm-up.

    Where the kernel cannot reset its mark, those of the whole run.
    """
    return run.peak_bytes if run.steady_peak_bytes is None else run.steady_peak_bytes


def record(command: Sequence[str], trace: Path, device: Device, timeout: float) -> None:
    """Record `command`, a Python program, into `trace`. Raises BenchError."""
    options = ["-q", "--force", "--device", device.kind, "-o", str(trace)]
    recording = [sys.executable, "-m", "memplan", "record", *options, *command]
    run_child(recording, environment(), timeout)


def solve(
    trace: Path, plan: Path, prove_seconds: float | None, timeout: float
) -> dict[str, Any]:
    """Plan `trace` into `plan`; what bench/paper_solve.py says. Raises BenchError."""
    command = [sys.executable, str(SOLVE), str(trace), str(plan)]
    if prove_seconds is not None:
        command += ["--prove", str(prove_seconds)]
    output, _, _ = run_child(command, environment(), timeout)
    found: dict[str, Any] = json.loads(output)
    return found
