"""What goes wrong in reading Parquet, as this project's errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from memplan.errors import FormatError
from memplan.files import PathLike

_RAISED = OSError, ValueError, LookupError, ArithmeticError, RuntimeError, MemoryError


@contextlib.contextmanager
def as_format_errors(path: PathLike, library: type[Exception]) -> Iterator[None]:
    """pyarrow's many exceptions, its own and C++'s in Python's clothes, as FormatError.

    path: of the file, for the message. library: the root of pyarrow's own.
    """
    try:
        yield
    except (library, *_RAISED) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        reason = ascii(reason)[1:-1]  # bytes of the file may be in it
        problem = f"damaged Parquet data ({reason})"
        raise FormatError(path, problem, "the file may be cut off") from error
