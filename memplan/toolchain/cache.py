"""A cache folder of compiled code, by the SHA-256 of all its inputs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from pathlib import Path

from memplan.errors import EnvironmentUnfitError, InputError, UsageError
from memplan.files import PathLike, atomic_write, read_bytes
from memplan.units import parse_bytes

_DIGEST = 32  # bytes of a SHA-256
_KEY = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[a-z0-9]+")
_ENTRY = re.compile(_KEY.pattern + _SUFFIX.pattern)
LIMIT = 512 << 20  # bytes of all entries together


def default_folder() -> Path:
    """$MEMPLAN_CACHE_DIR, else memplan in $XDG_CACHE_HOME, else in ~/.cache."""
    if named := os.environ.get("MEMPLAN_CACHE_DIR"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # unset, or as its specification says, of no account
        base = os.path.expanduser("~/.cache")
    return Path(base) / "memplan"


def default_limit() -> int:
    """Bytes: $MEMPLAN_CACHE_LIMIT, as in "200MB", else LIMIT.

    Raises EnvironmentUnfitError where that is no size.
    """
    named = os.environ.get("MEMPLAN_CACHE_LIMIT")
    try:
        return parse_bytes(named) if named else LIMIT
    except UsageError as error:
        raise EnvironmentUnfitError(f"MEMPLAN_CACHE_LIMIT: {error}") from None


class Cache:
    """Entries of bytes in a folder that only this user can write to.

    An entry is a file KEY.SUFFIX: its bytes, followed by their SHA-256. Libraries and
    cubins may have bytes behind them, so `find` returns the file itself. Entries appear
    whole or not at all; damaged ones and those of other users are ignored. If they
    exceed the limit, the least recently used are deleted. Entries run as code, so write
    access to the folder is the right to run code as this user.
    """

    def __init__(
        self, folder: PathLike | None = None, limit: int | None = None
    ) -> None:
        """folder: made, with mode 0700, if it is not there; `default_folder` if None.
        limit: bytes of all entries together; `default_limit` if None.

        Raises EnvironmentUnfitError if it is no folder, belongs to another user, or if
        others can write to it or replace it. A folder that cannot be created stays
        empty.
        """
        self.limit = default_limit() if limit is None else limit
        folder = default_folder() if folder is None else folder
        self.folder = Path(os.path.realpath(folder))
        with contextlib.suppress(OSError):
            _make(self.folder)
        _refuse_unless_private(self.folder)

    def find(self, key: str, suffix: str) -> Path | None:
        """The file of a whole entry, to be loaded or copied; None if there is none."""
        path = self._path(key, suffix)
        return path if self._whole(path) is not None else None

    def read(self, key: str, suffix: str) -> bytes | None:
        """The bytes that were written; None if there are none, or not all of them."""
        return self._whole(self._path(key, suffix))

    def write(self, key: str, suffix: str, data: bytes) -> Path | None:
        """Keep `data`; the file it is in, or None if the disk or folder takes none."""
        path = self._path(key, suffix)
        try:
            with atomic_write(path) as stream:
                stream.write(data)
                stream.write(hashlib.sha256(data).digest())
        except (EnvironmentUnfitError, UsageError):  # full, read-only, a folder there
            return None
        self._trim(path)
        return path

    def _trim(self, newest: Path) -> None:
        """Delete the least recently used entries beyond the limit, but not `newest`."""
        found: list[tuple[int, int, str]] = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for each in entries:
                with contextlib.suppress(OSError):  # removed by another just now
                    if _ENTRY.fullmatch(each.name) and each.is_file():
                        stat_ = each.stat()
                        found.append((stat_.st_mtime_ns, stat_.st_size, each.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                break
            if path != str(newest):
                total -= size
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _path(self, key: str, suffix: str) -> Path:
        if not _KEY.fullmatch(key) or not _SUFFIX.fullmatch(suffix):
            raise UsageError(f"{key}{suffix}: not a SHA-256 in hex and a suffix")
        return self.folder / (key + suffix)

    def _whole(self, path: Path) -> bytes | None:
        try:
            if os.lstat(path).st_uid != os.geteuid():
                return None
            data = read_bytes(path)
        except (OSError, InputError):
            return None
        content, digest = data[:-_DIGEST], data[-_DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # when it was used last
        return content


def _make(folder: Path) -> None:
    """Make the folder and those it is in: none of them for others."""
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(0o700, exist_ok=True)


def _refuse_unless_private(folder: Path) -> None:
    remedy = "set MEMPLAN_CACHE_DIR to a folder of your own"
    try:
        found = os.stat(folder)
    except OSError:
        return  # neither there nor to be made
    if not stat.S_ISDIR(found.st_mode):
        raise EnvironmentUnfitError(f"{folder} is not a folder; {remedy}")
    if found.st_uid != os.geteuid():
        raise EnvironmentUnfitError(f"{folder} belongs to another user; {remedy}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EnvironmentUnfitError(
            f"{folder} can be written to by others; run chmod go-w on it, or {remedy}"
        )
    for parent in folder.parents:
        with contextlib.suppress(OSError):
            mode = os.stat(parent).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise EnvironmentUnfitError(
                    f"{folder} can be replaced by others, who can write to {parent}; "
                    f"run chmod o-w on that, or {remedy}"
                )
