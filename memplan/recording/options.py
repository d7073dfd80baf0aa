"""The options of a recording, checked in one place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Literal, get_args

from memplan.core.plan import Program
from memplan.errors import UsageError
from memplan.recording.fake_device import FakeDevice, fake_device
from memplan.recording.ranks import rank, ranks
from memplan.trace.trace import TraceInfo
from memplan.version import __version__

Device = Literal["auto", "cpu", "cuda"]
Stacks = Literal["none", "site", "python"]
Steps = int | Literal["auto", "all"] | None
History = Literal["auto", "slot", "torch"]

MAX_ENTRIES = 5_000_000  # events of PyTorch's history per GPU, about 100 bytes each


@dataclass(frozen=True)
class RecordOptions:
    """Raises UsageError for values that make no sense.

    device: memory to record; "auto": the GPU's if the program uses one, else the CPU's.
        "fake": allocate nothing, see `memplan.recording.fake`; "fake:cuda": the same on
        a simulated GPU; "fake:cuda:a100" or "fake:cuda:24GiB": one of that size.
    steps: number of steps; "auto": until the steps have repeated long enough, see
        `memplan.recording.boundary.Settling`; "all" or None: all. The program runs on.
    then_exit: end the program when the recording stops by itself.
    stacks: call sites to record; "site": the program's line, the module and the
        operator; "python": the whole Python stack; "none": nothing.
    force: replace existing files.
    program, argv: the program's identity and command, as the trace names them.
    gpu: record only the GPU with this index.
    history: source of CUDA events; "slot": torch's allocator reports them to memplan;
        "torch": torch's memory history, which the program then cannot use; "auto":
        "slot" if memplan knows this release's allocator, else "torch".
    activations: also record the calls of modules, and the tensors that autograd saves
        in them, as `memplan.solve` needs it for a budget.
    holders: also name the variables that hold what is alive in the end, and reference
        cycles; with call sites only.
    max_entries: capacity of torch's history per GPU; if it overflows, memplan reports
        it and marks the trace as incomplete.
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
    activations: bool = False
    holders: bool = True

    def __post_init__(self) -> None:
        kinds = {"device": Device, "stacks": Stacks, "history": History}
        if self.fake is not None:
            del kinds["device"]
        for name, known in kinds.items():
            value = getattr(self, name)
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
                "then_exit needs a recording that stops by itself: set steps to a "
                "number or to auto"
            )
        if self.activations and self.history == "torch":
            raise UsageError(
                "activations need the events of memplan's own recorder: leave out the "
                "history of torch"
            )
        if self.max_entries < 1:
            raise UsageError(f"max_entries={self.max_entries}: must be at least 1")

    @property
    def limit(self) -> int | None:
        """The number of steps to record, if it is one."""
        return self.steps if isinstance(self.steps, int) else None

    @property
    def names_holders(self) -> bool:
        """Whether holders are looked for."""
        return self.holders and self.stacks != "none"

    @property
    def fake(self) -> FakeDevice | None:
        """The simulated device, if the recording uses fake tensors."""
        return fake_device(self.device)

    def about(self, torch: Any, info: TraceInfo) -> TraceInfo:
        """`info` with the program, the time, the producer and the torch version."""
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
