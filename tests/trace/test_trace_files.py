"""Reading and writing a trace in each of its forms, and whatever may go wrong."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from trace_samples import assert_same, sample, traces

from memplan.core.plan import RunStats
from memplan.errors import FormatError, InputError, UsageError
from memplan.trace import check, info, journal
from memplan.trace.read import read_trace
from memplan.trace.stacks import Frame, StackTable
from memplan.trace.trace import Columns, Trace, TraceInfo
from memplan.trace.write import SUFFIXES, write_trace

suffixes = pytest.mark.parametrize("suffix", SUFFIXES)
in_one_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@suffixes
@in_one_folder
@given(trace=traces())
def test_what_is_written_is_read(suffix, tmp_path, trace):
    path = tmp_path / f"t{suffix}"
    write_trace(trace, path)
    assert_same(read_trace(path), trace)


@suffixes
def test_an_empty_trace_is_a_trace(suffix, tmp_path):
    path = tmp_path / f"t{suffix}"
    write_trace(Trace(Columns.of()), path)
    assert_same(read_trace(path.rename(tmp_path / "t.bin")), Trace(Columns.of()))


@suffixes
def test_more_rows_than_are_written_at_a_time(suffix, tmp_path):
    trace = sample(pairs=40_000)
    path = tmp_path / f"t{suffix}"
    write_trace(trace, path)
    assert_same(read_trace(path), trace)


@suffixes
def test_the_same_trace_gives_the_same_bytes(suffix, tmp_path):
    paths = [tmp_path / "a" / f"t{suffix}", tmp_path / "b" / f"u{suffix}"]
    for path in paths:
        path.parent.mkdir()
        write_trace(sample(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@suffixes
def test_a_file_cut_anywhere_is_refused(suffix, tmp_path):
    path = tmp_path / f"t{suffix}"
    write_trace(sample(pairs=40 if suffix == ".json.gz" else 12), path)
    data = path.read_bytes()
    whole = data.rstrip(b"\n")
    for length in {*range(0, len(whole), 5), *range(len(whole) - 20, len(whole))}:
        path.write_bytes(data[:length])
        with pytest.raises(InputError) as caught:
            read_trace(path)
        assert caught.value.exit_code == 3
        assert str(path) in str(caught.value)


def unfit() -> list[tuple[Trace, str]]:
    """Traces that no reader takes, and what is said of them."""

    def events(**columns) -> Trace:
        return Trace(Columns.of(**columns))

    def about(**values) -> Trace:
        return Trace(Columns.of(), info=TraceInfo(**values))

    return [
        (events(action=[2, 8]), "row 1, column action: unknown action code 8"),
        (
            events(action=[4], requested_size=[7]),
            "row 0, column requested_size: unknown category code 7",
        ),
        (events(action=[2], mark=[4]), "row 0, column mark: unknown mark code 4"),
        (
            events(action=[1], mark=[1]),
            "row 0, column mark: mark code 1 on an event that is not a step",
        ),
        (events(action=[1], size=[-1]), "column size: -1 bytes, a negative size"),
        (events(action=[0], size=[0]), "column size: an allocation of 0 bytes"),
        (
            events(action=[1], requested_size=[-2]),
            "column requested_size: -2 bytes, a negative size",
        ),
        (events(action=[1], time_ns=[-1]), "column time_ns: -1 is negative"),
        (
            events(action=[1, 1], time_ns=[2, 1]),
            "row 1, column time_ns: 1 is earlier than the event before it in the same",
        ),
        (
            events(action=[1, 1, 1], time_ns=[5, 1, 4], thread=[1, 2, 1]),
            "row 2, column time_ns: 4 is earlier",
        ),
        (events(action=[1], stack=[-2]), "-2 is neither an index nor -1"),
        (
            events(action=[1], stack=[0]),
            "column stack: no stack 0 in the table of 0 stacks",
        ),
        (about(alignment=0), "alignment is 0, less than 1"),
        (about(dropped_events=-1), "dropped_events is -1, and must be an integer"),
        (about(run=RunStats(step_seconds=float("nan"))), "run.step_seconds is nan"),
        (about(run=RunStats(step_seconds=-0.5)), "is -0.5, and must be a finite"),
    ]


@suffixes
@pytest.mark.parametrize(("trace", "problem"), unfit())
def test_a_trace_that_could_not_be_read_back_is_not_written(
    suffix, tmp_path, trace, problem
):
    path = tmp_path / f"t{suffix}"
    with pytest.raises(FormatError) as caught:
        write_trace(trace, path)
    assert problem in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_threads_may_interleave_out_of_order_but_each_has_its_order(tmp_path):
    events = Columns.of(action=[1, 1, 1, 1], time_ns=[5, 1, 6, 2], thread=[1, 2, 1, 2])
    write_trace(Trace(events), tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet").events.time_ns.tolist() == [5, 1, 6, 2]


@suffixes
def test_a_stack_table_beyond_the_limit_is_not_written(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(info, "MAX_METADATA_BYTES", 1000)
    stacks = StackTable([(Frame("x" * 1000, 1, "f"),)])
    with pytest.raises(FormatError, match=r"the stack table takes .* fewer stacks"):
        write_trace(Trace(Columns.of(), stacks), tmp_path / f"t{suffix}")
    assert list(tmp_path.iterdir()) == []


@suffixes
def test_more_events_than_the_limit_are_neither_written_nor_read(
    suffix, tmp_path, monkeypatch
):
    path = tmp_path / f"t{suffix}"
    write_trace(sample(), path)
    monkeypatch.setattr(check, "MAX_EVENTS", 10)
    for refused in (lambda: read_trace(path), lambda: write_trace(sample(), path)):
        with pytest.raises(FormatError, match="18 events, more than the limit of 10"):
            refused()


def test_an_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"t\.csv: no such form; end it in \.parquet"):
        write_trace(sample(), tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (b"", "the file is empty"),
        (b"id,lower,upper,size\n", "neither a Parquet nor a JSON trace"),
        (b"\x80\x04]", "cut off at byte 3"),
        (b"[]", "neither a Parquet nor a JSON trace"),
        (journal.MAGIC, "did not come to its end; make a trace of it: memplan recover"),
        (
            b' {"schema": "memplan.plan", "version": 1}',
            "this is a plan, not a trace; name a trace",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, contents, problem):
    path = tmp_path / "t"
    path.write_bytes(contents)
    with pytest.raises(FormatError) as caught:
        read_trace(path)
    assert problem in str(caught.value)


def test_the_command_that_recovers_a_journal_is_quoted(tmp_path):
    path = tmp_path / "my run.journal"
    path.write_bytes(journal.MAGIC)
    with pytest.raises(FormatError, match=r"memplan recover '.*/my run\.journal'$"):
        read_trace(path)


def test_the_json_form_is_this_byte_for_byte(tmp_path):
    events = Columns.of(
        time_ns=[1, 2, 3],
        action=[0, 1, 2],
        mark=[0, 0, 3],
        address=[(1 << 64) - 1, (1 << 64) - 1, 0],
        size=[512, 512, 0],
        requested_size=[500, 500, 0],
        thread=[7, 7, 7],
        stack=[0, -1, -1],
    )
    stacks = StackTable([(Frame("a.py", 1, "f"), Frame("a.py", 2, "g"))])
    path = tmp_path / "t.json"
    write_trace(Trace(events, stacks, replace(TraceInfo(), producer="memplan")), path)
    assert path.read_text() == (
        '{"schema":"memplan.trace","version":1,'
        '"program":{"script":"","sha256":"","torch":"","threads":0,"marks":"none"},'
        '"run":{"peak_rss_bytes":0,"page_faults_per_step":0.0,"step_seconds":0.0,'
        '"cpu_seconds":0.0,"steps":0,"load":0.0},'
        '"device":"cpu","alignment":64,"argv":[],"started":"","dropped_events":0,'
        '"complete":true,"stacks":"none","producer":"memplan","rank":0,"ranks":1,'
        '"added_bytes":0,"used_bytes":0,"history":true,"holders":[],"collections":[],'
        '"stacks_table":{"files":["a.py"],"names":["f","g"],'
        '"frames":[[0,1,0],[0,2,1]],"stacks":[[0,1]]},"columns":{\n'
        '"index":[0,1,2],\n'
        '"time_ns":[1,2,3],\n'
        '"action":["alloc","free_completed","step"],\n'
        '"mark":["none","none","explicit"],\n'
        '"address":[18446744073709551615,18446744073709551615,0],\n'
        '"size":[512,512,0],\n'
        '"requested_size":[500,500,0],\n'
        '"thread":[7,7,7],\n'
        '"device":[0,0,0],\n'
        '"stream":[0,0,0],\n'
        '"stack":[0,-1,-1]\n'
        "}}\n"
    )
