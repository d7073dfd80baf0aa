"""The one place that opens files for writing, and that caps what is read."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from memplan.errors import EnvironmentUnfitError, InputError, UsageError

MAX_FILE_BYTES = 2 << 30


def refuse_overwrite(path: Path, force: bool) -> None:
    """Raise UsageError if `path` exists and `force` is off, or its folder does not."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; pass --force (force=True) to replace it")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; make it, or name another")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
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


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with atomic_write(path) as stream:
        stream.write(data)


def read_bytes(path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> bytes:
    """The whole file; InputError if missing, unreadable or above `limit` bytes."""
    source = Path(path)
    try:
        if source.is_dir():
            raise InputError(f"{source} is a folder; name a file")
        size = source.stat().st_size
        if size > limit:
            raise InputError(f"{source}: {size} bytes, more than the limit of {limit}")
        return source.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{source}: no such file") from None
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror})") from error


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
