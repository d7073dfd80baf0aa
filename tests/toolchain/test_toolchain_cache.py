"""The folder of compiled things: whole entries only, and nobody else's."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

import memplan.files
from memplan.errors import EnvironmentUnfitError, UsageError
from memplan.toolchain.cache import LIMIT, Cache, default_folder

KEY = hashlib.sha256(b"what went into it").hexdigest()
OTHER = hashlib.sha256(b"something else").hexdigest()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 300])
def test_what_is_written_is_read(cache: Cache, data: bytes) -> None:
    path = cache.write(KEY, ".so", data)
    assert path == cache.find(KEY, ".so")
    assert cache.read(KEY, ".so") == data
    assert path is not None
    assert path.read_bytes().startswith(data)


@pytest.mark.parametrize(
    ("key", "suffix"),
    [(key, ".so") for key in ("", "x" * 64, "../" + KEY, KEY.upper(), KEY + "0")]
    + [(KEY, suffix) for suffix in ("", "so", "./x", ".so/..", ".SO\n")],
)
def test_a_key_is_a_hash_and_a_suffix_is_one(
    cache: Cache, key: str, suffix: str
) -> None:
    with pytest.raises(UsageError, match="not a SHA-256 in hex and a suffix"):
        cache.write(key, suffix, b"")


def test_a_damaged_entry_is_none_and_is_made_anew(cache: Cache) -> None:
    path = cache.write(KEY, ".so", b"library of some length")
    assert path is not None
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in range(len(whole))]
    damaged += [
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        for at in range(len(whole))
    ]
    for data in [*damaged, whole + b"x"]:
        path.write_bytes(data)
        assert cache.read(KEY, ".so") is None
        assert cache.find(KEY, ".so") is None
    cache.write(KEY, ".so", b"again")
    assert cache.read(KEY, ".so") == b"again"


def test_the_folder_and_those_above_are_made_for_one_user(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Cache(tmp_path / "home" / ".cache" / "memplan")
    finally:
        os.umask(before)
    for folder in ("home", "home/.cache", "home/.cache/memplan"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777, 0o720])
def test_a_folder_that_others_can_write_to_is_refused(
    tmp_path: Path, mode: int
) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(EnvironmentUnfitError, match="chmod go-w") as refused:
        Cache(folder)
    assert str(folder) in str(refused.value)
    folder.chmod(0o755)
    assert Cache(folder).write(KEY, ".so", b"x")


def test_a_folder_in_one_that_all_can_write_to_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    (above / "cache").mkdir(parents=True)
    above.chmod(0o777)
    with pytest.raises(EnvironmentUnfitError, match="can be replaced by others"):
        Cache(above / "cache")
    above.chmod(0o1777)  # as /tmp is: only the owner may rename
    Cache(above / "cache")


def test_a_folder_and_an_entry_of_another_user_are_refused(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write(KEY, ".so", b"x")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert cache.read(KEY, ".so") is None
    with pytest.raises(EnvironmentUnfitError, match="belongs to another user"):
        Cache(cache.folder)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnfitError, match="is not a folder"):
        Cache(tmp_path / "file")
    cache = Cache(tmp_path / "file" / "cache")  # which cannot be made
    assert cache.write(KEY, ".so", b"x") is None
    assert cache.read(KEY, ".so") is None


def test_a_full_disk_takes_nothing_and_leaves_nothing(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memplan.files.os, "fsync", full)
    assert cache.write(KEY, ".so", b"x" * 4096) is None
    monkeypatch.undo()
    assert list(cache.folder.iterdir()) == []


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "named"
    monkeypatch.delenv("MEMPLAN_CACHE_DIR")
    assert default_folder() == tmp_path / "xdg" / "memplan"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == tmp_path / "home" / ".cache" / "memplan"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == tmp_path / "home" / ".cache" / "memplan"
    assert Cache().folder == (tmp_path / "home" / ".cache" / "memplan").resolve()


def aged(cache: Cache, count: int) -> list[str]:
    """Keys of entries of 1000 bytes, each a minute younger than the one before."""
    keys = [hashlib.sha256(bytes([each])).hexdigest() for each in range(count)]
    for age, key in enumerate(reversed(keys), 1):
        path = cache.write(key, ".so", bytes(1000))
        assert path is not None
        long_ago = path.stat().st_mtime - 60 * age
        os.utime(path, (long_ago, long_ago))
    return keys


def left(cache: Cache, keys: list[str]) -> list[int]:
    return [at for at, key in enumerate(keys) if (cache.folder / f"{key}.so").exists()]


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit=4 * 1032)
    keys = aged(cache, 4)
    other = cache.folder / "notes.txt"
    other.write_bytes(bytes(10_000))  # it is none of ours
    assert cache.find(keys[0], ".so")  # now it has been used
    cache.write(KEY, ".json", bytes(1000))
    assert left(cache, keys) == [0, 2, 3]
    cache.write(OTHER, ".so", bytes(2032))
    assert left(cache, keys) == [0]
    assert cache.read(KEY, ".json") is not None
    assert other.exists()


def test_an_entry_beyond_the_limit_is_kept_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit=0)
    keys = aged(cache, 3)
    assert left(cache, keys) == [0]
    assert cache.read(keys[0], ".so") == bytes(1000)
    assert cache.write(KEY, ".so", b"x")
    assert left(cache, keys) == []


def test_the_limit_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMPLAN_CACHE_LIMIT", raising=False)
    assert Cache(tmp_path).limit == LIMIT
    monkeypatch.setenv("MEMPLAN_CACHE_LIMIT", "3KiB")
    assert Cache(tmp_path).limit == 3072
    assert Cache(tmp_path, limit=5).limit == 5
    monkeypatch.setenv("MEMPLAN_CACHE_LIMIT", "much")
    with pytest.raises(EnvironmentUnfitError, match="MEMPLAN_CACHE_LIMIT: 'much'"):
        Cache(tmp_path)
