"""Tensors under a plan that are sent to another process.

What is sent is a block of torch's allocator, and a planned tensor lies within one that
others share. So it moves to a block of its own first, once.
"""

from __future__ import annotations

from typing import Any

from memplan.applying.cuda_library import Library


def share_outside(torch: Any, library: Library) -> None:
    """Have storages leave the arenas before they are shared; once is enough."""
    storage = torch.UntypedStorage
    share = storage._share_cuda_
    if getattr(share, "leaves_the_arena", False):
        return

    def share_cuda(self: Any, *arguments: Any) -> Any:
        """As torch has it, from a block of torch's own."""
        if self.nbytes() and library.holds(self.data_ptr()):
            _move(self, library)
        return share(self, *arguments)

    share_cuda.leaves_the_arena = True  # type: ignore[attr-defined]
    storage._share_cuda_ = share_cuda


def _move(storage: Any, library: Library) -> None:
    """Into a block of torch's own: resizing is how a storage gets another one."""
    size = storage.nbytes()
    library.interrupt()
    try:
        storage.resize_(size + 1)
        storage.resize_(size)
    finally:
        library.resume()
