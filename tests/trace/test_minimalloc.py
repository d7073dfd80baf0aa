"""MiniMalloc's CSV: both forms of its header, and everything that may be wrong."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan.core.problem import FREE, Problem
from memplan.errors import FormatError, InputError
from memplan.formats.sniff import sniff
from memplan.trace.exporters.minimalloc import write_minimalloc
from memplan.trace.importers import importer_of, minimalloc
from memplan.trace.importers.minimalloc import parse_gaps, read_minimalloc
from memplan.trace.read import read_input
from tests.gap_samples import gapped
from tests.strategies import examples

HEADER = "id,lower,upper,size"


def read(folder: Path, text: str | bytes) -> Problem:
    path = folder / "p.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_minimalloc(path)


def refusal(folder: Path, text: str | bytes) -> str:
    with pytest.raises(FormatError) as caught:
        read(folder, text)
    assert str(caught.value).startswith(f"{folder / 'p.csv'}: ")
    return str(caught.value)


def rows(problem: Problem) -> list[tuple[str, int, int, int]]:
    return [(b.id, b.lower, b.upper, b.size) for b in problem]


def test_a_file_with_exclusive_ends(tmp_path):
    problem = read(tmp_path, f"{HEADER}\nb1,0,3,4\nb2,3,9,5\n")
    assert rows(problem) == [("b1", 0, 3, 4), ("b2", 3, 9, 5)]
    assert problem.alignment.tolist() == [1, 1]
    assert problem.fixed.tolist() == [FREE, FREE]
    assert problem.length is None


@pytest.mark.parametrize("start", ["start", "begin", "lower"])
@pytest.mark.parametrize("name", ["id", "buffer", "buffer_id"])
def test_a_file_with_inclusive_ends(tmp_path, start, name):
    problem = read(tmp_path, f"size,end,{name},{start}\n4,2,b1,0\n5,3,b2,3\n")
    assert rows(problem) == [("b1", 0, 3, 4), ("b2", 3, 4, 5)]


def test_the_optional_columns(tmp_path):
    problem = read(
        tmp_path,
        "alignment,offset,hint,gaps,id,lower,upper,size\n"
        "64,128,-1,,a,0,1,1\n1,-1,77, ,b,0,1,1\n",
    )
    assert problem.alignment.tolist() == [64, 1]
    assert problem.fixed.tolist() == [128, FREE]


def test_line_ends_byte_order_mark_and_blanks_around_numbers(tmp_path):
    text = "\ufeff id , lower,upper ,size\r\n a, 1,\t2 ,+3\r\nb,1,2,3"
    assert rows(read(tmp_path, text)) == [(" a", 1, 2, 3), ("b", 1, 2, 3)]


def test_a_header_alone_is_an_empty_problem(tmp_path):
    assert len(read(tmp_path, HEADER)) == 0
    assert len(read(tmp_path, f"{HEADER}\n\n \n")) == 0


def test_the_largest_numbers(tmp_path):
    top = (1 << 63) - 1
    assert rows(read(tmp_path, f"{HEADER}\na,0,{top},1\n")) == [("a", 0, top, 1)]
    assert f"column upper: '{top + 1}' is not from" in (
        refusal(tmp_path, f"{HEADER}\na,0,{top + 1},1\n")
    )
    text = f"id,lower,end,size\na,0,{top - 1},1\n"
    assert rows(read(tmp_path, text)) == [("a", 0, top, 1)]
    assert f"column end: '{top}' is not from 0 to {top - 1}" in (
        refusal(tmp_path, f"id,lower,end,size\na,0,{top},1\n")
    )


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("id,lower,upper", "line 1: no column size"),
        ("id,lower,upper,size,colour", "line 1: unknown column 'colour'; known are"),
        ("id,lower,upper,size,", "line 1: unknown column ''"),
        ("id,lower,upper,size,end", "columns upper and end mean the same; remove"),
        ("id,lower,upper,size,start", "columns lower and start mean the same"),
    ],
)
def test_a_header_that_is_not_allowed(tmp_path, header, problem):
    assert problem in refusal(tmp_path, f"{header}\na,0,1,2\n")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("x,0,1", "line 4: 3 fields, the header has 4"),
        ("x,0,1,2,", "line 4: 5 fields, the header has 4"),
        ("x,0,1,1.0", "line 4, column size: '1.0' is not an integer"),
        ("x,0,1,0x10", "line 4, column size: '0x10' is not an integer"),
        ("x,0,1,1_000", "line 4, column size: '1_000' is not an integer"),
        ("x,0,1,\u0663", r"line 4, column size: '\u0663' is not an integer"),
        ("x,0,1,0", "line 4, column size: '0' is not from 1 to"),
        ("x,-1,1,5", "line 4, column lower: '-1' is not from 0 to"),
        ("x,0,1,9223372036854775808", "line 4, column size: '9223372036854775808'"),
        ("x,0,1," + "9" * 5000, "line 4, column size: '9999"),
        ("x,1,1,5", "line 4, column upper: lower 1 is not before upper 1 (exclusive)"),
        ("a,0,1,5", "line 4, column id: 'a' is the id of line 2 too"),
        ("\n\nx,0,1,5", "line 6 comes after a blank line, where MiniMalloc stops; del"),
        ("x\ty,0,1,5\0", "line 4, column size: '5\\x00' is not an integer"),
    ],
)
def test_a_row_that_is_not_allowed(tmp_path, row, problem):
    message = refusal(tmp_path, f"{HEADER}\na,0,1,2\nb,0,1,2\n{row}\nz,0,1,1\n")
    assert problem in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("alignment", "0", "line 2, column alignment: '0' is not from 1 to"),
        ("hint", "-2", "line 2, column hint: '-2' is not from -1 to"),
        ("offset", "-2", "line 2, column offset: '-2' is not from -1 to"),
        ("offset", "", "line 2, column offset: '' is not an integer"),
        ("gaps", "1-2 5-8@0:5", "buffer a: the gap [5, 8) with bytes [0, 5) has a win"),
        ("gaps", "1-4 3-5", "buffer a: the gap [3, 5) begins before the gap before it"),
        ("gaps", "5-10", "buffer a: the gap [5, 10) leaves its lifespan; it lives in"),
        ("gaps", "1:2", "line 2, column gaps: '1:2' is not a gap; write lower-upper"),
        ("gaps", "3-3", "line 2, column gaps: the gap '3-3' is empty"),
    ],
)
def test_an_optional_field_that_is_not_allowed(tmp_path, column, value, problem):
    text = f"{HEADER},{column}\na,0,9,4,{value}\n"
    assert problem in refusal(tmp_path, text)


def test_what_only_the_problem_knows_to_be_wrong_names_the_file_too(tmp_path):
    text = f"{HEADER},alignment,offset\na,0,9,4,64,100\n"
    assert "buffer a: fixed offset 100 is not a multiple of its alignment 64" in (
        refusal(tmp_path, text)
    )
    text = f"{HEADER}\na,0,9,{(1 << 63) - 1}\n"
    assert "more than 2^62" in refusal(tmp_path, text)


def test_text_that_is_not_utf_8_names_its_line(tmp_path):
    assert "line 3: not UTF-8 text" in refusal(
        tmp_path, f"{HEADER}\na,0,1,2\n\xff,0,1,2\n".encode("latin-1")
    )


def test_gaps():
    assert list(parse_gaps("1-2  5-8@0:4")) == [(1, 2, 0, 0), (5, 8, 0, 4)]
    assert list(parse_gaps("3-3", inclusive=True)) == [(3, 4, 0, 0)]
    assert list(parse_gaps(" ")) == []
    for stray in ("1", "1-", "-1-2", "1-2@", "1-2@3", "1-2,3-4", "1-" + "9" * 5000):
        with pytest.raises(InputError, match="is not a gap"):
            list(parse_gaps(stray))
    top = (1 << 63) - 1
    assert list(parse_gaps(f"0-{top}@0:{top}")) == [(0, top, 0, top)]
    for far, inclusive in ((f"0-{top + 1}", False), (f"0-{top}", True)):
        with pytest.raises(InputError, match=r"goes beyond 2.63 - 1"):
            list(parse_gaps(far, inclusive))
    with pytest.raises(InputError, match=r"goes beyond 2.63 - 1"):
        list(parse_gaps(f"0-1@0:{top + 1}"))
    for empty in ("2-1", "1-1", "1-2@3:3"):
        with pytest.raises(InputError, match="is empty"):
            list(parse_gaps(empty))


def test_gaps_in_both_forms_of_the_header(tmp_path):
    expected = [[(1, 2), (5, 8, 0, 4)], [], [(3, 4)]]
    rows = "a,0,9,4,1-2 5-8@0:4\nb,2,3,1,\nc,3,9,2, 3-4 \n"
    problem = read(tmp_path, f"{HEADER},gaps\n{rows}")
    assert problem.gaps.by_buffer(3) == expected
    rows = "1-1 5-7@0:4,a,0,8,4\n,b,2,2,1\n3-3,c,3,8,2\n"
    again = read(tmp_path, f"gaps,id,start,end,size\n{rows}")
    assert again.gaps.by_buffer(3) == expected
    assert again.fingerprint() == problem.fingerprint()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(problem=gapped(fixed=True))
def test_gaps_that_are_written_are_read(tmp_path, problem):
    write_minimalloc(problem, tmp_path / "p.csv")
    again = read_minimalloc(tmp_path / "p.csv")
    assert again.fingerprint() == problem.fingerprint()
    assert (again.gaps is None) == (problem.gaps is None)


ID = st.text(st.characters(exclude_characters=",\n\r", exclude_categories=["Cs"]))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    ids = draw(st.lists(ID, unique=True, max_size=8))
    n = len(ids)
    many = {"min_size": n, "max_size": n}
    lower = draw(st.lists(st.integers(0, 1 << 60), **many))
    life = draw(st.lists(st.integers(1, 1 << 60), **many))
    alignment = draw(st.lists(st.sampled_from([1, 1, 64, 512]), **many))
    place = draw(st.lists(st.integers(0, 1000), **many))
    return Problem.of(
        lower,
        np.array(lower, dtype=np.int64) + np.array(life, dtype=np.int64),
        draw(st.lists(st.integers(1, 1 << 50), **many)),
        alignment=alignment,
        fixed=[
            a * p if p >= 0 else FREE for a, p in zip(alignment, place, strict=True)
        ],
        labels=ids,
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(problem=problems())
def test_what_is_written_is_read(tmp_path, problem):
    write_minimalloc(problem, tmp_path / "p.csv")
    again = read_minimalloc(tmp_path / "p.csv")
    for name in ("lower", "upper", "size", "alignment", "fixed"):
        assert getattr(again, name).tolist() == getattr(problem, name).tolist(), name
    assert again.labels == problem.labels


def test_a_problem_is_written_so(tmp_path):
    path = tmp_path / "p.csv"
    plain = Problem.of([0, 1], [2, 3], [4, 5])
    write_minimalloc(plain, path)
    assert path.read_text() == "id,lower,upper,size\n0,0,2,4\n1,1,3,5\n"
    write_minimalloc(plain, path, offsets=np.array([8, 0]))
    assert path.read_text() == "id,lower,upper,size,offset\n0,0,2,4,8\n1,1,3,5,0\n"
    fixed = Problem.of([0], [2], [4], alignment=64, fixed=128, labels=["w"])
    write_minimalloc(fixed, path)
    assert path.read_text() == (
        "id,lower,upper,size,alignment,offset\nw,0,2,4,64,128\n"
    )


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (["a,b", "c"], "buffer 0: its label 'a,b' cannot be an id"),
        (["a", "b\n"], "buffer 1: its label"),
        (["a", "\r"], "buffer 1: its label"),
        (["a", "\ud800"], "buffer 1: its label"),
        (["a", "a"], "labels are not unique"),
    ],
)
def test_labels_the_format_cannot_hold_are_refused(tmp_path, labels, problem):
    with pytest.raises(InputError) as caught:
        write_minimalloc(
            Problem.of([0, 0], [1, 1], 1 * [1, 1], labels=labels), tmp_path / "p.csv"
        )
    assert problem in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_wrap_around_lifespan_is_refused(tmp_path):
    problem = Problem.of([0, 5], [3, 2], [1, 1], length=8, labels=["a", "w"])
    with pytest.raises(InputError, match=r"buffer w wraps .* with --step all"):
        write_minimalloc(problem, tmp_path / "p.csv")


@pytest.mark.parametrize("offsets", [[0], [0.0, 1.0], [[0, 1]]])
def test_offsets_of_another_shape_or_kind_are_refused(tmp_path, offsets):
    problem = Problem.of([0, 0], [1, 1], [1, 1])
    with pytest.raises(InputError, match="need 2 integers"):
        write_minimalloc(problem, tmp_path / "p.csv", np.array(offsets))


# What one field of a sound file may become.
ODD = ("", " 7 ", "+7", "-1", "0x10", "007", "1_000", "1e3", "7.0", "٧", '"7"', "nan")
ODD += ("NULL", "9223372036854775807", "9223372036854775808", "1,2", "3\r", "x\ty", "a")
ODD += ("5\n", "6\n\n", "\0", "-0", "0", "3-5")
HEADERS = (
    "id,lower,upper,size",
    "buffer_id,start,end,size",
    "size,upper,lower,buffer,alignment,hint,offset",
    "id,lower,upper,size,gaps",
)


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
        label = draw(st.sampled_from((f"b{i}", str(i), "é", "a b")))
        known |= dict.fromkeys(("id", "buffer", "buffer_id"), label)
        known |= {"offset": draw(st.integers(-1, 4))}
        rows.append([str(known.get(name, "")) for name in header.split(",")])
    if rows and draw(st.booleans()):
        row = draw(st.sampled_from(rows))
        row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from(ODD))
    ending = draw(st.sampled_from(("\n", "\r\n")))
    text = ending.join([header, *map(",".join, rows)])
    text += draw(st.sampled_from(("", ending, ending * 2)))
    prefix = draw(st.sampled_from((b"", b"\xef\xbb\xbf")))
    return prefix + text.encode()


def outcome(path: Path) -> object:
    """The problem that a file holds, or why it holds none."""
    try:
        found = read_minimalloc(path)
    except FormatError as error:
        return str(error)
    gaps = None if found.gaps is None else [c.tolist() for c in found.gaps.columns]
    return found.fingerprint(), found.fixed.tolist(), found.labels, gaps


@examples(75, data=files(), soak=300)
def test_a_large_file_is_read_like_a_small_one(data):
    """Large files are read by columns wherever these leave no doubt."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "x.csv"
        path.write_bytes(data)
        small = outcome(path)
        patch.setattr(minimalloc, "LEAST_BYTES", 0)
        assert outcome(path) == small


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("b,0,5,100,", ""),
        ("b,0,5,99999999999999999999,", "line 60002, column size: '9"),
        ("b,0,5,100,4-3", "line 60002, column gaps: the gap '4-3' is empty"),
    ],
)
def test_what_is_wrong_in_a_large_file_is_told_with_its_line(tmp_path, row, told):
    lines = [f"b{i},0,5,100,1-2 3-4\n" for i in range(70_000)]
    lines[60_000] = f"{row}\n"
    text = f"{HEADER},gaps\n" + "".join(lines)
    assert len(text) > minimalloc.LEAST_BYTES
    if told:
        assert told in refusal(tmp_path, text)
    else:
        assert len(read(tmp_path, text).gaps.by_buffer(70_000)[60_001]) == 2


def test_commands_take_a_csv_file_by_its_header_or_its_name(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text(f"{HEADER}\na,0,1,2\n")
    assert isinstance(read_input(path), Problem)
    path = path.rename(tmp_path / "p.csv")
    path.write_text("idx,low,up\na,0,1\n")
    with pytest.raises(FormatError, match="line 1: unknown column 'idx'"):
        read_input(path)
    path = path.rename(tmp_path / "p.txt")
    with sniff(path) as file:
        assert importer_of(file) is None
