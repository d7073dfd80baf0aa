"""Which module's calls cut the steps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from memplan.recording.boundary import Boundaries, ModuleSource  # noqa: E402
from memplan.trace.trace import Mark  # noqa: E402


def marks(calls: str) -> str:
    """Those of the calls that begin a step; `a` and `b` are in `A`, `c` is in `C`."""
    parts = {name: torch.nn.Linear(1, 1) for name in "abcE"}
    modules = parts | {
        "A": torch.nn.Sequential(parts["a"], parts["b"]),
        "C": torch.nn.Sequential(parts["c"]),
    }
    source = ModuleSource()
    return "".join(name if source.begins_step(modules[name]) else "." for name in calls)


@pytest.mark.parametrize(
    ("calls", "begun"),
    [
        ("AabAabAab", "A..A..A.."),
        ("aAabAab", "a.a..a."),  # first by itself, then within another
        ("EAabAabAabAab", "E......A..A.."),  # an encoder before a loop
        ("EAabAabAabAabEAab", "E......A..A...A.."),  # and the next prompt's
        ("EACcEACcEACcEACc", "E...E...E...E..."),  # several in turn
        ("ECcCcCcCc", "E....C.C."),
    ],
)
def test_the_outermost_module_that_is_called_again_and_again(
    calls: str, begun: str
) -> None:
    assert marks(calls) == begun


def test_a_module_that_is_gone_is_followed_by_the_next() -> None:
    source = ModuleSource()
    first = torch.nn.Linear(1, 1)
    assert source.begins_step(first)
    del first
    assert source.begins_step(torch.nn.Linear(1, 1))


def test_a_part_that_is_gone_hides_no_other_module() -> None:
    """Whose place in memory is that of a part of the source before."""
    marks: list[Mark] = []
    boundaries = Boundaries(marks.append, (Mark.FORWARD,))
    boundaries.start()
    try:
        source, x = torch.nn.Sequential(torch.nn.Identity()), torch.ones(1)
        source(x)
        part = id(source[0])
        del source
        held = []
        while id(held[-1] if held else None) != part:
            held.append(torch.nn.Identity())
            if len(held) == 10_000:
                pytest.skip("the interpreter does not use that memory again")
        held[-1](x)
    finally:
        boundaries.stop()
    assert marks == [Mark.FORWARD] * 2
