"""CUDA kernels compiled through NVRTC, loaded and launched through the driver."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch

from memplan.errors import EnvironmentUnfitError
from memplan.fusing.cuda.form import ENTRY, THREADS, Kernel, headers
from memplan.toolchain.cache import Cache
from memplan.toolchain.compiler import CompileError

_MAJORS = (13, 12, 11)
_OPTIONS = ("--std=c++17",)


class NoNvrtcError(EnvironmentUnfitError):
    """NVRTC is not on this machine."""

    def __init__(self) -> None:
        super().__init__(
            "the CUDA compiler NVRTC is not found; pip install nvidia-cuda-nvrtc, "
            "or set CUDA_HOME to a toolkit"
        )


class Nvrtc:
    """One NVRTC library.

    path: as it was loaded. version: major and minor.
    """

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        """Raises AttributeError if `library` is none of NVRTC."""
        self.path, self._library = path, library
        size, text = ctypes.POINTER(ctypes.c_size_t), ctypes.c_char_p
        program, texts = ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)
        handle = ctypes.POINTER(program)
        number = ctypes.POINTER(ctypes.c_int)
        for name, types in {
            "Version": [number, number],
            "CreateProgram": [handle, text, text, ctypes.c_int, texts, texts],
            "CompileProgram": [program, ctypes.c_int, texts],
            "DestroyProgram": [handle],
            "GetProgramLogSize": [program, size],
            "GetProgramLog": [program, text],
            "GetCUBINSize": [program, size],
            "GetCUBIN": [program, text],
        }.items():
            getattr(library, f"nvrtc{name}").argtypes = types
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(major, minor)
        self.version = (major.value, minor.value)

    def compile(
        self, source: str, headers: Mapping[str, str], architecture: str
    ) -> bytes:
        """The cubin of `source` for an architecture, as "sm_90".

        headers: names of the files it includes, and their texts. Raises CompileError
        with the compiler's first error, also for an architecture it does not know.
        """
        names = (ctypes.c_char_p * len(headers))(*map(str.encode, headers))
        texts = (ctypes.c_char_p * len(headers))(*map(str.encode, headers.values()))
        options = [f"--gpu-architecture={architecture}", *_OPTIONS]
        listed = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        program = ctypes.c_void_p()
        library = self._library
        code = library.nvrtcCreateProgram(
            program, source.encode(), b"stack.cu", len(headers), texts, names
        )
        if code:
            raise CompileError(f"{self.path}: no program is made (error {code})")
        try:
            code = library.nvrtcCompileProgram(program, len(options), listed)
            if code:
                raise CompileError(f"{self.path}: {self._reason(program, code)}")
            cubin = self._bytes("CUBIN", program)
        finally:
            library.nvrtcDestroyProgram(program)
        if not cubin:
            raise CompileError(f"{self.path}: nothing is made for {architecture}")
        return cubin

    def _reason(self, program: ctypes.c_void_p, code: int) -> str:
        lines = (
            self._bytes("ProgramLog", program).decode("utf-8", "replace").split("\n")
        )
        errors = [line.strip("\0 ") for line in lines if "error" in line.lower()]
        return errors[0] if errors else f"the compiler ends with error {code}"

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        if getattr(self._library, f"nvrtcGet{what}Size")(program, size):
            return b""
        buffer = ctypes.create_string_buffer(size.value)
        code = getattr(self._library, f"nvrtcGet{what}")(program, buffer)
        return b"" if code else buffer.raw


@functools.cache
def find_nvrtc(major: int | None = None) -> Nvrtc | None:
    """NVRTC of this machine, of CUDA `major` if that is there; None if there is none.

    Looked for among what the loader finds (what torch has loaded, too), in NVIDIA's
    packages for pip, and in $CUDA_HOME, $CUDA_PATH and /usr/local/cuda.
    """
    majors = list(_MAJORS)
    if major is not None:
        majors = [major, *(each for each in _MAJORS if each != major)]
    for path in _candidates(majors):
        try:
            found = Nvrtc(ctypes.CDLL(path), path)
        except (OSError, AttributeError):
            continue
        return found
    return None


def _candidates(majors: list[int]) -> Iterator[str]:
    folders = list(_folders())
    for major in majors:
        name = f"libnvrtc.so.{major}"
        yield name
        for folder in folders:
            if (folder / name).is_file():
                yield str(folder / name)
    # CUDA 11 had a minor number in the name.
    yield "libnvrtc.so"
    for folder in folders:
        names = sorted(folder.glob("libnvrtc.so*"), reverse=True)
        yield from (str(path) for path in names if re.search(r"\.so[.\d]*$", path.name))


def _folders() -> Iterator[Path]:
    try:
        found = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        found = None
    for root in (found.submodule_search_locations or ()) if found else ():
        yield from sorted(Path(root).glob("*/lib"), reverse=True)
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    for home in (*homes, "/usr/local/cuda"):
        if home:
            yield from (Path(home, name) for name in ("lib64", "lib"))


def cubin(
    nvrtc: Nvrtc,
    source: str,
    headers: Mapping[str, str],
    architecture: str,
    cache: Cache | None = None,
) -> bytes:
    """The cubin of `source`, compiled at most once on this machine.

    cache: where cubins are kept; the user's own if None. Raises CompileError, and
    EnvironmentUnfitError for a cache that others can write to.
    """
    parts = [1, nvrtc.version, architecture, _OPTIONS, source, sorted(headers.items())]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    cache = Cache() if cache is None else cache
    kept = cache.read(key, ".cubin")
    if kept is None:
        kept = nvrtc.compile(source, headers, architecture)
        cache.write(key, ".cubin", kept)
    return kept


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


# Blocks that a multiprocessor is to hold at least: that many threads of others work
# while one block waits at a barrier. Reckoned, not timed.
_TOGETHER = 4


class Launch(Protocol):
    """A kernel that is ready: puts a launch of it on the current stream."""

    def __call__(
        self, blocks: int, pointers: Sequence[int], numbers: Sequence[int]
    ) -> None: ...


class Gpu:
    """The CUDA device of an index, with torch's context and current stream."""

    def __init__(self, index: int = 0, cache: Cache | None = None) -> None:
        """cache: where cubins are kept; the user's own if None.

        Raises EnvironmentUnfitError if torch has no CUDA, or there is no such device.
        """
        if torch.version.cuda is None or not torch.cuda.is_available():
            raise EnvironmentUnfitError("torch finds no NVIDIA GPU; fuse for the CPU")
        if index >= torch.cuda.device_count():
            raise EnvironmentUnfitError(f"there is no CUDA device {index}")
        self.index, self.device, self._cache = index, f"cuda:{index}", cache
        found = torch.cuda.get_device_properties(index)
        self.architecture = f"sm_{found.major}{found.minor}"
        # What a block may take, if it asks for it; older versions of torch do not say.
        self.most = int(getattr(found, "shared_memory_per_block_optin", 48 << 10))
        all_of_it = int(getattr(found, "shared_memory_per_multiprocessor", 64 << 10))
        self.limit = min(self.most, all_of_it // _TOGETHER)

    @cached_property
    def _driver(self) -> Driver:
        return Driver()

    def ready(self, kernel: Kernel) -> Launch:
        """The kernel compiled, or read from the cache, and loaded.

        Raises NoNvrtcError, CompileError, and EnvironmentUnfitError if the driver
        refuses it.
        """
        nvrtc = find_nvrtc(int(str(torch.version.cuda).split(".")[0]))
        if nvrtc is None:
            raise NoNvrtcError
        made = cubin(nvrtc, kernel.source, headers(), self.architecture, self._cache)
        with torch.cuda.device(self.index):
            torch.cuda.current_stream()  # the context is there from now on
            function = self._driver.load(made, kernel.shared)

        def launch(
            blocks: int, pointers: Sequence[int], numbers: Sequence[int]
        ) -> None:
            with torch.cuda.device(self.index):
                stream = torch.cuda.current_stream().cuda_stream
                function.launch(blocks, pointers, numbers, stream)

        return launch
