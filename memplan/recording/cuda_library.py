"""The library that stands in torch's CUDA allocator, as Python calls it: plain data.

Here is what both a recording and a plan need of it; `memplan.applying.cuda_library` has
what plans do.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path

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


_SIGNATURES: Signatures = {
    "check": (MESSAGE, (ctypes.c_char_p,)),
    "prepare": (MESSAGE, (ctypes.c_char_p,)),
    "slots": (U64, ()),
    "watch": (None, (U64,)),
    "stop_watching": (U64, ()),
    "take_slot": (ctypes.c_bool, (ctypes.c_int, U64)),
    "install": (MESSAGE, ()),
    "installed": (ctypes.c_bool, ()),
    "heed": (None, (ctypes.c_void_p,)),
    "attach": (MESSAGE, (ctypes.c_char_p,)),
    "observe": (None, (ctypes.c_void_p,)),
    "tell": (None, (ctypes.c_int, ctypes.c_int, U64, U64, U64)),
    "missed": (U64, ()),
}


class SlotLibrary:
    """`libmemplan_cuda.so`, loaded; it holds the state of all devices.

    Loaded twice from one path it is one and the same.
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
        except (OSError, AttributeError) as error:
            raise EnvironmentUnfitError(
                f"memplan's library for CUDA cannot be loaded ({error}); install "
                "memplan again"
            ) from None

    # ---- torch's allocator

    def check(self, torchs: Path) -> str:
        """Whether the allocator in torch's libc10_cuda.so is one that is known; changes
        nothing. "" or why not."""
        return text_of(self.function("check")(str(torchs).encode()))

    def prepare(self, torchs: Path) -> str:
        """Put a copy of its virtual table in place, which calls what the table called.
        "" or why not."""
        return text_of(self.function("prepare")(str(torchs).encode()))

    @property
    def slots(self) -> int:
        """Functions in the table."""
        return int(self.function("slots")())

    def watch(self, slot: int) -> None:
        """Count the calls that pass through a slot, until `stop_watching`."""
        self.function("watch")(slot)

    def stop_watching(self) -> int:
        """How many there were."""
        return int(self.function("stop_watching")())

    def take_slot(self, role: Role, slot: int) -> bool:
        """Have our function called there; False if there are too many of the role."""
        return bool(self.function("take_slot")(int(role), slot))

    def install(self) -> str:
        """Have requests come to us. "" or why that cannot be."""
        return text_of(self.function("install")())

    @property
    def installed(self) -> bool:
        """Whether they do."""
        return bool(self.function("installed")())

    def heed(self, interruptions: int) -> None:
        """Heed those of the CPU's allocator, too, by the address of their count."""
        self.function("heed")(interruptions)

    # ---- a recording

    def attach(self, named: Path) -> str:
        """Have torch tell of its events from now on, in the process for good; `named`
        is the library in which its allocators' functions have names. Makes a block and
        frees it, to see that. "" or why not."""
        return text_of(self.function("attach")(str(named).encode()))

    def observe(self, recording: int | None) -> None:
        """Tell a recording of them, by the address that `_alloc` gives; None: nobody.

        Of the blocks that are alive now it hears nothing.
        """
        self.function("observe")(recording)

    def tell(
        self, action: int, device: int, stream: int, address: int, size: int
    ) -> None:
        """Tell of a block or segment that was there before, as an event of now; one of
        that address which was told of already is passed over."""
        self.function("tell")(action, device, stream, address, size)

    @property
    def missed(self) -> int:
        """Events that could not be told since, for want of memory."""
        return int(self.function("missed")())

    def function(self, name: str) -> ctypes._NamedFuncPointer:
        """One of its C functions."""
        function: ctypes._NamedFuncPointer = getattr(self._library, PREFIX + name)
        return function


def text_of(message: bytes | None) -> str:
    """A message of the library's, as text; "" for none."""
    return "" if message is None else message.decode("utf-8", "replace")
