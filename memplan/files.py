"""The one place that opens files for writing, and that caps what is read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from memplan.errors import EnvironmentUnfitError, FormatError, InputError, UsageError
from memplan.limits import MAX_FILE_BYTES

PathLike = str | os.PathLike[str]


def refuse_overwrite(path: Path, force: bool) -> None:
    """Raise UsageError if `path` exists and `force` is off, or its folder does not."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; pass --force (force=True) to replace it")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; make it, or name another")


@contextlib.contextmanager
def atomic_write(path: PathLike) -> Iterator[IO[bytes]]:
    """A binary file that appears at `path` whole, or not at all.

    Written beside the target, synced, renamed over it, and the folder synced:
    a rename is atomic only within one file system. Raises EnvironmentUnfitError
    when the disk is full or the folder refuses; the old file is left as it was.
    """
    target = Path(path)
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=".part", dir=target.parent
        )
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
        temporary = None
        _sync_folder(target.parent)
    except OSError as error:
        raise EnvironmentUnfitError(_cannot_write(target, error)) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def open_journal(path: PathLike, force: bool = False) -> int:
    """A descriptor to append to a new, empty file at `path`; the caller closes it.

    The file is locked as long as the descriptor is open. Raises UsageError if another
    process is writing it, or if it is there and `force` is off: it may hold the only
    copy of a recording that was cut off.
    """
    name = os.fspath(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags if force else flags | os.O_EXCL, 0o666)
    except FileExistsError:
        raise UsageError(
            f"{name} is the journal of a recording that is running or was cut off; "
            "run memplan recover on it, or pass --force to throw it away"
        ) from None
    except OSError as error:
        raise EnvironmentUnfitError(_cannot_write(Path(path), error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise UsageError(
            f"{name} is being written by another recording; name another file"
        ) from None
    return descriptor


def write_bytes(path: PathLike, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with atomic_write(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def open_input(
    path: PathLike, limit: int = MAX_FILE_BYTES
) -> Iterator[tuple[IO[bytes], int]]:
    """A regular, non-empty file opened for reading, and its size in bytes.

    Raises InputError if it is missing, a folder, a pipe or a device, empty, above
    `limit` bytes, or fails while it is being read.
    """
    name = os.fspath(path)
    try:
        _refuse_unless_regular(name)
        with open(name, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size == 0:
                raise FormatError(name, "the file is empty", "record it again")
            if size > limit:
                raise InputError(f"{name}: {size} bytes, above the limit of {limit}")
            yield stream, size
    except FileNotFoundError:
        raise InputError(f"{name}: no such file; check the path") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"{name}: cannot be read ({why}); check the file") from error


def _refuse_unless_regular(name: str) -> None:
    """A look before opening: to open a pipe would wait for its other end."""
    try:
        mode = os.stat(name).st_mode
    except ValueError:
        raise InputError(f"{name!r}: not a file name, it holds a NUL byte") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{name} is a folder; name a file")
    if not stat.S_ISREG(mode):
        raise InputError(f"{name} is not a regular file; save it to one first")


def read_bytes(path: PathLike, limit: int = MAX_FILE_BYTES) -> bytes:
    """The whole of a regular, non-empty file; raises as `open_input` does."""
    with open_input(path, limit) as (stream, size):
        return stream.read(size)


def _mode(target: Path) -> int:
    """The permissions of the file replaced, or those a new file would get."""
    with contextlib.suppress(OSError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems cannot sync a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _cannot_write(target: Path, error: OSError) -> str:
    remedy = {
        errno.ENOSPC: "free some space or write elsewhere",
        errno.EDQUOT: "free some of your quota or write elsewhere",
        errno.EACCES: "check the folder's permissions",
        errno.EROFS: "the file system is read-only; write elsewhere",
    }.get(error.errno or 0, "write elsewhere")
    return f"{target}: cannot be written ({error.strerror}); {remedy}"
