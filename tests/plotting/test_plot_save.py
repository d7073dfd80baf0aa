"""Figures are written whole, dateless, and the same each time."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from memplan.errors import UsageError
from memplan.plotting.save import check_target, save


def figure() -> Figure:
    picture = Figure()
    picture.add_subplot().plot([0, 1], [0, 1])
    return picture


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_no_file_holds_a_date(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    save(figure(), path)
    data = path.read_bytes()
    assert not re.search(rb"dc:date|CreationDate|ModDate|tIME", data)


def test_the_user_s_settings_do_not_change_the_bytes(tmp_path: Path) -> None:
    picture = figure()
    save(picture, tmp_path / "a.svg")
    with mpl.rc_context({"svg.hashsalt": "other", "svg.fonttype": "none"}):
        save(picture, tmp_path / "b.svg")
        assert mpl.rcParams["svg.hashsalt"] == "other"
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.gif", r"suffix \.gif; name a \.png, \.svg, \.pdf file"),
        ("a", "no suffix"),
        ("a.png.txt", r"suffix \.txt"),
        ("absent/a.png", "not a folder"),
        ("old.png", "--force"),
    ],
)
def test_a_target_that_will_not_do_is_refused(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "old.png").write_bytes(b"old")
    with pytest.raises(UsageError, match=message):
        check_target(tmp_path / name)
    with pytest.raises(UsageError, match=message):
        save(figure(), tmp_path / name)
    assert (tmp_path / "old.png").read_bytes() == b"old"
