"""A Trace: the events of one run as columns, their stacks, and what is known of it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.core.plan import Program, RunStats
from memplan.errors import InputError
from memplan.text import facts_html, printable
from memplan.trace.calls import Calls
from memplan.trace.holders import Collection, Held
from memplan.trace.stacks import NO_STACK, Frame, StackTable

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "memplan.trace"
VERSION = 1
NO_HISTORY = "the snapshot has no history, only what was live when it was taken"


class Action(enum.IntEnum):
    """What happened. The names are those of PyTorch's own memory history.

    LABEL: what the block at `address` holds became known: `size` and `requested_size`
    are the code of a Category. OOM: a request for that many bytes failed; `address` is
    what the device had free. SEGMENT_ALLOC, SEGMENT_FREE: the allocator took memory
    from the device, or gave it back: what is reserved, on CUDA.
    """

    ALLOC = 0
    FREE_COMPLETED = 1
    STEP = 2
    FREE_REQUESTED = 3
    LABEL = 4
    OOM = 5
    SEGMENT_ALLOC = 6
    SEGMENT_FREE = 7


class Category(enum.IntEnum):
    """What a buffer holds; the value is its code in LABEL events.

    PARAMETERS: of a module, its buffers too. ACTIVATIONS: results of a forward pass.
    INPUTS: what was given to the outermost module, and made outside of one.
    TEMPORARIES: scratch, what a backward pass or an optimizer makes and drops.
    """

    UNKNOWN = 0
    PARAMETERS = 1
    GRADIENTS = 2
    OPTIMIZER_STATE = 3
    ACTIVATIONS = 4
    INPUTS = 5
    TEMPORARIES = 6

    @property
    def label(self) -> str:
        """As people read it: "optimizer state"."""
        return self.name.lower().replace("_", " ")


class Mark(enum.IntEnum):
    """What cut a step; the strongest kind present in a trace is the one used."""

    NONE = 0
    FORWARD = 1
    OPTIMIZER = 2
    EXPLICIT = 3


@dataclass(frozen=True)
class TraceInfo:
    """What is known of a run beside its events.

    started: RFC 3339; complete: False when the recording was cut off; dropped_events:
    how many events are missing; device: "cpu" or "cuda"; rank: the process's number
    among its `ranks`, 0 of 1 for a program that was launched alone; added_bytes: what
    the run added to the process's memory, files aside, when most was resident;
    used_bytes: resident when recording ended, without what the C library's heaps kept
    free; 0 where that is not known; history: False of a snapshot that has none: all
    blocks are live at one moment, and nothing is known of their lives; holders: of
    what is alive when recording ends; collections: by Python's cycle collector.
    """

    program: Program = field(default_factory=Program)
    run: RunStats = field(default_factory=RunStats)
    device: str = "cpu"
    alignment: int = 64
    argv: tuple[str, ...] = ()
    started: str = ""
    dropped_events: int = 0
    complete: bool = True
    stacks: str = "none"
    producer: str = ""
    rank: int = 0
    ranks: int = 1
    added_bytes: int = 0
    used_bytes: int = 0
    history: bool = True
    holders: tuple[Held, ...] = ()
    collections: tuple[Collection, ...] = ()


@dataclass(frozen=True, eq=False)
class Columns:
    """Events in the order they happened; every array has shape (m,).

    time_ns: since an arbitrary start, not decreasing within a thread.
    action, mark: codes of Action and Mark (a mark other than NONE only on steps).
    address, size: of the block, bytes; requested_size: exact bytes asked for.
    thread: the operating system's id; device: index; stream: handle, 0 on CPU.
    stack: index into the stack table, -1 for none.
    """

    time_ns: Int64Array
    action: npt.NDArray[np.uint8]
    mark: npt.NDArray[np.uint8]
    address: npt.NDArray[np.uint64]
    size: Int64Array
    requested_size: Int64Array
    thread: npt.NDArray[np.int32]
    device: npt.NDArray[np.int16]
    stream: Int64Array
    stack: npt.NDArray[np.int32]

    DTYPES = {  # noqa: RUF012 - a constant table, not a field
        "time_ns": np.int64,
        "action": np.uint8,
        "mark": np.uint8,
        "address": np.uint64,
        "size": np.int64,
        "requested_size": np.int64,
        "thread": np.int32,
        "device": np.int16,
        "stream": np.int64,
        "stack": np.int32,
    }

    @classmethod
    def of(cls, **arrays: npt.ArrayLike) -> Columns:
        """Columns from array-likes; a column left out is zero (`stack`: -1).

        Raises InputError if lengths differ, a name is unknown, or a value is not an
        integer of the column's type. Columns left out are read-only.
        """
        unknown = set(arrays) - set(cls.DTYPES)
        if unknown:
            raise InputError(f"unknown trace columns: {', '.join(sorted(unknown))}")
        columns = {
            name: _column(name, values, np.dtype(cls.DTYPES[name]))
            for name, values in arrays.items()
        }
        lengths = {name: column.shape for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"trace columns differ in length: {lengths}")
        count = next(iter(lengths.values()), (0,))
        for name, dtype in cls.DTYPES.items():
            fill = -1 if name == "stack" else 0
            # One value, seen `count` times: it takes up no memory.
            columns.setdefault(name, np.broadcast_to(dtype(fill), count))
        return cls(**columns)

    @classmethod
    def joined(cls, pieces: Sequence[Columns]) -> Columns:
        """The pieces, at least one, one after the other."""
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            **{
                name: np.concatenate([getattr(piece, name) for piece in pieces])
                for name in cls.DTYPES
            }
        )

    def __len__(self) -> int:
        return len(self.action)

    def take(self, rows: Int64Array | slice) -> Columns:
        """The rows chosen, as new columns."""
        return Columns(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True, eq=False)
class Trace:
    """The events of one run.

    calls: of its modules, if they were recorded.
    """

    events: Columns
    stacks: StackTable = field(default_factory=StackTable)
    info: TraceInfo = field(default_factory=TraceInfo)
    calls: Calls | None = None

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        script = self.info.program.script
        name = f"{printable(script)!r}, " if script else ""
        counts = f"{len(self):,} events, {len(self.stacks):,} stacks"
        return f"Trace({name}{counts}, {self.info.device})"

    def _repr_html_(self) -> str:
        steps = int((self.events.mark == self.events.mark.max(initial=0)).sum())
        marked = bool(self.events.mark.any())
        rows = [
            ("events", f"{len(self):,}"),
            ("steps begun", f"{steps:,}" if marked else "none marked"),
            ("stacks", f"{len(self.stacks):,}"),
            ("device", self.info.device),
            ("recorded", self.info.started or "not known"),
        ]
        if self.info.dropped_events:
            rows.append(("missing events", f"{self.info.dropped_events:,}"))
        return facts_html(self.info.program.script or "trace", rows)

    def to_pandas(self) -> pd.DataFrame:
        """One row per event, actions and marks by name, and who asked.

        That is `file`, `line` and `function` of the stack's innermost call, and the
        `module` and `operator` that ran; "" and 0 where there is none.
        """
        import pandas as pd

        frame: pd.DataFrame = pd.DataFrame(
            {f.name: getattr(self.events, f.name) for f in fields(self.events)}
        )
        table = [*range(len(self.stacks)), NO_STACK]  # -1 finds the last
        calls = [(self.stacks[i] or (Frame("", 0, ""),))[0] for i in table]
        origins = [self.stacks.origin(i) for i in table]
        for name, values in (
            ("file", [call.filename for call in calls]),
            ("line", [call.line for call in calls]),
            ("function", [call.name for call in calls]),
            ("module", [origin.module for origin in origins]),
            ("operator", [origin.operator for origin in origins]),
        ):
            frame[name] = np.array(values)[self.events.stack]
        for column, names in (("action", Action), ("mark", Mark)):
            frame[column] = frame[column].map({c.value: c.name.lower() for c in names})
        return frame


def _column(name: str, values: npt.ArrayLike, dtype: np.dtype[Any]) -> Any:
    """A 1-D array of `dtype`; what numpy would round or wrap around is refused."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{name}: not an array of integers ({error})") from None
    if array.ndim != 1:
        raise InputError(f"{name}: expected one dimension, got shape {array.shape}")
    if array.dtype == dtype or not array.size:
        return array.astype(dtype, copy=False)
    if array.dtype.kind not in "iu":
        found = array.dtype
        # A list of integers on both sides of 2^63 becomes floats; objects are exact.
        array = np.asarray(values, dtype=object)
        if set(map(type, array)) - {int}:
            raise InputError(f"{name}: expected integers, got {found}")
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if int(array.min()) < low or int(array.max()) > high:
        raise InputError(f"{name}: a value is not from {low} to {high}")
    return array.astype(dtype)
