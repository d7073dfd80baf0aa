"""Open files: the only module that writes, and one that limits what is read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from memplan.errors import (
    EnvironmentUnfitError,
    FormatError,
    InputError,
    UsageError,
)
from memplan.limits import MAX_FILE_BYTES
from memplan.streams import standard_output

PathLike = str | os.PathLike[str]

STDOUT = Path("/dev/stdout")  # stands for `-o -`: written to, never replaced

_MOST_OF_NAME = 200  # bytes; names have up to 255, and 13 follow
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def refuse_overwrite(path: Path, force: bool) -> None:
    """Raise UsageError if `path` must not be written.

    That is, if it exists and `force` is off, if its folder does not exist, or if it is
    not a regular file. A symbolic link stands for its target. STDOUT is always allowed.
    """
    if path == STDOUT:
        return
    target = _destination(path)
    if target.exists() and not force:
        raise UsageError(f"{path} exists; pass --force (force=True) to replace it")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is not a folder; create it or name another")


def _destination(path: Path) -> Path:
    """The file to create or replace: `path`, or its target if it is a link.

    Raises UsageError if something other than a regular file is there.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = stat.S_IFREG  # does not exist yet
    except ValueError:
        name = os.fspath(path)
        raise UsageError(f"{name!r}: not a file name; it contains a NUL byte") from None
    except OSError as error:
        raise EnvironmentUnfitError(_cannot_write(path, error)) from error
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise UsageError(f"{path} is {kind}; name a file")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextlib.contextmanager
def atomic_write(path: PathLike) -> Iterator[IO[bytes]]:
    """A binary file that appears at `path` whole, or not at all.

    It is written beside the target (a rename is atomic only within a file system),
    synced, renamed over the target, and the folder is synced. Leftovers of killed
    writers of the same file are removed. A symbolic link stays and its target is
    replaced or created. Output to STDOUT is not delayed.

    Raises UsageError if `path` is a folder, a device, a pipe or a socket;
    EnvironmentUnfitError if the disk is full or the folder is not writable, and then
    keeps the old file; ReaderGoneError if STDOUT is a pipe without a reader.
    """
    named = Path(path)
    if named == STDOUT:
        with standard_output() as stream:
            yield stream
        return
    target = _destination(named)
    temporary = None
    try:
        _remove_leftovers(target)
        descriptor, temporary = _locked_temporary(target)
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            os.chmod(temporary, _mode(target))
            if _destination(named) != target:
                raise UsageError(
                    f"{named} changed its target meanwhile; run the command again"
                )
            os.replace(temporary, target)  # still locked
            temporary = None
        _sync_folder(target.parent)
    except OSError as error:
        raise EnvironmentUnfitError(_cannot_write(named, error)) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _locked_temporary(target: Path) -> tuple[int, str]:
    """A new locked file beside `target`: its descriptor and name."""
    while True:
        descriptor, name = tempfile.mkstemp(
            prefix=_prefix(target), suffix=".part", dir=target.parent
        )
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, name
        os.close(descriptor)  # another writer removed it before the lock


def _prefix(target: Path) -> str:
    """The prefix of temporary names: `target`'s name, cut if it is too long."""
    whole = f".{target.name}."
    short = os.fsencode(whole)[:_MOST_OF_NAME].decode("utf-8", "ignore")
    return whole if len(os.fsencode(whole)) <= _MOST_OF_NAME else short


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files of `target` without a lock: nobody writes them."""
    left = re.compile(rf"{re.escape(_prefix(target))}[a-z0-9_]{{8}}\.part")
    with contextlib.suppress(OSError):
        for name in filter(left.fullmatch, os.listdir(target.parent)):
            with contextlib.suppress(OSError):
                _remove_unless_locked(target.parent / name)


def _remove_unless_locked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)


def open_journal(path: PathLike, force: bool = False) -> int:
    """A descriptor to append to a new, empty file at `path`; the caller closes it.

    The file is locked while the descriptor is open. Raises UsageError if another
    process writes it, if it exists and `force` is off (it may hold the only copy of a
    killed recording), or if it is not a regular file.
    """
    name = os.fspath(_destination(Path(path)))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags if force else flags | os.O_EXCL, 0o666)
    except FileExistsError:
        raise UsageError(
            f"{name} is the journal of a running or killed recording; "
            "run memplan recover on it, or pass --force (force=True) to delete it"
        ) from None
    except OSError as error:
        raise EnvironmentUnfitError(_cannot_write(Path(path), error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise UsageError(
            f"another recording is writing {name}; name another file"
        ) from None
    return descriptor


def write_bytes(path: PathLike, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with atomic_write(path) as stream:
        stream.write(data)


def append_text(path: PathLike, text: str) -> None:
    """Append to a file that others write, too; create it if needed.

    Raises EnvironmentUnfitError if it cannot be written.
    """
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise EnvironmentUnfitError(_cannot_write(Path(path), error)) from error


@contextlib.contextmanager
def open_input(
    path: PathLike, limit: int = MAX_FILE_BYTES
) -> Iterator[tuple[IO[bytes], int]]:
    """A regular, non-empty file opened for reading, and its size in bytes.

    Raises InputError if it is missing, not a regular file, empty, above `limit` bytes,
    unreadable, or larger than memory.
    """
    name = os.fspath(path)
    try:
        _refuse_unless_regular(name)
        with open(name, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size == 0:
                raise FormatError(name, "the file is empty", "write it again")
            if size > limit:
                raise InputError(f"{name}: {size} bytes, above the limit of {limit}")
            yield stream, size
    except FileNotFoundError:
        raise InputError(f"{name}: no such file; check the path") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"{name}: cannot be read ({why}); check the file") from error
    except MemoryError:
        raise InputError(
            f"{name}: not enough memory to read it; use a smaller file"
        ) from None
    except RecursionError:
        raise FormatError(name, "nested too deeply") from None


def _refuse_unless_regular(name: str) -> None:
    """Check before opening: opening a pipe would wait for its other end."""
    try:
        mode = os.stat(name).st_mode
    except ValueError:
        raise InputError(f"{name!r}: not a file name; it contains a NUL byte") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{name} is a folder; name a file")
    if not stat.S_ISREG(mode):
        raise InputError(f"{name} is not a regular file; save it to one first")


def read_bytes(path: PathLike, limit: int = MAX_FILE_BYTES) -> bytes:
    """The whole of a regular, non-empty file; raises as `open_input` does."""
    with open_input(path, limit) as (stream, size):
        return stream.read(size)


def _mode(target: Path) -> int:
    """The permissions of the replaced file, or those of a new one."""
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
