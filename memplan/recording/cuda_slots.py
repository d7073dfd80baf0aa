"""Which functions of torch's CUDA allocator lie where, found by watching them called.

Only the first slot of a c10::Allocator has always been the same. The others move from
one release to the next, so each is watched while Python does what calls it: what comes
by is passed on untouched. As a program, this looks for them in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from memplan.errors import EnvironmentUnfitError
from memplan.recording.cuda_library import Role, SlotLibrary

FIRST = 2  # after the two destructors
ALLOCATE = 2
# Releases that were looked at; another is first tried in a process of its own.
KNOWN = ((2, 11), (2, 12), (2, 14))
EVENTS_KNOWN = KNOWN  # of them, whose events were recorded, too
_TRIAL_SECONDS = 120


def library_path() -> Path:
    """Our library, beside the other native code."""
    from memplan.native import _alloc

    return Path(_alloc.__file__).with_name("libmemplan_cuda.so")


def torchs_library(torch: Any) -> Path:
    """The library of torch's that has its CUDA allocator."""
    return Path(torch.__file__).parent / "lib" / "libc10_cuda.so"


def is_known(version: str, *, events: bool = False) -> bool:
    """Whether the release of torch was looked at; events: and its events recorded."""
    return tuple(version.split(".")[:2]) in {
        tuple(map(str, release)) for release in (EVENTS_KNOWN if events else KNOWN)
    }


def require_known(library: SlotLibrary, torch: Any, *, events: bool = False) -> None:
    """Uses no CUDA here: a release of torch that was not looked at is tried in a
    process of its own; events: that it tells of its events, too.

    Raises EnvironmentUnfitError, with the reason, where torch's allocator is not one
    to stand in.
    """
    fault = library.check(torchs_library(torch))
    if not fault and not is_known(torch.__version__, events=events):
        fault = try_elsewhere(events=events)
    if fault:
        raise _unknown(torch, fault)


def take_slots(library: SlotLibrary, torch: Any) -> None:
    """Stand in torch's allocator, which must be in use, and have all slots needed.

    Raises EnvironmentUnfitError saying what is not as expected; then torch's own
    functions are all called as before.
    """
    if library.installed:
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
    """Have torch's allocator, which must be in use, tell of its events; to whom,
    `SlotLibrary.observe` says.

    Raises EnvironmentUnfitError saying what is not as expected.
    """
    take_slots(library, torch)
    named = torchs_library(torch).with_name("libtorch_cuda.so")
    if fault := library.attach(named):
        raise _unknown(torch, fault)


def _find(library: SlotLibrary, torch: Any) -> str:
    """Take the slots of every role. "" or what is not as expected."""
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
    for slot in range(FIRST, library.slots):
        pool = torch.cuda.graph_pool_handle()
        calls: dict[Role, Callable[[], object]] = {
            Role.RECORD_STREAM: partial(block.record_stream, stream),
            Role.BEGIN_POOL: partial(begin, device, pool),
            Role.END_POOL: partial(end, device, pool),
        }
        for role, call in calls.items():
            if _passes(library, slot, call):
                found[role].append(slot)
        release(device, pool)
        if _passes(library, slot, partial(torch.empty, 1, device="cuda")):
            requests.append(slot)
    taken = [slot for slots in found.values() for slot in slots]
    if ALLOCATE not in requests:
        return "a request does not pass through its first function"
    if len(set(taken)) < len(taken) or ALLOCATE in taken:
        return f"what it does passes through the same functions ({found})"
    for role, slots in found.items():
        if not all(library.take_slot(role, slot) for slot in slots):
            return f"there are {len(slots)} functions of one name ({role.name})"
    return ""


def _passes(library: SlotLibrary, slot: int, call: Callable[[], object]) -> bool:
    library.watch(slot)
    try:
        call()
    finally:
        calls = library.stop_watching()
    return calls > 0


def _first_of(module: Any, *names: str) -> Callable[..., Any] | None:
    return next(
        (getattr(module, name) for name in names if hasattr(module, name)), None
    )


def try_elsewhere(*, events: bool = False) -> str:
    """Take the slots in a process of its own, and serve a request there; events: hear
    of its events there, too. "" or why that did not work."""
    command = [sys.executable, "-m", "memplan.recording.cuda_slots"]
    command += ["events"] * events
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TRIAL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a trial of it could not be made ({error})"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    return f"a trial of it ended with {done.returncode} ({last})"


def main() -> None:
    """Take the slots, make a block and free it, on a stream of its own, too; ends with
    an error where that fails."""
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
