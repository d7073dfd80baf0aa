"""The program that a recording or a plan is for: who it is, and running it."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

from memplan.core.plan import Program
from memplan.errors import EXIT_INTERRUPTED, InputError
from memplan.streams import lent_streams, present_streams, streams_again
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
        if not self.is_module and Path(self.name).is_dir():
            raise InputError(
                f"{self.name} is a folder; name the script in it, as "
                f"{self.name}/__main__.py if it has one"
            )
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
    """Run `target` as `python` would, and return its exit code.

    Prints exceptions as Python does, without memplan's own frames. Waits for the
    program's non-daemon threads.
    """
    with lent_streams():
        try:
            return _code_of(_stopped_by(target))
        finally:
            _join_threads()
            for name in ("stdout", "stderr"):
                with _unheard():
                    getattr(sys, name).flush()


def _stopped_by(target: Target) -> BaseException | None:
    """The exception that ended the program, or None."""
    try:
        _set_arguments(target)
        if target.is_module:
            _run_module(target.name)
        else:
            _run_script(target.name)
    except BaseException as error:
        return error
    return None


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
    # As runpy asks: a loader need not be an importlib.abc.InspectLoader.
    get_code = getattr(spec and spec.loader, "get_code", None)
    code = None if spec is None or get_code is None else get_code(spec.name)
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
    # The module, as in Python's own __main__; other modules have its dictionary.
    module.__dict__.update(__builtins__=builtins, __annotations__={}, **names)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with _unheard():
        print(code, file=sys.stderr)
    return 1


def _code_of(error: BaseException | None) -> int:
    """The exit code that Python ends with for `error`, which is shown, as it would be,
    by the program's own hook if it has one."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return _exit_code(error.code)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    code = EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    if sys.excepthook is sys.__excepthook__:
        with _unheard():
            traceback.print_exception(type(error), error, trace)
        return code
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as stop:
        return _exit_code(stop.code)
    except BaseException as failure:
        own = failure.__traceback__
        with _unheard():
            print("Error in sys.excepthook:", file=sys.stderr)
            traceback.print_exception(type(failure), failure, own and own.tb_next)
            print("\nOriginal exception was:", file=sys.stderr)
            traceback.print_exception(type(error), error, trace)
    return code


def _unheard() -> contextlib.AbstractContextManager[None]:
    """The program may have closed or replaced its streams."""
    return contextlib.suppress(OSError, ValueError, AttributeError)


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


# By the module that `-m` names: where its parser is, and the words that come before the
# options. What is after the script is the script's own, to each of them.
_PARSERS = {
    "torch.distributed.run": ("torch.distributed.run:get_args_parser", ()),
    "accelerate.commands.launch": (
        "accelerate.commands.launch:launch_command_parser",
        (),
    ),
    "accelerate.commands.accelerate_cli": (
        "accelerate.commands.launch:launch_command_parser",
        ("launch",),
    ),
}
_SCRIPTS = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
    "accelerate-launch": "accelerate.commands.launch",
}


def through_launcher(target: Target, words: Sequence[str]) -> Target | None:
    """A launcher such as torchrun, changed to start `memplan WORDS SCRIPT` instead of
    its script; None if `target` is no launcher or starts no script.

    A launcher starts the program several times and allocates nothing itself, so each
    child runs memplan. words: memplan's command and options. The launcher parses its
    own options and refuses those it does not know.
    """
    name = target.name if target.is_module else _SCRIPTS.get(Path(target.name).name)
    if name not in _PARSERS:
        return None
    place, before = _PARSERS[name]
    if target.arguments[: len(before)] != before:
        return None
    arguments = target.arguments[len(before) :]
    parsed = _parsed(place, arguments)
    script = getattr(parsed, "training_script", None)
    if parsed is None or not script or getattr(parsed, "no_python", False):
        return None
    own = tuple(getattr(parsed, "training_script_args", ()))
    options = arguments[: len(arguments) - len(own) - 1]
    is_module = bool(getattr(parsed, "module", False))
    command = (
        *(() if is_module else ("-m",)),
        *("memplan", *words),
        *(("-m",) if is_module else ()),
        *(script, *own),
    )
    return replace(target, arguments=(*before, *options, *command))


def _parsed(place: str, arguments: Sequence[str]) -> argparse.Namespace | None:
    """The launcher's parsed arguments; None if it refuses them or is missing."""
    module, function = place.split(":")
    with contextlib.suppress(ImportError, AttributeError, SystemExit):
        parser: argparse.ArgumentParser = getattr(
            importlib.import_module(module), function
        )()
        with contextlib.redirect_stderr(None), contextlib.redirect_stdout(None):
            return parser.parse_args(list(arguments))
    return None


# What the other functions of `os` call in the end.
EXIT = "_exit"
WAYS = (EXIT, "execv", "execve")


@contextlib.contextmanager
def leaving_concluded(conclude: Callable[[bool], object]) -> Iterator[None]:
    """Call `conclude` once before this process leaves through os._exit or os.exec*.

    The argument tells whether it continues as another program. `conclude` prints to
    today's streams, even if the program closes them. Forked children leave without it,
    as multiprocessing's always do.
    """
    process = os.getpid()
    before = {name: getattr(os, name) for name in WAYS}
    ours = present_streams()
    left: list[str] = []

    def concluding(name: str) -> Callable[..., Any]:
        leave = before[name]

        @functools.wraps(leave)
        def leaving(*arguments: Any, **named: Any) -> Any:
            here = os.getpid() == process and not left
            if here and (name == EXIT or _runs(*arguments[:1])):
                left.append(name)
                # Whatever happens, Ctrl-C included, the program leaves.
                with contextlib.suppress(BaseException), streams_again(ours):
                    conclude(name != EXIT)
            return leave(*arguments, **named)

        # Where pickle finds it: pools are told to run os._exit.
        leaving.__module__ = os.__name__
        return leaving

    wrapped = {name: concluding(name) for name in WAYS}
    for name, leave in wrapped.items():
        setattr(os, name, leave)
    try:
        yield
    finally:
        for name, leave in wrapped.items():
            if getattr(os, name, None) is leave:
                setattr(os, name, before[name])


def _runs(file: Any = None) -> bool:
    """Whether exec will find a program there; `execvp` tries several folders."""
    if isinstance(file, int):
        return True
    try:
        return os.path.isfile(file) and os.access(file, os.X_OK)
    except (TypeError, ValueError):
        return False
