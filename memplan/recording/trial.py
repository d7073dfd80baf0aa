"""Records a program in a child process, to measure what it needs."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.errors import RecordError
from memplan.recording.forking import ForkServer, last_error
from memplan.recording.target import Target
from memplan.scratch import scratch_folder
from memplan.trace.lives import Summary
from memplan.trace.read import read_trace
from memplan.trace.reserved import most_reserved, ran_out
from memplan.trace.trace import Action, Trace

_TOLD = "taken as", "not counted"  # in notes on what is not as in a real run


class ProgramFailedError(RecordError):
    """The program failed. code: its exit status; said: what it wrote to stderr."""

    def __init__(self, message: str, code: int, said: str) -> None:
        self.code, self.said = code, said
        super().__init__(message)


@dataclass(frozen=True)
class Trial:
    """What a recording found.

    live, reserved: peak bytes, exact; reserved is 0 on the CPU. out_of_memory: a
    request did not fit the device. notes: memplan's notes, a line each. trace: with
    its activations, if that was asked for. allocated: bytes of all allocations.
    """

    live: int
    reserved: int
    out_of_memory: bool
    notes: tuple[str, ...]
    trace: Trace | None = None
    allocated: int = 0


def trial(
    server: ForkServer,
    target: Target,
    device: str,
    steps: int,
    activations: bool = False,
) -> Trial:
    """Record `steps` steps of a program, then end it.

    device: as for `record --device`; activations: as `record --activations`. Raises
    ProgramFailedError with the program's last line of stderr if it failed for another
    reason than memory, RecordError if nothing was recorded.
    """
    with scratch_folder("memplan-fit-") as folder:
        path = folder / "trace.parquet"
        options = ["--device", device, "--steps", str(steps), "--then-exit"]
        options += ["--activations"] * activations
        words = ["record", *options, "--output", str(path), *target.command()]
        done = server.run("memplan", words)
        said = done.said.strip().splitlines()
        if not path.exists():
            raise _failure(target, said, done.code)
        trace = read_trace(path)
    events = trace.events
    failed = ran_out(events)
    if done.code and not failed:
        raise _failure(target, said, done.code)
    if not len(events):
        raise RecordError(
            f"{' '.join(target.command())} allocated no tensors in its own process, so "
            "memplan cannot measure it; if it starts other programs, name one of them"
        )
    notes = tuple(
        line.removeprefix("memplan: ")
        for line in said
        if line.startswith("memplan: ") and any(each in line for each in _TOLD)
    )
    return Trial(
        Summary.of(events).peak_live,
        most_reserved(events),
        failed,
        notes,
        trace if activations else None,
        int(events.requested_size[events.action == Action.ALLOC].sum()),
    )


def _failure(target: Target, said: list[str], code: int) -> ProgramFailedError:
    own = ("memplan: recorded ", " ")  # the summary of a recording nobody keeps
    told = [
        line
        for line in said
        if not line.startswith(own)
        and " is empty: " not in line
        and any(map(str.isalnum, line))  # a box may end with a ruler
    ]
    last = last_error(told).removeprefix("memplan: ") or "it printed nothing"
    text = f"{' '.join(target.command())} ended with {code}: {last}"
    return ProgramFailedError(text, code, "\n".join(said))
