"""When the program lets go of tensors that autograd has saved."""

from __future__ import annotations

import sys
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

Row = list[int]


@dataclass
class _Storage:
    """One that the program still holds. aliases: the tensors that autograd was given
    in place of the program's own; rows: what was noted of each."""

    aliases: list[Any] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def alive(self) -> list[Any]:
        """The aliases that autograd still has."""
        return [each for ref in self.aliases if (each := ref()) is not None]


class Dropped:
    """Watches the storages of saved tensors.

    Autograd gets an alias of a tensor, so that the program's own dies when the program
    lets it go. A storage that no more tensors share than there are aliases is held by
    autograd alone.
    """

    def __init__(self, place: int) -> None:
        """place: in a row, of the monotonic ns from which on autograd alone holds."""
        self._place = place
        self._held: dict[int, _Storage] = {}
        self._beside = 0  # what torch counts beside tensors

    def alias(self, tensor: Any, row: Row) -> Any:
        """What autograd is to save in place of `tensor`: itself if it is not
        watched: parameters, which the program keeps, and tensors of other classes."""
        torch = sys.modules["torch"]
        if not is_plain(tensor) or (tensor.is_leaf and tensor.requires_grad):
            return tensor
        with torch.no_grad():
            alias = tensor.detach()
        if not self._beside:
            one = torch.empty(0, device="meta")  # asks for no memory
            self._beside = _count(_pointer(one)) - 1
        pointer = _pointer(tensor)
        held = self._held.get(pointer)
        if held is None or not held.alive():  # another storage in its place
            held = self._held[pointer] = _Storage()
        held.aliases.append(weakref.ref(alias))
        held.rows.append(row)
        return alias

    def look(self) -> None:
        """Note which storages the program has let go since."""
        now = time.monotonic_ns()
        for pointer, held in list(self._held.items()):
            alive = held.alive()
            if alive and _count(pointer) > len(alive) + self._beside:
                continue
            del self._held[pointer]
            for row in held.rows if alive else ():
                row[self._place] = row[self._place] or now


def _pointer(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _count(pointer: int) -> int:
    """How many hold a storage that is alive."""
    return int(sys.modules["torch"]._C._storage_Use_Count(pointer))


def is_plain(tensor: Any) -> bool:
    """Whether it is a tensor of torch's own, with a storage."""
    torch = sys.modules["torch"]
    kinds = [torch.Tensor]
    if (imported := sys.modules.get("torch._subclasses.fake_tensor")) is not None:
        kinds.append(imported.FakeTensor)
    return type(tensor) in kinds and tensor.layout is torch.strided
