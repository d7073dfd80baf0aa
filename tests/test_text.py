"""Text for terminals: on one line, and nothing in it but characters to be seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import FormatError, InputError
from memplan.text import printable


@given(st.text(st.characters()) | st.text(st.sampled_from("\x1b\n\r\x9b\u202eab[")))
def test_nothing_is_left_but_what_can_be_seen(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    assert (shown == text) == text.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[31mred\x9b0m\x7f", r"\x1b[31mred\x9b0m\x7f"),
        ("caf\u00e9 \u65e5 8 \u00d7 8", "caf\u00e9 \u65e5 8 \u00d7 8"),
        ("\u202eabc", r"\u202eabc"),
        ("\udcff.csv", r"\udcff.csv"),  # the byte 0xff in a file's name
    ],
)
def test_what_is_not_printable_stands_as_its_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_errors_are_one_printable_line() -> None:
    assert str(InputError("a\x1b[2J\nb")) == r"a\x1b[2J\nb"
    assert str(FormatError("\x07.json", "is\nbad")) == r"\x07.json: is\nbad"
