"""Running somebody's program as `__main__`, and telling programs apart."""

from __future__ import annotations

import contextlib
import hashlib
import os
import runpy
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from memplan.core.plan import Program
from memplan.errors import EXIT_INTERRUPTED, InputError


@dataclass(frozen=True)
class Target:
    """A script (a path) or a module (a dotted name), and the arguments it gets."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def command(self) -> tuple[str, ...]:
        """The words after `python`, or after `memplan record`, that run it."""
        name = ("-m", self.name) if self.is_module else (self.name,)
        return (*name, *self.arguments)

    def check(self) -> None:
        """Raise InputError if there is no such script or module."""
        if not self.is_module and not Path(self.name).is_file():
            raise InputError(f"{self.name}: no such script")
        if self.is_module and self._module_file() is None:
            raise InputError(
                f"{self.name}: no such module on the path or in this folder"
            )

    def identity(self) -> Program:
        """Its name and the hash of its source, before it runs."""
        file = self._module_file() if self.is_module else self.name
        name = self.name if self.is_module else Path(self.name).name
        digest = ""
        if file is not None:
            with contextlib.suppress(OSError):
                digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        return Program(script=name, sha256=digest)

    def _module_file(self) -> str | None:
        """The file that `-m` would run, found without importing any package."""
        search: list[str] | None = [os.getcwd(), *sys.path]
        spec = None
        for part in self.name.split("."):
            spec = PathFinder.find_spec(part, search)
            if spec is None:
                return None
            locations = spec.submodule_search_locations
            search = None if locations is None else list(locations)
        if spec is not None and search is not None:
            spec = PathFinder.find_spec("__main__", search)
        return None if spec is None else spec.origin


def run(target: Target) -> int:
    """Run `target` as `python` would, and return the exit code it would end with.

    Exceptions are printed as Python prints them, without memplan's own frames. Waits
    for the program's own non-daemon threads.
    """
    try:
        with _as_main(target):
            if target.is_module:
                runpy.run_module(target.name, run_name="__main__", alter_sys=True)
            else:
                _run_script(target.name)
    except SystemExit as stop:
        return _exit_code(stop.code)
    except KeyboardInterrupt as error:
        _print_traceback(error)
        return EXIT_INTERRUPTED
    except BaseException as error:
        _print_traceback(error)
        return 1
    finally:
        _join_threads()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
    return 0


@contextlib.contextmanager
def _as_main(target: Target) -> Iterator[None]:
    """`sys.argv` and `sys.path` as the program expects them."""
    before = sys.argv, list(sys.path)
    folder = (
        os.getcwd() if target.is_module else str(Path(target.name).resolve().parent)
    )
    sys.argv = [target.name, *target.arguments]
    # Python puts the script's folder where memplan's own start-up put its entry.
    sys.path[0:1] = [folder]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


def _run_script(path: str) -> None:
    path = os.path.abspath(path)  # as Python itself has it since 3.9
    source = Path(path).read_bytes()
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=path, __builtins__=__builtins__, __spec__=None, __cached__=None
    )
    sys.modules["__main__"] = module
    # The module stays: threads, pickles and exit handlers look it up to the end.
    exec(compile(source, path, "exec"), module.__dict__)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException) -> None:
    trace = error.__traceback__
    own = {__file__, contextlib.__file__, runpy.__file__}
    while trace is not None and trace.tb_frame.f_code.co_filename in own | {
        "<frozen runpy>"
    }:
        trace = trace.tb_next
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(type(error), error, trace)
    else:
        sys.excepthook(type(error), error, trace)


def _join_threads() -> None:
    others: Sequence[threading.Thread] = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.daemon
    ]
    for thread in others:
        with contextlib.suppress(RuntimeError):
            thread.join()
