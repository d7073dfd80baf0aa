"""CUDA C++ to cubins, through NVRTC, wherever on this machine that is."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from memplan.errors import EnvironmentUnfitError
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
