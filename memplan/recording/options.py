"""What a recording can be told, checked in one place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Literal, get_args

from memplan.core.plan import Program
from memplan.errors import UsageError
from memplan.recording.ranks import rank, ranks
from memplan.trace.trace import TraceInfo
from memplan.version import __version__

Device = Literal["auto", "cpu", "cuda"]
Stacks = Literal["none", "python"]

MAX_ENTRIES = 5_000_000  # events of each device's history, at some 100 bytes each


@dataclass(frozen=True)
class RecordOptions:
    """Raises UsageError for values that make no sense.

    device: whose memory; "auto" is the GPU's if the program uses it, or else the CPU's.
    steps: stop after this many steps, None for all; the program runs on.
    stacks: "python" notes who asked, at some cost for each allocation.
    force: replace files that exist.
    program, argv: what is recorded, as the trace will name it.
    gpu: of CUDA's devices record only this one, by its index.
    max_entries: of each GPU's history; one that overflows is reported, and its trace
        marked as incomplete.
    """

    device: Device = "auto"
    steps: int | None = None
    stacks: Stacks = "none"
    force: bool = False
    program: Program = field(default_factory=Program)
    argv: tuple[str, ...] = ()
    gpu: int | None = None
    max_entries: int = MAX_ENTRIES

    def __post_init__(self) -> None:
        for name, known in (("device", Device), ("stacks", Stacks)):
            value = getattr(self, name)
            if value not in get_args(known):
                words = ", ".join(get_args(known))
                raise UsageError(f"{name}={value!r}: write one of {words}")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"steps={self.steps}: record at least one step")
        if self.max_entries < 1:
            raise UsageError(f"max_entries={self.max_entries}: keep at least one event")

    def about(self, torch: Any, info: TraceInfo) -> TraceInfo:
        """`info`, and what was recorded: by whom, when, and under which torch."""
        program = replace(
            self.program,
            torch=str(torch.__version__),
            threads=torch.get_num_threads(),
            marks=info.program.marks,
        )
        return replace(
            info,
            program=program,
            argv=self.argv,
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            producer=f"memplan {__version__}",
            rank=rank() or 0,
            ranks=ranks(),
        )


DEFAULTS = RecordOptions()
