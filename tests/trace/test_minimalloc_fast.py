"""Large CSV files, read by columns: the same problems, and the same refusals."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.core.problem import Problem
from memplan.errors import FormatError
from memplan.trace.importers import minimalloc, minimalloc_fast
from memplan.trace.importers.minimalloc import read_minimalloc

HEADERS = (
    "id,lower,upper,size",
    "size,upper,lower,buffer",
    "buffer_id,start,end,size",
    "id,lower,upper,size,alignment,hint,offset",
    "id,lower,upper,size,gaps",
)
# What one field of a sound file may become.
ODD = ("", " 7 ", "+7", "-1", "0x10", "007", "1_000", "1e3", "7.0", "٧", '"7"', "nan")
ODD += ("NULL", "9223372036854775807", "9223372036854775808", "1,2", "3\r", "x\ty", "a")
ODD += ("5\n", "6\n\n", "\0", "-0", "0", "3-5")


def outcome(path: Path, least: int, monkeypatch: pytest.MonkeyPatch) -> object:
    """The problem that a file holds, or why it holds none; by columns from `least`."""
    with monkeypatch.context() as patch:
        patch.setattr(minimalloc, "LEAST_BYTES", least)
        try:
            found = read_minimalloc(path)
        except FormatError as error:
            return str(error)
    arrays = (found.lower, found.upper, found.size, found.alignment, found.fixed)
    gaps = None if found.gaps is None else [c.tolist() for c in found.gaps.columns]
    return [array.tolist() for array in arrays], found.labels, gaps


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A sound file, or nearly so."""
    header = draw(st.sampled_from(HEADERS))
    rows = []
    for i in range(draw(st.integers(0, 5))):
        lower = draw(st.integers(0, 9))
        upper = lower + draw(st.integers(1, 9))
        known = {"size": draw(st.integers(1, 1 << 40)), "alignment": 1, "hint": -1}
        known |= {"lower": lower, "start": lower, "upper": upper, "end": upper}
        known |= {"offset": draw(st.integers(-1, 4))}
        fields = [str(known.get(name, "")) for name in header.split(",")]
        names = [k for k, name in enumerate(header.split(",")) if name.startswith("bu")]
        fields[(names or [0])[0]] = draw(st.sampled_from((f"b{i}", str(i), "é", "a b")))
        rows.append(fields)
    if rows and draw(st.booleans()):
        row = draw(st.sampled_from(rows))
        row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from(ODD))
    ending = draw(st.sampled_from(("\n", "\r\n")))
    text = ending.join([header, *map(",".join, rows)])
    text += draw(st.sampled_from(("", ending, ending * 2)))
    prefix = draw(st.sampled_from((b"", b"\xef\xbb\xbf")))
    return prefix + text.encode()


@settings(max_examples=400, deadline=None)
@given(files())
def test_columns_and_lines_come_to_the_same(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "x.csv"
        path.write_bytes(data)
        assert outcome(path, 0, patch) == outcome(path, 1 << 30, patch)


def large(count: int) -> Problem:
    rng = np.random.default_rng(3)
    lower = rng.integers(0, count, count)
    labels = [f"b{i}" for i in range(count)]
    upper = lower + rng.integers(1, 99, count)
    return Problem.of(lower, upper, rng.integers(1, 1 << 40, count), labels=labels)


def test_a_large_file_is_read_by_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = large(60_000)
    rows = (f"{b.id},{b.lower},{b.upper},{b.size}\n" for b in problem)
    path = tmp_path / "large.csv"
    path.write_text("id,lower,upper,size\n" + "".join(rows))
    asked = []
    read = minimalloc_fast.read_columns

    def counted(data: bytes, names: list[str]) -> minimalloc_fast.Columns | None:
        asked.append(names)
        return read(data, names)

    monkeypatch.setattr(minimalloc_fast, "read_columns", counted)
    found = read_minimalloc(path)
    assert asked == [["id", "lower", "upper", "size"]]
    assert found.fingerprint() == problem.fingerprint()
    assert found.labels == problem.labels


@pytest.mark.parametrize("field", ["0x10", "9 9", "", "-4", "99999999999999999999"])
def test_what_is_wrong_in_a_large_file_is_told_with_its_line(
    tmp_path: Path, field: str
) -> None:
    rows = [f"b{i},0,5,100\n" for i in range(120_000)]
    rows[100_000] = f"b100000,0,5,{field}\n"
    path = tmp_path / "large.csv"
    path.write_text("id,lower,upper,size\n" + "".join(rows))
    with pytest.raises(FormatError, match="line 100002, column size: "):
        read_minimalloc(path)
