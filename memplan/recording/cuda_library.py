"""The library that stands in torch's CUDA allocator, as Python calls it: plain data.

Here is what both a recording and a plan need of it; `memplan.applying.cuda_library` has
what plans do.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

from memplan.errors import EnvironmentUnfitError

PREFIX = "memplan_cuda_"
U64 = ctypes.c_uint64
MESSAGE = ctypes.c_char_p
Signatures = dict[str, tuple[object, tuple[object, ...]]]


class Role(IntEnum):
    """What a slot of the allocator is for, beside the first."""

    RECORD_STREAM = 0
    BEGIN_POOL = 1
    END_POOL = 2
    EMPTY_CACHE = 3


class _Path:
    """An argument that C takes as the bytes of a path."""

    @staticmethod
    def from_param(path: Path) -> ctypes.c_char_p:
        return ctypes.c_char_p(os.fsencode(path))


# A message is the reason why something cannot be, "" if it could.
_SIGNATURES: Signatures = {
    # Whether the allocator in torch's libc10_cuda.so is one that is known.
    "check": (MESSAGE, (_Path,)),
    # Put a copy of its virtual table in place, which calls what the table called.
    "prepare": (MESSAGE, (_Path,)),
    # Functions in the table.
    "slots": (U64, ()),
    # Count the calls that pass through a slot, until `stop_watching` returns them.
    "watch": (None, (U64,)),
    "stop_watching": (U64, ()),
    # Have our function called there; False if there are too many of the role.
    "take_slot": (ctypes.c_bool, (ctypes.c_int, U64)),
    # Have requests come to us, and whether they do.
    "install": (MESSAGE, ()),
    "installed": (ctypes.c_bool, ()),
    # Heed interruptions of the CPU's allocator, by the address of their count.
    "heed": (None, (ctypes.c_void_p,)),
    # Have torch report its events from now on, in the process for good, to the library
    # in which its allocators' functions have names. Tries it with a block.
    "attach": (MESSAGE, (_Path,)),
    # Report them to a recording, by the address that `_alloc` gives, or to nobody. It
    # hears nothing of the blocks that are alive now.
    "observe": (None, (ctypes.c_void_p,)),
    # Report a block or segment that was there before, unless its address was reported:
    # action, device, stream, address, bytes.
    "tell": (None, (ctypes.c_int, ctypes.c_int, U64, U64, U64)),
    # Events that were lost since, because memory ran out.
    "missed": (U64, ()),
}


class SlotLibrary:
    """`libmemplan_cuda.so`, loaded; it holds the state of all devices.

    Its C functions are attributes of it. Loaded twice from one path it is one and the
    same.
    """

    SIGNATURES: Signatures = _SIGNATURES

    def __init__(self, path: Path) -> None:
        """Load it. Raises EnvironmentUnfitError where it is missing or damaged."""
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
            for name, (result, arguments) in self.SIGNATURES.items():
                function = getattr(self._library, PREFIX + name)
                function.restype, function.argtypes = result, arguments
                if result is MESSAGE:
                    function.errcheck = _as_text
        except (OSError, AttributeError) as error:
            raise EnvironmentUnfitError(
                f"memplan's library for CUDA cannot be loaded ({error}); install "
                "memplan again"
            ) from None

    def function(self, name: str) -> Any:
        """One of its C functions."""
        return getattr(self._library, PREFIX + name)

    def __getattr__(self, name: str) -> Any:
        """The same of the functions above."""
        if name not in self.SIGNATURES:
            raise AttributeError(name)
        return self.function(name)


def _as_text(message: bytes | None, *_: object) -> str:
    return "" if message is None else message.decode("utf-8", "replace")


FIRST = 2  # after the two destructors
ALLOCATE = 2
# Verified releases, their events, too; memplan tries any other one in a child process.
KNOWN = ((2, 11), (2, 12), (2, 14))
_TRIAL_SECONDS = 120


def library_path() -> Path:
    """memplan's CUDA library, beside the other native code."""
    from memplan.native import _alloc

    return Path(_alloc.__file__).with_name("libmemplan_cuda.so")


def torchs_library(torch: Any) -> Path:
    """torch's library that contains its CUDA allocator."""
    return Path(torch.__file__).parent / "lib" / "libc10_cuda.so"


def is_known(version: str) -> bool:
    """Whether this release of torch is verified."""
    releases = {tuple(map(str, release)) for release in KNOWN}
    return tuple(version.split(".")[:2]) in releases


def require_known(library: SlotLibrary, torch: Any, *, events: bool = False) -> None:
    """Check torch's CUDA allocator without using CUDA in this process.

    A child process tries a release that is not verified; events: its events, too.
    Raises EnvironmentUnfitError with the reason if memplan cannot hook this allocator.
    """
    fault = library.check(torchs_library(torch))
    if not fault and not is_known(torch.__version__):
        fault = try_elsewhere(events=events)
    if fault:
        raise _unknown(torch, fault)


def take_slots(library: SlotLibrary, torch: Any) -> None:
    """Hook torch's allocator, which must be in use, and find all slots needed.

    Whatever torch keeps in its cache by then is given back.

    Raises EnvironmentUnfitError with what differs from the expected; torch then calls
    its own functions as before.
    """
    if library.installed():
        return
    fault = library.prepare(torchs_library(torch)) or _find(library, torch)
    fault = fault or library.install()
    if fault:
        raise _unknown(torch, fault)


def _unknown(torch: Any, fault: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        f"torch {torch.__version__} has a CUDA allocator that memplan does not "
        f"know: {fault}; nothing was changed"
    )


def observe_events(library: SlotLibrary, torch: Any) -> None:
    """Have torch's allocator, which must be in use, report its events to
    `SlotLibrary.observe`.

    Raises EnvironmentUnfitError with what differs from the expected.
    """
    take_slots(library, torch)
    named = torchs_library(torch).with_name("libtorch_cuda.so")
    if fault := library.attach(named):
        raise _unknown(torch, fault)


def _find(library: SlotLibrary, torch: Any) -> str:
    """Find the slots of every role. "" or what differs from the expected."""
    begin = _first_of(torch._C, "_cuda_beginAllocateCurrentThreadToPool")
    begin = begin or _first_of(torch._C, "_cuda_beginAllocateToPool")
    end = _first_of(
        torch._C, "_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"
    )
    release = _first_of(torch._C, "_cuda_releasePool")
    if begin is None or end is None or release is None:
        return "torch._C has no functions for memory pools"
    device = torch.cuda.current_device()
    stream = torch.cuda.current_stream()
    block = torch.empty(1, device="cuda")
    found: dict[Role, list[int]] = {role: [] for role in Role}
    requests = []
    for slot in range(FIRST, library.slots()):
        pool = torch.cuda.graph_pool_handle()
        calls: dict[Role, Callable[[], object]] = {
            Role.RECORD_STREAM: partial(block.record_stream, stream),
            Role.BEGIN_POOL: partial(begin, device, pool),
            Role.END_POOL: partial(end, device, pool),
            Role.EMPTY_CACHE: torch._C._cuda_emptyCache,
        }
        for role, call in calls.items():
            if role is Role.EMPTY_CACHE and found[role]:
                continue  # it waits for the device
            if _passes(library, slot, call):
                found[role].append(slot)
        release(device, pool)
        if _passes(library, slot, partial(torch.empty, 1, device="cuda")):
            requests.append(slot)
    taken = [slot for slots in found.values() for slot in slots]
    if ALLOCATE not in requests:
        return "a request does not pass through the first function"
    if len(set(taken)) < len(taken) or ALLOCATE in taken:
        return f"several operations pass through the same function ({found})"
    for role, slots in found.items():
        if not all(library.take_slot(role, slot) for slot in slots):
            return f"{len(slots)} functions have the role {role.name}"
    return ""


def _passes(library: SlotLibrary, slot: int, call: Callable[[], object]) -> bool:
    library.watch(slot)
    try:
        call()
    finally:
        calls: int = library.stop_watching()
    return calls > 0


def _first_of(module: Any, *names: str) -> Callable[..., Any] | None:
    return next(
        (getattr(module, name) for name in names if hasattr(module, name)), None
    )


def try_elsewhere(*, events: bool = False) -> str:
    """Take the slots and serve a request in a child process; events: receive its
    events, too. "" or why that failed."""
    command = [sys.executable, "-m", "memplan.recording.cuda_library"]
    command += ["events"] * events
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TRIAL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a trial run could not start ({error})"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return f"a trial run ended with {done.returncode} ({last})"


def main() -> None:
    """Take the slots, allocate and free a block; with "events", receive events on a
    second stream. Ends with an error if that fails."""
    import torch

    torch.cuda.init()
    library = SlotLibrary(library_path())
    take_slots(library, torch)
    block = torch.zeros(1 << 20, device="cuda")
    del block
    if "events" in sys.argv[1:]:
        with torch.cuda.stream(torch.cuda.Stream()):
            observe_events(library, torch)


if __name__ == "__main__":
    main()
