"""Files are written whole or not at all, and nothing else is ever replaced."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memplan import files
from memplan.errors import (
    EnvironmentUnfitError,
    FormatError,
    InputError,
    ReaderGoneError,
    UsageError,
)
from memplan.files import (
    STDOUT,
    atomic_write,
    open_input,
    open_journal,
    read_bytes,
    refuse_overwrite,
    write_bytes,
)
from tests.conftest import ROOT


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def a_folder(path: Path) -> None:
    path.mkdir()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to(os.devnull)


MAKERS = (a_folder, a_pipe, a_socket, a_link_to_a_device)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_no_file_is_never_replaced(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "x"
    make(path)
    before = path.stat()
    kind = "a (folder|pipe|socket|device); name a file"
    for write in (
        lambda: refuse_overwrite(path, True),
        lambda: write_bytes(path, b"new"),
        lambda: open_journal(path, True),
    ):
        with pytest.raises(UsageError, match=kind):
            write()
    assert (path.stat().st_ino, path.stat().st_mode) == (before.st_ino, before.st_mode)
    assert names(tmp_path) == {"x"}


@pytest.mark.parametrize("make", MAKERS)
def test_what_comes_in_the_way_while_writing_is_not_replaced(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "x"
    with pytest.raises(UsageError, match="name a file"), atomic_write(path) as stream:
        stream.write(b"new")
        make(path)
    assert not path.is_file()
    assert names(tmp_path) == {"x"}


def test_a_link_that_is_turned_while_writing_is_noticed(tmp_path: Path) -> None:
    path, other = tmp_path / "x", tmp_path / "other"
    path.symlink_to("old")
    turned = pytest.raises(UsageError, match="changed its target meanwhile")
    with turned, atomic_write(path) as stream:
        stream.write(b"new")
        path.unlink()
        path.symlink_to(other)
    assert names(tmp_path) == {"x"}


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    path, middle, target = tmp_path / "x", tmp_path / "m", tmp_path / "far" / "t"
    path.symlink_to("m")
    middle.symlink_to("far/t")
    refuse_overwrite(path, False)  # the file it leads to is not there yet
    write_bytes(path, b"one")
    with pytest.raises(UsageError, match=r"x exists; pass --force"):
        refuse_overwrite(path, False)
    write_bytes(path, b"two")
    assert path.is_symlink() and middle.is_symlink() and not target.is_symlink()
    assert target.read_bytes() == b"two"
    assert names(target.parent) == {"t"}


def test_a_link_to_a_missing_folder_or_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.symlink_to("absent/t")
    with pytest.raises(UsageError, match="absent is not a folder"):
        refuse_overwrite(path, False)
    path.unlink()
    path.symlink_to("x")
    with pytest.raises(EnvironmentUnfitError, match="levels of symbolic links"):
        refuse_overwrite(path, True)
    assert path.is_symlink()


def test_names_that_are_no_names() -> None:
    with pytest.raises(UsageError, match="NUL byte"):
        refuse_overwrite(Path("a\0b"), True)
    with pytest.raises(EnvironmentUnfitError, match="too long"):
        refuse_overwrite(Path("a" * 5000), True)
    Path("file").write_bytes(b"")
    with pytest.raises(UsageError, match="file is not a folder"):
        refuse_overwrite(Path("file/x"), True)


def test_permissions_stay_and_new_files_get_the_usual_ones(tmp_path: Path) -> None:
    path = tmp_path / "x"
    mask = os.umask(0o027)
    try:
        write_bytes(path, b"one")
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    write_bytes(path, b"two")
    assert path.stat().st_mode & 0o777 == 0o604


def test_a_file_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        done.append("folder" if folder else "file")

    def replaced(source: str, target: Path) -> None:
        assert Path(source).read_bytes() == b"new"
        replace(source, target)
        done.append("name")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_bytes(tmp_path / "file", b"new")
    assert done == ["file", "name", "folder"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as stream:
        stream.write(b"new")
        raise ZeroDivisionError
    full = pytest.raises(EnvironmentUnfitError, match="free some space")
    with full, atomic_write(path) as stream:
        raise OSError(28, "No space left on device")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == {"x"}


LEFT = ".x.json.abc_1234.part"
NOT_OURS = {
    ".x.json.b.abcd1234.part",  # of x.json.b
    ".y.json.abcd1234.part",
    ".xxjson.abcd1234.part",
    ".x.json.abcd12345.part",
    ".x.json.part",
    "x.json.abcd1234.part",
}


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in {LEFT, *NOT_OURS}:
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / ".x.json.folder__.part").mkdir()
    write_bytes(tmp_path / "x.json", b"whole")
    assert names(tmp_path) == {"x.json", ".x.json.folder__.part", *NOT_OURS}


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, "\udcff" * 255])
def test_a_name_may_be_as_long_as_any(tmp_path: Path, name: str) -> None:
    for data in (b"one", b"two"):
        write_bytes(tmp_path / name, data)
        assert names(tmp_path) == {name}
        assert (tmp_path / name).read_bytes() == data
    with pytest.raises(KeyError), atomic_write(tmp_path / name):
        raise KeyError
    assert names(tmp_path) == {name}


def test_two_writers_of_one_file_do_not_take_each_other_for_dead(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.json"
    with atomic_write(path) as slow:
        slow.write(b"slow")
        write_bytes(path, b"fast")
        assert path.read_bytes() == b"fast"
        assert len(names(tmp_path)) == 2
    assert path.read_bytes() == b"slow"
    assert names(tmp_path) == {"x.json"}


WRITER = """\
import sys
from memplan.files import atomic_write
with atomic_write("x.json") as stream:
    stream.write(b"theirs")
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process in the middle of writing x.json, until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


def test_a_killed_writer_is_cleaned_up_after(
    tmp_path: Path, writer: subprocess.Popen[bytes]
) -> None:
    writer.send_signal(signal.SIGKILL)
    writer.wait(timeout=600)
    assert len(names(tmp_path)) == 1
    write_bytes(tmp_path / "x.json", b"ours")
    assert (tmp_path / "x.json").read_bytes() == b"ours"
    assert names(tmp_path) == {"x.json"}


def test_a_file_system_without_locks_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    (tmp_path / LEFT).write_bytes(b"whose?")
    write_bytes(tmp_path / "x.json", b"whole")
    assert names(tmp_path) == {"x.json", LEFT}


def test_standard_output_takes_files(capfd: pytest.CaptureFixture[str]) -> None:
    refuse_overwrite(STDOUT, False)
    write_bytes("/dev/stdout", b"one\n")
    with atomic_write(STDOUT) as stream:
        stream.write(b"two\n")
    assert capfd.readouterr().out == "one\ntwo\n"


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        ("r, w = os.pipe(); os.close(r); os.dup2(w, 1)", ReaderGoneError),
        ("os.dup2(os.open('/dev/full', os.O_WRONLY), 1)", EnvironmentUnfitError),
        ("sys.__stdout__ = None", EnvironmentUnfitError),
    ],
)
def test_standard_output_that_takes_none(prepare: str, error: type[Exception]) -> None:
    code = (
        f"import os, sys\nfrom memplan import errors, files\n{prepare}\n"
        "try: files.write_bytes('/dev/stdout', b'x')\n"
        f"except errors.{error.__name__}: os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == 9


@pytest.mark.parametrize("make", MAKERS)
def test_only_files_are_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x")
    with pytest.raises(InputError, match=r"x is (a folder|not a regular file)"):
        read_bytes(tmp_path / "x")


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (PermissionError(13, "Permission denied"), InputError, "cannot be read"),
        (OSError(5, "Input/output error"), InputError, "cannot be read"),
        (
            MemoryError(),
            InputError,
            "x: not enough memory to read it; use a smaller file",
        ),
        (RecursionError(), FormatError, "x: nested too deeply"),
    ],
)
def test_what_goes_wrong_in_reading_names_the_file(
    tmp_path: Path, raised: Exception, error: type[Exception], message: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"data")
    with pytest.raises(error, match=message), open_input(path):
        raise raised
