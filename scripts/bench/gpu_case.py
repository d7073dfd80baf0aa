"""A network that trains on a GPU under each mode, with its plan."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.gpu_runs import MODES, Clock, Run, read_run, run

PROGRAM = str(Path(__file__).resolve().parents[1] / "train_gpu.py")
BATCHES = {"resnet50": 64, "gpt2-medium": 8, "unet": 16, "seq2seq": 64}


class Case:
    """One network, with its plan, and what was found of it.

    runs: of each mode. largest: of each mode the largest batch that trained, and
    whether the next larger one to be told from it failed. failed: modes not to be
    tried again.
    """

    def __init__(
        self,
        name: str,
        args: argparse.Namespace,
        folder: Path,
        clock: Clock | None = None,
    ) -> None:
        """clock: of all programs together; None: there is time."""
        self.name, self._args = name, args
        self.batch: int = args.batch_size or BATCHES[name]
        self.clock = clock or Clock(None, args.timeout)
        self.runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
        self.largest: dict[str, tuple[int, bool]] = {}
        self.failed: set[str] = set()
        self._trace, self._plan = folder / f"{name}.parquet", folder / f"{name}.json"

    def to_json(self) -> dict[str, Any]:
        """What was found, as `gpu_table` reads it."""
        return {
            "batch": self.batch,
            "runs": {
                mode: [asdict(one) for one in made] for mode, made in self.runs.items()
            },
            "largest": self.largest,
        }

    def program(self, batch: int, steps: int) -> list[str]:
        return [
            *(PROGRAM, self.name, "--batch-size", str(batch), "--steps", str(steps)),
            *("--image-size", str(self._args.image_size)),
            *["--no-cudnn"] * self._args.no_cudnn,
        ]

    def plan(self, batch: int) -> None:
        """Record some steps, and plan them."""
        steps = self._args.recorded_steps
        # Of seq2seq, whose lengths differ, more of them; others than are trained on.
        program = self.program(batch, steps * (4 if self.name == "seq2seq" else 1))
        program += ["--seed", "1"]
        memplan = ["-m", "memplan"]
        record = ["record", "-q", "--force", "--device", "cuda", "--steps", "all"]
        recorded = [*memplan, *record, "-o", str(self._trace), *program]
        run(recorded, "native", self.clock.timeout())
        solve = ["solve", "--force", str(self._trace), "-o", str(self._plan)]
        run([*memplan, *solve], "native", self.clock.timeout())

    def train(self, mode: str, batch: int) -> Run:
        """Raises BenchError."""
        program = self.program(batch, self._args.steps)
        if mode == "memplan":
            program = ["-m", "memplan", "apply", "-q", str(self._plan), *program]
        return read_run(run(program, mode, self.clock.timeout()))
