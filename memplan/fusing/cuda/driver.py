"""Cubins loaded and launched through the CUDA driver.

Written after the driver API's reference; it has run on a stand-in for the driver, and
on no GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from memplan.errors import EnvironmentUnfitError
from memplan.fusing.cuda.kernel import ENTRY, THREADS

_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_WITHOUT_ASKING = 48 << 10  # bytes of shared memory that any block may have


class Driver:
    """The functions of libcuda that a launch needs."""

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        """Raises EnvironmentUnfitError where there is no driver."""
        try:
            library = library or ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise EnvironmentUnfitError(
                "there is no CUDA driver (libcuda.so.1); install NVIDIA's driver"
            ) from None
        handle, number, text = ctypes.c_void_p, ctypes.c_uint, ctypes.c_char_p
        handles = ctypes.POINTER(handle)
        sizes = [number] * 7  # the grid's, the block's, shared memory
        for name, types in {
            "cuModuleLoadData": [handles, text],
            "cuModuleGetFunction": [handles, handle, text],
            "cuFuncSetAttribute": [handle, ctypes.c_int, ctypes.c_int],
            "cuLaunchKernel": [handle, *sizes, handle, handles, handles],
            "cuGetErrorName": [ctypes.c_int, ctypes.POINTER(text)],
        }.items():
            getattr(library, name).argtypes = types
        self._library = library

    def load(self, cubin: bytes, shared: int) -> Function:
        """The kernel of a cubin, in the current context; blocks take `shared` bytes.

        It stays loaded as long as the process runs. Raises EnvironmentUnfitError if
        the driver refuses, as for another architecture's cubin.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check("cuModuleLoadData", module, cubin)
        self.check("cuModuleGetFunction", function, module, ENTRY.encode())
        if shared > _WITHOUT_ASKING:
            self.check("cuFuncSetAttribute", function, _MOST_SHARED, shared)
        return Function(self, function, shared)

    def check(self, name: str, *arguments: object) -> None:
        """Call a function of the driver; raise EnvironmentUnfitError if it fails."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, text)
            why = text.value.decode() if text.value else f"error {code}"
            raise EnvironmentUnfitError(
                f"the CUDA driver fails in {name} ({why}); run without fusing"
            )


class Function:
    """A kernel that can be launched."""

    def __init__(self, driver: Driver, handle: ctypes.c_void_p, shared: int) -> None:
        self._driver, self._handle, self._shared = driver, handle, shared

    def launch(
        self,
        blocks: int,
        pointers: Sequence[int],
        numbers: Sequence[int],
        stream: int = 0,
    ) -> None:
        """Put a launch on a stream (its handle), in the current context.

        pointers: addresses on the device; numbers: the 32-bit integers behind them.
        """
        values: list[ctypes.c_void_p | ctypes.c_int] = [
            *map(ctypes.c_void_p, pointers),
            *map(ctypes.c_int, numbers),
        ]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = (blocks, 1, 1, THREADS, 1, 1)
        self._driver.check(
            *("cuLaunchKernel", self._handle, *sizes, self._shared, stream),
            addresses,
            None,
        )
