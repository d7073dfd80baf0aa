"""The kernels that do not depend on a network, as the package was built with them."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections.abc import Mapping
from pathlib import Path

from memplan.errors import MemplanError
from memplan.files import read_bytes
from memplan.toolchain.instructions import supported

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
