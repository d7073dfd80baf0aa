"""C++ source made a shared library of this process, compiled at most once."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import threading
from collections.abc import Mapping
from pathlib import Path

from memplan.errors import EnvironmentUnfitError, UsageError
from memplan.files import read_bytes, write_bytes
from memplan.scratch import scratch_folder
from memplan.toolchain.cache import Cache
from memplan.toolchain.compiler import (
    TIMEOUT,
    CompileError,
    Compiler,
    NoCompilerError,
    compile_source,
    find_compiler,
)
from memplan.toolchain.instructions import FLAGS, cpu, supported

# NaN and infinities are to be minded: nothing of -ffast-math but what errno costs.
_COMMON = (
    *("-O3", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-fno-math-errno", "-ffp-contract=fast"),
)
_OPENMP = "-fopenmp"
_PROBE = "#include <omp.h>\nint threads() { return omp_get_max_threads(); }\n"
_HEADER = re.compile(r"\w[\w.-]*")

_loaded: dict[str, ctypes.CDLL] = {}
_locks: dict[str, threading.Lock] = {}
os.register_at_fork(after_in_child=_locks.clear)  # no holder is left


def load(
    source: str,
    headers: Mapping[str, str] | None = None,
    instructions: str = "native",
    *,
    cache: Cache | None = None,
    timeout: float = TIMEOUT,
) -> ctypes.CDLL:
    """Compile one translation unit of C++20 to a shared library and load it.

    headers: names and texts of files beside the source. instructions: "native",
    "avx512", "avx2" or "portable"; see `supported`. cache: the user's own if None.
    timeout: seconds for one run of the compiler. If the compiler has OpenMP, `_OPENMP`
    is defined, and the library shares torch's runtime if torch was imported before.

    The same source, headers, compiler and CPU give the same loaded library. An unusable
    cache is skipped. Raises UsageError for invalid names, NoCompilerError, CompileError
    if the compiler fails, and EnvironmentUnfitError if the CPU lacks the instructions,
    others can write to the cache, or the library cannot be loaded.
    """
    _check(headers or {}, instructions)
    compiler = find_compiler()
    if compiler is None:
        raise NoCompilerError
    cache = Cache() if cache is None else cache
    job = _Job(compiler, source, dict(headers or {}), instructions, cache, timeout)
    if compiler in _without_openmp:
        return job.load(())
    try:
        return job.load((_OPENMP,))
    except CompileError:
        if _has_openmp(compiler, timeout):
            raise
    return job.load(())


def _check(headers: Mapping[str, str], instructions: str) -> None:
    for name in headers:
        if not _HEADER.fullmatch(name) or name == _Job.SOURCE:
            raise UsageError(f"{name!r}: not a header's name")
    if not supported(instructions):
        raise EnvironmentUnfitError(
            f'this CPU does not run "{instructions}"; use "native" or "portable"'
        )


_without_openmp: set[Compiler] = set()


def _has_openmp(compiler: Compiler, timeout: float) -> bool:
    """Whether the compiler has a runtime of OpenMP, tried on a source of two lines."""
    try:
        with scratch_folder() as folder:
            _compile(compiler, {_Job.SOURCE: _PROBE}, (_OPENMP,), folder, timeout)
    except CompileError:
        _without_openmp.add(compiler)
        return False
    return True


class _Job:
    """A library to be found, or made."""

    SOURCE, RESULT = "source.cpp", "library.so"

    def __init__(
        self,
        compiler: Compiler,
        source: str,
        headers: dict[str, str],
        instructions: str,
        cache: Cache,
        timeout: float,
    ) -> None:
        self.compiler, self.instructions = compiler, instructions
        self.files = {**headers, self.SOURCE: source}
        self.cache, self.timeout = cache, timeout

    def load(self, more: tuple[str, ...]) -> ctypes.CDLL:
        """The library compiled with `more` flags: loaded before, kept, or made."""
        flags = (*_COMMON, *FLAGS[self.instructions], *more)
        key = self._key(flags)
        with _locks.setdefault(key, threading.Lock()):
            if key not in _loaded:
                _loaded[key] = self._kept(key) or self._made(key, flags)
            return _loaded[key]

    def _key(self, flags: tuple[str, ...]) -> str:
        parts = {
            "format": 1,
            "files": self.files,
            "flags": flags,
            "compiler": [self.compiler.version, *self.compiler.arguments],
            "cpu": cpu() if self.instructions == "native" else (),
            "platform": [platform.system(), platform.machine(), *platform.libc_ver()],
        }
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _kept(self, key: str) -> ctypes.CDLL | None:
        path = self.cache.find(key, ".so")
        try:
            return ctypes.CDLL(str(path)) if path else None
        except OSError:  # removed just now, or on a file system that runs nothing
            return None

    def _made(self, key: str, flags: tuple[str, ...]) -> ctypes.CDLL:
        with scratch_folder() as folder:
            result = _compile(self.compiler, self.files, flags, folder, self.timeout)
            self.cache.write(key, ".so", read_bytes(result))
            kept = self._kept(key)
            if kept is not None:
                return kept
            try:
                return ctypes.CDLL(str(result))  # it stays loaded when its file goes
            except OSError as error:
                raise EnvironmentUnfitError(
                    f"{result}: cannot be loaded ({error}); "
                    "set MEMPLAN_CACHE_DIR to a folder on a disk that runs programs"
                ) from error


def _compile(
    compiler: Compiler,
    files: Mapping[str, str],
    flags: tuple[str, ...],
    folder: Path,
    timeout: float,
) -> Path:
    for name, text in files.items():
        write_bytes(folder / name, text.encode())
    arguments = [*flags, "-o", _Job.RESULT, _Job.SOURCE]
    compile_source(compiler, arguments, folder, timeout)
    return folder / _Job.RESULT
