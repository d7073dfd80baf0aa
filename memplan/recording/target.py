"""The program that a recording or a plan is for: who it is, and running it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import InspectLoader
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

from memplan.core.plan import Program
from memplan.errors import EXIT_INTERRUPTED, InputError
from memplan.text import name_as_text


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
        """Raise InputError if there is no such script or module, or it is shut."""
        if not self.is_module and not Path(self.name).is_file():
            raise InputError(f"{self.name}: no such script")
        if not self.is_module and not os.access(self.name, os.R_OK):
            raise InputError(f"{self.name}: cannot be read; check its permissions")
        if self.is_module and self._module_file() is None:
            raise InputError(
                f"{self.name}: no such module on the path or in this folder"
            )

    def identity(self) -> Program:
        """Its name and the hash of its source, before it runs."""
        file = self._module_file() if self.is_module else self.name
        name = name_as_text(self.name if self.is_module else Path(self.name).name)
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
        _set_arguments(target)
        if target.is_module:
            _run_module(target.name)
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


def _set_arguments(target: Target) -> None:
    """`sys.argv` and `sys.path` as the program expects them, to the very end."""
    folder = (
        os.getcwd() if target.is_module else str(Path(target.name).resolve().parent)
    )
    sys.argv = [target.name, *target.arguments]
    # Python puts the script's folder where memplan's own start-up put its entry.
    sys.path[0:1] = [folder]


def _run_script(path: str) -> None:
    path = os.path.abspath(path)  # as Python itself has it since 3.9
    code = compile(Path(path).read_bytes(), path, "exec")
    loader = SourceFileLoader("__main__", path)
    _run_code(code, __file__=path, __loader__=loader, __cached__=None)


def _run_module(name: str) -> None:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    code = None
    if spec is not None and isinstance(spec.loader, InspectLoader):
        code = spec.loader.get_code(spec.name)
    if spec is None or not isinstance(code, types.CodeType):
        raise ImportError(f"No code object available for {name}")
    sys.argv[0] = spec.origin or name
    _run_code(
        code,
        __file__=spec.origin,
        __loader__=spec.loader,
        __cached__=spec.cached,
        __package__=spec.parent,
        __spec__=spec,
    )


def _run_code(code: types.CodeType, **names: object) -> None:
    """Run `code` in a new `__main__`.

    It stays: threads, pickles, exit handlers and child processes look it up to the end.
    """
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=__builtins__, **names)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(type(error), error, trace)
    else:
        sys.excepthook(type(error), error, trace)


def _join_threads() -> None:
    # As Python's own end has it: executors are told first, or they would wait for work.
    told: list[Callable[[], object]] = getattr(threading, "_threading_atexits", [])
    while told:
        told.pop()()
    others: Sequence[threading.Thread] = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.daemon
    ]
    for thread in others:
        with contextlib.suppress(RuntimeError):
            thread.join()
