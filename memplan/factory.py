"""Load and call a user's function: ``FILE.py:FUNCTION``."""

from __future__ import annotations

import importlib.util
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memplan.errors import InputError, UsageError


class UserFile:
    """A user's Python file, run once as a module, not as ``__main__``.

    Its folder stays first on the path, as for a script.
    """

    def __init__(self, file: Path) -> None:
        """Raises InputError if there is no such file, or if it fails."""
        if not file.is_file():
            raise InputError(f"{file}: there is no such file")
        self.file = file
        self._module = self._run()

    def call(self, name: str) -> Any:
        """The result of its function `name`. Raises InputError if there is none, and
        for every error it raises except Ctrl-C."""
        function = getattr(self._module, name, None)
        if not callable(function):
            raise InputError(f"{self.file} has no function {name}")
        with blaming(f"{name} failed", self.file):
            return function()

    def _run(self) -> types.ModuleType:
        found = importlib.util.spec_from_file_location(self.file.stem, self.file)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules.setdefault(self.file.stem, module)
        folder = str(self.file.parent.resolve())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        with blaming("cannot be loaded", self.file):
            found.loader.exec_module(module)
        return module


def parse_spec(spec: str) -> tuple[Path, str]:
    """File and name in ``FILE.py:FUNCTION``. Raises UsageError for anything else."""
    file, _, name = spec.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise UsageError(f"{spec!r} names no function: write it as FILE.py:FUNCTION")
    return Path(file), name


@contextmanager
def blaming(what: str, file: Path | None = None) -> Iterator[None]:
    """Turn errors of a user's code into InputError with `what` and the line in the
    user's file; Ctrl-C passes through."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        where = "" if file is None else f"{_place(error, file)}: "
        raise InputError(f"{where}{what}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """An error's type and message, on one line."""
    try:
        said = " ".join(str(error).split())
    except Exception:  # str() of it fails
        said = ""
    return type(error).__name__ + (f": {said}" if said else "")


def _place(error: BaseException, file: Path) -> str:
    """`file`, with the innermost of its lines in the traceback, if any."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file) or Path(frame.filename) == file.resolve()
    ]
    if isinstance(error, SyntaxError) and error.filename == str(file.resolve()):
        lines = [error.lineno]
    return f"{file}:{lines[-1]}" if lines else str(file)
