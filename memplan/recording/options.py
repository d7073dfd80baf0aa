"""What a recording can be told, checked in one place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Literal, get_args

from memplan.core.plan import Program
from memplan.errors import UsageError
from memplan.recording.gpus import FakeDevice, fake_device
from memplan.recording.ranks import rank, ranks
from memplan.trace.trace import TraceInfo
from memplan.version import __version__

Device = Literal["auto", "cpu", "cuda"]
Stacks = Literal["none", "site", "python"]
Steps = int | Literal["auto", "all"] | None
History = Literal["auto", "slot", "torch"]

MAX_ENTRIES = 5_000_000  # events of each device's history, at some 100 bytes each


@dataclass(frozen=True)
class RecordOptions:
    """Raises UsageError for values that make no sense.

    device: whose memory; "auto" is the GPU's if the program uses it, or else the CPU's.
        "fake" records without any memory, see `memplan.recording.fake`; "fake:cuda" so
        what a GPU would hold, "fake:cuda:a100" or "fake:cuda:24GiB" one of that size.
    steps: stop after this many steps; "auto" once they have repeated for long enough,
        see `memplan.recording.settling`; "all" or None for all. The program runs on.
    then_exit: end the program where the recording stops by itself.
    stacks: who asked: "site" notes the line of the program's own, the module and the
        operator; "python" all calls above it, too; "none" nothing.
    force: replace files that exist.
    program, argv: what is recorded, as the trace will name it.
    gpu: of CUDA's devices record only this one, by its index.
    history: how CUDA memory is recorded: "slot", by what torch's allocator tells
        memplan; "torch", from torch's own history, which the program then cannot have
        for itself; "auto", the first where torch's allocator is one that is known.
    max_entries: of each GPU's history, if it is torch's; one that overflows is
        reported, and its trace marked as incomplete.
    """

    device: Device | str = "auto"
    steps: Steps = "auto"
    stacks: Stacks = "site"
    force: bool = False
    program: Program = field(default_factory=Program)
    argv: tuple[str, ...] = ()
    gpu: int | None = None
    max_entries: int = MAX_ENTRIES
    then_exit: bool = False
    history: History = "auto"

    def __post_init__(self) -> None:
        for name, known in (
            *(("device", Device), ("stacks", Stacks)),
            ("history", History),
        ):
            value = getattr(self, name)
            if name == "device" and fake_device(value) is not None:
                continue
            if value not in get_args(known):
                words = ", ".join(get_args(known))
                raise UsageError(f"{name}={value!r}: write one of {words}")
        steps = self.steps
        if isinstance(steps, str) and steps not in ("auto", "all"):
            raise UsageError(f"steps={steps!r}: write auto, all or a number")
        if isinstance(steps, int) and steps < 1:
            raise UsageError(f"steps={steps}: record at least one step")
        if self.then_exit and steps in ("all", None):
            raise UsageError(
                "to end the program, the recording must stop by itself: give a number "
                "of steps, or auto"
            )
        if self.max_entries < 1:
            raise UsageError(f"max_entries={self.max_entries}: keep at least one event")

    @property
    def limit(self) -> int | None:
        """So many steps and no more, if it is a number."""
        return self.steps if isinstance(self.steps, int) else None

    @property
    def fake(self) -> FakeDevice | None:
        """What is simulated, where nothing real is recorded."""
        return fake_device(self.device)

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
