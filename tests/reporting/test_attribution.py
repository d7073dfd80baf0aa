"""Who made what is live: of any trace, with stacks or without."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

import memplan
from memplan.errors import UsageError
from memplan.reporting.live import By, live_at
from memplan.trace.lives import Summary, lives_of
from memplan.trace.sites import Site, first_of_user, site_of
from memplan.trace.stacks import Frame, Origin, Phase, StackTable
from memplan.trace.trace import Action, Category, Columns, Mark, Trace
from tests.conftest import ROOT
from tests.programs import events_of
from tests.strategies import examples
from tests.trace.trace_samples import traces

A, F, S, L = Action.ALLOC, Action.FREE_COMPLETED, Action.STEP, Action.LABEL


def trace(*rows: tuple[int, int, int, int], stacks: StackTable | None = None) -> Trace:
    """Of (action, address, bytes, stack)."""
    marks = [Mark.OPTIMIZER if row[0] == S else Mark.NONE for row in rows]
    times = range(0, 10**8 * len(rows), 10**8)
    events = events_of("action address size stack", rows, mark=marks, time_ns=times)
    return Trace(events, stacks or StackTable())


@examples(25, traces(), soak=60)
def test_parts_sum_to_what_is_live(found: Trace) -> None:
    small = found.events.requested_size % (1 << 40)
    columns = {name: getattr(found.events, name) for name in Columns.DTYPES}
    sizes = np.where(found.events.action == A, small + 1, small % 7)
    columns |= {"requested_size": sizes, "size": sizes}
    given = Trace(Columns.of(**columns), found.stacks, found.info)
    buffers = lives_of(given)
    live = live_at(buffers)
    assert live.bytes == Summary.of(given.events).peak_live
    for kind in get_args(By):
        shares = live.by(kind)
        assert sum(share.bytes for share in shares) == live.bytes
        assert [s.bytes for s in shares] == sorted(
            (s.bytes for s in shares), reverse=True
        )
    assert sum(live.sites().values()) == live.bytes
    assert sum(live.categories.values()) == live.bytes


def test_a_trace_without_stacks_is_of_unknown_origin() -> None:
    buffers = lives_of(memplan.read_trace(ROOT / "traces/train_googlenet.parquet"))
    live = memplan.live_at(buffers)
    assert [share.name for share in live.by("line")] == ["unknown"]
    assert live.categories[Category.UNKNOWN] == live.bytes


def test_labels_tell_of_the_block_that_lives_there() -> None:
    found = trace(
        (A, 64, 100, -1),
        (F, 64, 100, -1),
        (A, 64, 200, -1),
        (L, 64, Category.PARAMETERS, -1),
        (L, 64, Category.GRADIENTS, -1),
        (L, 128, Category.PARAMETERS, -1),
        (A, 128, 300, -1),
    )
    buffers = lives_of(found)
    assert buffers.category.tolist() == [0, Category.PARAMETERS, 0]
    assert live_at(buffers).categories[Category.PARAMETERS] == 200


def test_a_label_lends_its_module_to_what_has_none() -> None:
    stacks = StackTable(
        [(Frame("a.py", 3, "build"),), ()], [Origin(operator="empty"), Origin("head")]
    )
    found = trace((A, 64, 8, 0), (L, 64, Category.PARAMETERS, 1), stacks=stacks)
    (share,) = live_at(lives_of(found)).by("module")
    assert share.name == "head"
    assert share.site == Site("a.py", 3, "build", "head", "empty")


def test_phases_tell_what_no_label_does() -> None:
    frame = (Frame("a.py", 1, "f"),)
    stacks = StackTable([frame] * 4, [Origin("", "", Phase(i)) for i in range(1, 5)])
    found = trace(
        (A, 1, 1, 0),  # outside, and there when the forward pass runs
        (A, 2, 2, 0),  # outside, and not
        (F, 2, 2, -1),
        (A, 3, 4, 1),
        (L, 3, Category.INPUTS, -1),  # what one module gives another
        (A, 4, 8, 2),
        (A, 5, 16, 3),
        stacks=stacks,
    )
    assert [Category(c).label for c in lives_of(found).category] == [
        *("inputs", "temporaries", "activations", "temporaries", "temporaries")
    ]


def test_moments_are_peak_seconds_and_steps() -> None:
    found = trace(
        (A, 1, 10, -1),
        (S, 0, 0, -1),
        (A, 2, 30, -1),
        (F, 2, 30, -1),
        (S, 0, 0, -1),
        (A, 3, 5, -1),
    )
    buffers = lives_of(found)
    sizes = {at: live_at(buffers, at).bytes for at in ("peak", "0", "1", "2", "0.45s")}
    assert sizes == {"peak": 40, "0": 10, "1": 40, "2": 15, "0.45s": 10}
    assert live_at(buffers, "200ms").step == 1
    for wrong, problem in (
        ("3", "steps 0 to 2 only; 3s means seconds"),
        ("oom", "no request failed in this recording"),
        ("9s", "the trace ends after 0.5 seconds"),
        ("soon", "write peak, oom, end, seconds as in 1.5s, or a step's number"),
    ):
        with pytest.raises(UsageError, match=problem):
            live_at(buffers, wrong)


def test_nothing_is_live_in_an_empty_trace() -> None:
    live = live_at(lives_of(Trace(Columns.of())))
    assert (live.bytes, live.seconds, live.step, live.by("line")) == (0, 0.0, 0, [])


@pytest.mark.parametrize(
    ("files", "first"),
    [
        (["/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", "/w/a.py"], 1),
        (["/usr/lib/python3.11/threading.py", "/w/a.py"], 1),
        (["/v/lib/python3.11/site-packages/transformers/m.py", "/w/a.py"], 0),
        (["??", "/torch/csrc/x.cpp", "/w/a.py"], 2),
        (["/v/lib/python3.11/site-packages/attention/k.cu", "/w/a.py"], 1),
        (["<frozen runpy>", "<string>"], 1),
        (["/v/lib/python3.11/site-packages/torch/a.py"], 0),
    ],
)
def test_the_first_frame_of_the_users(files: list[str], first: int) -> None:
    stack = tuple(Frame(file, 1, "f") for file in files)
    assert first_of_user(stack) is stack[first]


def test_a_thread_without_python_has_no_line() -> None:
    files = ["??", "./nptl/pthread_create.c", "./sysdeps/x86_64/clone3.S"]
    stack = tuple(Frame(file, 81, "f") for file in files)
    assert first_of_user(stack) == Frame("", 0, "")


def test_what_ran_is_named_by_pytorchs_own_function_where_nothing_else_is() -> None:
    inner = Frame("/v/lib/python3.11/site-packages/torch/nn/functional.py", 9, "gelu")
    stacks = StackTable([(inner, Frame("/w/a.py", 3, "g"))])
    assert site_of(stacks, 0) == Site("/w/a.py", 3, "g", operator="gelu")
    assert site_of(stacks, -1) == Site()
