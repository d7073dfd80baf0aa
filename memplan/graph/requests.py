"""What operators ask of the CPU's allocator while they run, and how a call gets it.

A convolution makes its result, and buffers for itself, with torch's allocator: the
same ones in the same order each time it runs on the same shapes. So they are watched
once, lie in the arena with all other storages, and are served there while a tape runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from memplan.errors import MemplanError


@dataclass(frozen=True)
class Request:
    """A block of memory that an operator asks for.

    born, died: positions among the requests and frees of the operator; died is None for
    a block that outlives it. result: which of the operator's results lies in it.
    """

    bytes: int
    born: int
    died: int | None
    result: int | None


@dataclass(frozen=True)
class Asked:
    """What an operator asks for each time it runs.

    events: how many requests and frees there are. exact: whether its results have the
    strides that their metas say.
    """

    requests: tuple[Request, ...]
    events: int
    exact: bool = True

    @property
    def scratch(self) -> int:
        """By how many bytes the most that are live at once exceed those that outlive
        it: it may free blocks before it asks for its results."""
        changes = [(each.born, each.bytes) for each in self.requests]
        changes += [(each.died, -each.bytes) for each in self.requests if each.died]
        now, most = 0, sum(each.bytes for each in self.requests if not each.died)
        kept = most
        for _, size in sorted(changes):
            now += size
            most = max(most, now)
        return most - kept


def watched(run: Callable[[], Any]) -> tuple[Any, Asked]:
    """What `run` returns, and what it asks for on this thread.

    The allocator's shim must be installed.
    """
    from memplan.native import _alloc

    log = _alloc.RequestLog()
    log.begin()
    try:
        result = run()
    finally:
        entries = log.end()
    places = [
        leaf.untyped_storage().data_ptr()
        for leaf in tree_leaves(result)
        if isinstance(leaf, Tensor)
    ]
    born: dict[int, tuple[int, int]] = {}  # by address: position, bytes
    found: list[Request] = []
    for position, (size, address) in enumerate(entries):
        if size:
            born[address] = (position, size)
        elif address in born:
            start, taken = born.pop(address)
            found.append(Request(taken, start, position, None))
    for address, (start, taken) in born.items():
        result_of = places.index(address) if address in places else None
        found.append(Request(taken, start, None, result_of))
    found.sort(key=lambda each: each.born)
    return result, Asked(tuple(found), len(entries))


Placed = tuple[int, int, bool]
"""A request's bytes; its offset in the arena, or -1 if it is not to lie there; whether
the operator frees it itself. Offsets beyond the arena are in the memory of a result."""


# Among the names of operators: what comes next is torch's to serve; and that is the
# result in whose memory others lie.
TORCH, HOST = "", "<result>"


class Service:
    """Serves the requests of a tape's calls, one call at a time.

    arena: bytes, in which the offsets are. steps: the requests of each operator that
    has any. marks: by an operator's name, the bytes of the request that announces it.
    """

    def __init__(self, arena: Tensor, steps: Mapping[str, Sequence[Placed]]) -> None:
        from memplan.native import _alloc

        names = (*steps, TORCH, HOST)
        self.marks = {name: _alloc.CALL_MARK + i for i, name in enumerate(names)}
        self.missed = 0
        requests = [list(each) for each in steps.values()]
        self._call = _alloc.Call(arena.data_ptr(), arena.numel(), requests, arena)

    def begin(self) -> None:
        """From now on, the calling thread's requests are those of the tape."""
        self._call.begin()

    def end(self) -> None:
        """The end of what `begin` began; `missed` then says how many requests differed.

        Raises MemplanError if an operator kept a block for itself, in memory that other
        values then used.
        """
        self.missed, kept = self._call.end()
        if kept:
            raise MemplanError("an operator kept memory that it used to free")


def fills_new_memory() -> bool:
    """Whether torch writes into all memory that it makes, for reproducible results."""
    fills: bool = torch.utils.deterministic.fill_uninitialized_memory
    return fills and torch.are_deterministic_algorithms_enabled()
