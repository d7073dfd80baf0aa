"""C++ headers of the kernels, and the libraries that they make."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from memplan.errors import EnvironmentUnfitError, MemplanError
from memplan.files import read_bytes
from memplan.toolchain.instructions import supported
from memplan.toolchain.loading import load

_NAME = "libmemplan_kernels_{}.so"
_WIDE = ("avx512", "avx2")  # in which nothing is lost to a library compiled here


def package_library(
    instructions: str, headers: Mapping[str, str]
) -> ctypes.CDLL | None:
    """The package's library of convolutions and the tape; None if there is none.

    instructions: "avx512", "avx2" or "portable"; "native" for the widest of the first
    two that this CPU has. headers: names and texts of what the library has to be made
    of; one that was made of others is none, nor is one that cannot be loaded here.
    """
    if instructions == "native":
        instructions = next(filter(supported, _WIDE), "")
    if not instructions or not supported(instructions):
        return None
    wanted = _digest(headers)
    for folder in folders():
        with contextlib.suppress(OSError, MemplanError):
            path = folder / _NAME.format(instructions)
            # It is looked into before it is loaded: what is loaded stays.
            if path.is_file() and wanted.encode() in read_bytes(path):
                return ctypes.CDLL(str(path))
    return None


def folders() -> tuple[Path, ...]:
    """Where the package's libraries may be."""
    from memplan import native

    return tuple(map(Path, native.__path__))


def _digest(headers: Mapping[str, str]) -> str:
    """The SHA-256 of names and digests, line by line, as CMakeLists.txt has it."""
    lines = "".join(
        f"{name} {hashlib.sha256(headers[name].encode()).hexdigest()}\n"
        for name in sorted(headers)
    )
    return hashlib.sha256(lines.encode()).hexdigest()


@functools.cache  # every convolution that is packed asks, several times
def headers(prefix: str) -> Mapping[str, str]:
    """Names and texts of the headers whose names begin so."""
    folder = resources.files(__name__)
    return {
        item.name: item.read_text(encoding="utf-8")
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.startswith(prefix) and item.name.endswith(".h")
    }


def convolution_library(instructions: str = "native") -> ctypes.CDLL:
    """The kernels of `conv_abi.h` for these instructions: the package's own, else
    compiled at first use.

    Raises NoCompilerError, CompileError or EnvironmentUnfitError as
    `memplan.toolchain.loading.load` does.
    """
    return _library("conv_", '#include "conv_abi.h"\n', instructions, _environment())


def tape() -> Any:
    """`memplan_tape` of `tape.h`: runs an array of (function, argument), so many of
    them, on so many threads. Where it is compiled, it is in no time, apart from all
    kernels.

    Raises as `convolution_library` does.
    """
    library = _library("tape", '#include "tape.h"\n', "native", _environment())
    play = library.memplan_tape
    play.restype = None
    play.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_int)
    return play


# Every convolution that is packed or bound asks, several times: what compiler and
# cache there are is looked into once, as long as the same are named.
_ASKED = ("CXX", "PATH", "MEMPLAN_CACHE_DIR", "XDG_CACHE_HOME", "HOME")


def _environment() -> tuple[str | None, ...]:
    return tuple(map(os.environ.get, _ASKED))


@functools.cache
def _library(
    prefix: str, source: str, instructions: str, environment: tuple[str | None, ...]
) -> ctypes.CDLL:
    """The library of the headers that begin so, of this source where it is compiled."""
    built = {**headers("conv_"), **headers("tape")}
    found = package_library(instructions, built)
    if found is not None:
        return found
    try:
        return load(source, headers(prefix), instructions)
    except EnvironmentUnfitError:
        # Narrower than this CPU allows; whether it gains is measured.
        found = package_library("portable", built) if instructions == "native" else None
        if found is None:
            raise
        return found
