"""Tables on a narrow terminal: no number is cut, and words only where they must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.cli import show

WHERE = "site-packages/transformers/models/llama/modeling_llama.py:302 forward"
MODULE = "model.layers.*.self_attn.q_proj"


def printed(capsys: pytest.CaptureFixture[str], *rows: list[str]) -> list[str]:
    show.table("", ["where", "module", "bytes"], rows, 2)
    return capsys.readouterr().out.splitlines()


def test_text_is_folded_at_separators(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(capsys, [WHERE, MODULE, "17,179,869,184"])
    assert [line.split() for line in lines[1:]] == [
        [
            "site-packages/transformers/models/llama/modeling_",
            "model.",
            "17,179,869,184",
        ],
        ["llama.py:302", "forward", "layers.*."],
        ["self_attn.q_"],
        ["proj"],
    ]


@pytest.mark.parametrize("wide", [80, 100])
def test_numbers_are_whole_however_many(
    wide: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(wide))
    columns = ["where", *["number"] * 5]
    show.table("sums", columns, [[WHERE, *["123,456,789"] * 5]])
    out = capsys.readouterr().out
    assert out.count("123,456,789") == 5
    assert out.startswith("sums\n")
    assert "".join(
        line.split("  ")[0].replace(" ", "") for line in out.splitlines()[2:]
    ) == (WHERE.replace(" ", ""))


def test_a_head_of_two_lines_stands_on_the_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show.table("", ["network", "first\ncall"], [["resnet", "1.25 s"]])
    assert capsys.readouterr().out.splitlines() == [
        "          first",
        "network    call",
        "resnet   1.25 s",
    ]


@given(st.text("ab/._ ", max_size=150), st.text("xyz._", max_size=150))
def test_what_is_folded_is_all_there(first: str, second: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setenv("COLUMNS", "80")
        patch.setattr(show, "line", lambda text, err: lines.append(text))
        show.table("", ["where", "module", "bytes"], [[first, second, "1,234"]], 2)
    assert max(map(len, lines)) <= 80
    told = "".join("".join(lines[1:]).split()).replace("1,234", "")
    assert sorted(told) == sorted((first + second).replace(" ", ""))
