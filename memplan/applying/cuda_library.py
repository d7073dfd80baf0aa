"""The CUDA allocator's library, as Python calls it: by ctypes, plain data only."""

from __future__ import annotations

import ctypes
from pathlib import Path

from memplan.applying.tables import ReplayArrays
from memplan.errors import EnvironmentUnfitError

_PREFIX = "memplan_cuda_"
_U64 = ctypes.c_uint64
_I64S = ctypes.POINTER(ctypes.c_int64)
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "load_runtime": (ctypes.c_char_p, (ctypes.c_char_p,)),
    "load_plan": (
        ctypes.c_char_p,
        (
            *(ctypes.c_int, ctypes.c_uint, _I64S, _I64S, ctypes.c_size_t),
            *(_I64S, ctypes.POINTER(ctypes.c_bool), ctypes.c_size_t),
            *(ctypes.c_size_t, ctypes.c_size_t, _U64),
        ),
    ),
    "next_step": (None, ()),
    "pass_through": (None, (ctypes.c_int,)),
    "set_cache_limit": (None, (_U64,)),
    "empty_cache": (None, ()),
    "stat_names": (ctypes.c_char_p, ()),
    "stats": (ctypes.c_bool, (ctypes.c_int, ctypes.POINTER(_U64))),
    "shut_down": (_U64, ()),
}


class Library:
    """`libmemplan_cuda.so`, loaded; it holds the state of all devices.

    Loaded twice from one path it is one and the same.
    """

    def __init__(self, path: Path) -> None:
        """Load it. Raises EnvironmentUnfitError where it is missing or damaged."""
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self._library, _PREFIX + name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise EnvironmentUnfitError(
                f"the CUDA allocator cannot be loaded ({error}); install memplan again"
            ) from None
        names: bytes = self._function("stat_names")()
        self._names = names.decode("ascii").split(",")

    def address(self, name: str) -> int:
        """The address of the function `memplan_cuda_<name>`."""
        pointer = ctypes.cast(self._function(name), ctypes.c_void_p)
        return int(pointer.value or 0)

    def load_runtime(self, path: str) -> None:
        """Find the CUDA runtime's functions in the library torch loaded from `path`.

        Raises EnvironmentUnfitError if it is not loaded, or lacks a function.
        """
        self._check(self._function("load_runtime")(path.encode()))

    def load_plan(
        self, device: int, rank: int, plan: ReplayArrays, arena_bytes: int
    ) -> None:
        """Serve one stream from a plan, in an arena of so many bytes.

        An offset of -1 leaves a request to cudaMalloc. rank: 0 for the default stream,
        n for the n-th other one to ask for memory.
        Raises EnvironmentUnfitError if that stream has a plan already.
        """
        columns = plan.sizes, plan.offsets, plan.starts
        pointers = [array.ctypes.data_as(_I64S) for array in columns]
        elastic = (ctypes.c_bool * len(plan.elastic))(*plan.elastic)
        self._check(
            self._function("load_plan")(
                *(device, rank, pointers[0], pointers[1], len(plan.sizes)),
                *(pointers[2], elastic, len(plan.starts)),
                *(plan.loop_begin, plan.loop_end, arena_bytes),
            )
        )

    def next_step(self) -> None:
        """The program begins its next step, on all devices."""
        self._function("next_step")()

    def pass_through(self, on: bool) -> None:
        """Serve all requests outside the arenas from now on, or as planned again."""
        self._function("pass_through")(int(on))

    def set_cache_limit(self, limit: int) -> None:
        """Bytes of freed blocks to keep outside the arenas, for each device."""
        self._function("set_cache_limit")(limit)

    def empty_cache(self) -> None:
        """Give freed blocks outside the arenas back to CUDA."""
        self._function("empty_cache")()

    def stats(self, device: int) -> dict[str, int]:
        """Bytes and counts of one device; {} if nothing was asked of it."""
        values = (_U64 * len(self._names))()
        if not self._function("stats")(device, values):
            return {}
        return dict(zip(self._names, values, strict=True))

    def shut_down(self) -> int:
        """Give back all that is free; the number of blocks that are still in use."""
        return int(self._function("shut_down")())

    def _function(self, name: str) -> ctypes._NamedFuncPointer:
        function: ctypes._NamedFuncPointer = getattr(self._library, _PREFIX + name)
        return function

    def _check(self, message: bytes | None) -> None:
        if message is not None:
            text = message.decode("utf-8", "replace")
            raise EnvironmentUnfitError(f"the CUDA allocator cannot be used: {text}")
