"""What a file is, and that it is opened but once."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import memplan
from memplan.core.planfile import dump_plan
from memplan.errors import FormatError, InputError
from memplan.formats.sniff import Kind, opened, sniff
from memplan.trace.write import write_trace
from tests.conftest import ROOT
from tests.core.plan_samples import sample as sample_plan
from tests.trace.trace_samples import sample as sample_trace

CSV = "id,lower,upper,size\na,0,2,64\nb,1,3,64\n"
OPENS = """\
import os, sys
path, opens = os.path.abspath(sys.argv[1]), 0
def look(event, arguments):
    global opens
    if event == "open" and isinstance(arguments[0], str):
        opens += os.path.abspath(arguments[0]) == path
sys.addaudithook(look)
sys.argv[:2] = ["memplan"]
from memplan.cli import main
try:
    main()
except SystemExit as stop:
    print("opens", opens, "code", stop.code)
"""


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"PAR1....", Kind.PARQUET),
        (b"\x1f\x8b\x08", Kind.GZIP),
        (b"MPLNJRN1", Kind.JOURNAL),
        (b"\x80\x04N.", Kind.PICKLE),
        (b"\x80\xff", Kind.UNKNOWN),
        (CSV.encode(), Kind.UNKNOWN),
        (b"{}", Kind.JSON),
        (b' {"schema": "memplan.trace"}', Kind.TRACE),
        (b'{"a": {"schema": "memplan.plan"}, "schema": "memplan.trace"}', Kind.TRACE),
        (b'{"a": "memplan.plan", "schema": 1}', Kind.JSON),
        (b'{"schema": "memplan.plan"}', Kind.PLAN),
        (b'{"schema": "memplan.blocking-plan"}', Kind.BLOCKING_PLAN),
        (b'{"segments": [], "device_traces": ["memplan.plan"]}', Kind.JSON),
        (b"plain text", Kind.UNKNOWN),
    ],
)
def test_a_file_is_what_its_beginning_or_its_schema_says(
    data: bytes, kind: Kind, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with sniff(path) as file:
        assert (file.kind, file.size) == (kind, len(data))
        assert file.sha256() == hashlib.sha256(data).hexdigest()
        assert file.stream.read() in (data, b"")  # where it was, or all read
        assert file.read() == data or file.stream.tell() == len(data)
        with opened(file) as again:
            assert again is file


def test_what_begins_as_json_and_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'{"schema": ')
    with sniff(path) as file, pytest.raises(FormatError, match="not whole JSON"):
        assert file.kind


@pytest.mark.parametrize("after", [b"PAR1PAR1", b"PAR2"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, after: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"PAR1")
    refused = pytest.raises(InputError, match="changed while it was read")
    with refused, sniff(path) as file:
        assert file.stream.read() == b"PAR1"
        path.write_bytes(after)
        os.utime(path, ns=(1, 1))  # a moment later, whatever the clock's grain


@pytest.mark.parametrize("suffix", ["json", "json.gz", "parquet"])
def test_a_trace_that_speaks_of_plans_is_still_a_trace(
    suffix: str, tmp_path: Path
) -> None:
    trace = sample_trace(64)
    words = ("memplan.plan", '"memplan.plan"', "memplan.blocking-plan")
    path = tmp_path / f"train.{suffix}"
    write_trace(replace(trace, info=replace(trace.info, argv=words)), path)
    with sniff(path) as file:
        assert file.kind is not Kind.PLAN
        assert memplan.read_trace(file).info.argv == words


def test_long_texts_are_refused_when_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    write_trace(sample_trace(), path)
    honest = json.loads(path.read_text())
    for place in ("device", "started"):
        path.write_text(json.dumps({**honest, place: "x" * 70_000}))
        with pytest.raises(FormatError, match=f"{place} is 'xxx.* at most 65536"):
            memplan.read_trace(path)
    honest["stacks_table"]["files"][0] = "x" * 70_000
    path.write_bytes(gzip.compress(json.dumps(honest).encode()))
    with pytest.raises(FormatError, match=r"stacks_table.files\[0\] is 'xxx.* at most"):
        memplan.read_trace(path)


@pytest.mark.parametrize(
    ("command", "name", "code"),
    [
        ("solve", "train.json.gz", 0),
        ("plot", "train.parquet", 0),
        ("convert", "train.json", 0),
        ("verify", "plan.json", 0),
        # The sample's plan has requests that no program makes.
        pytest.param("apply", "plan.json", 3, marks=pytest.mark.torch),
    ],
)
def test_a_command_opens_its_input_but_once(
    command: str, name: str, code: int, tmp_path: Path
) -> None:
    path = tmp_path / name
    if name == "plan.json":
        path.write_bytes(dump_plan(sample_plan()))
    else:
        trace = sample_trace(64)
        info = replace(trace.info, device="cpu", argv=())
        write_trace(replace(trace, info=info), path)
    (tmp_path / "nothing.py").write_text("")
    more = {
        "solve": ["--step", "all"],
        "plot": ["-o", "picture.svg"],
        "convert": ["out.csv", "--step", "all"],
        "apply": ["nothing.py"],
    }
    done = subprocess.run(
        [sys.executable, "-c", OPENS, path, command, path, *more.get(command, [])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.splitlines()[-1] == f"opens 1 code {code}", done.stderr
    if command == "solve":
        source = memplan.read_plan(tmp_path / "train.plan.json").provenance.source
        assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
