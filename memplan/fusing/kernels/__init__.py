"""C++ headers of the kernels, and the libraries that they make."""

from __future__ import annotations

import ctypes
import functools
import os
from importlib import resources
from typing import Any

from memplan.toolchain.loading import load

_CONVOLUTION = '#include "conv_abi.h"\n'
_TAPE = '#include "tape.h"\n'


def headers(prefix: str) -> dict[str, str]:
    """Names and texts of the headers whose names begin so."""
    return dict(_headers(prefix))


@functools.cache  # every convolution that is packed asks, several times
def _headers(prefix: str) -> dict[str, str]:
    folder = resources.files(__name__)
    return {
        item.name: item.read_text(encoding="utf-8")
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.startswith(prefix) and item.name.endswith(".h")
    }


def convolution_library(instructions: str = "native") -> ctypes.CDLL:
    """The kernels of `conv_abi.h`, compiled for these instructions, at first use.

    Raises NoCompilerError, CompileError or EnvironmentUnfitError as
    `memplan.toolchain.loading.load` does.
    """
    environment = tuple(map(os.environ.get, _ASKED))
    return _convolution_library(instructions, environment)


# Every convolution that is packed or bound asks, several times: what compiler and
# cache there are is looked into once, as long as the same are named.
_ASKED = ("CXX", "PATH", "MEMPLAN_CACHE_DIR", "XDG_CACHE_HOME", "HOME")


@functools.cache
def _convolution_library(
    instructions: str, environment: tuple[str | None, ...]
) -> ctypes.CDLL:
    return load(_CONVOLUTION, headers("conv_"), instructions)


def tape() -> Any:
    """`memplan_tape` of `tape.h`: runs an array of (function, argument), so many of
    them, on so many threads. It is compiled in no time, apart from all kernels.

    Raises as `convolution_library` does.
    """
    play = load(_TAPE, headers("tape")).memplan_tape
    play.restype = None
    play.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_int)
    return play
