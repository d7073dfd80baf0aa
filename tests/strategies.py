"""Hypothesis strategies for random Problems, small and full of ties.

Clocks are short, so that moments coincide; sizes come from few values, so that
lifetimes, sizes and heights do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.core.problem import FREE, Problem

ALIGNMENTS = ("none", "uniform", "mixed")
Check = Callable[..., None]


def examples(
    usual: int,
    *strategies: st.SearchStrategy[Any],
    soak: int = 0,
    **named: st.SearchStrategy[Any],
) -> Callable[[Check], Check]:
    """Makes a test of a property: `given(*strategies, **named)`, `usual` examples.

    `make soak` tries `soak` examples, ten times as many if it is 0. Parameters without
    a strategy are pytest's, and come first.
    """

    def decorate(check: Check) -> Check:
        parameters = list(inspect.signature(check).parameters.values())
        own = parameters[: len(parameters) - len(strategies)]
        own = [each for each in own if each.name not in named]
        count = inspect.Parameter("count", inspect.Parameter.KEYWORD_ONLY)

        def test(count: int, **others: object) -> None:
            property_ = given(*strategies, **named)(check)
            settings(max_examples=count, deadline=None)(property_)(**others)

        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(test, name, getattr(check, name))
        test.__dict__["pytestmark"] = check.__dict__.get("pytestmark", [])
        test.__signature__ = inspect.Signature([*own, count])  # type: ignore[attr-defined]
        counts = [usual, pytest.param(soak or 10 * usual, marks=pytest.mark.soak)]
        return pytest.mark.parametrize("count", counts)(test)

    return decorate


def problems(
    *,
    periodic: bool | None = None,
    alignment: str | None = None,
    fixed: bool = False,
    max_size: int = 12,
) -> st.SearchStrategy[Problem]:
    """Problems with up to `max_size` buffers, none included.

    periodic: with wrap-around lifespans; None for either. alignment: one of
    ALIGNMENTS; None for any. fixed: some offsets are given, and do not collide.
    """
    return _problems(periodic, alignment, fixed, max_size)


@st.composite
def _problems(
    draw: st.DrawFn,
    periodic: bool | None,
    alignment: str | None,
    fixed: bool,
    max_size: int,
) -> Problem:
    n = draw(st.integers(0, max_size))
    ticks = draw(st.sampled_from((1, 2, 3, 5, 8, 20, 60)))
    wraps = draw(st.booleans()) if periodic is None else periodic
    spans = [draw(_wrapping(ticks) if wraps else _linear(ticks)) for _ in range(n)]
    largest = draw(st.sampled_from((1, 3, 8, 1000)))
    sizes = [draw(st.integers(1, largest)) for _ in range(n)]
    units = draw(_alignments(n, alignment))
    return Problem.of(
        [lower for lower, _ in spans],
        [upper for _, upper in spans],
        sizes,
        alignment=units,
        fixed=draw(_fixed(sizes, units)) if fixed else FREE,
        length=ticks if wraps else None,
    )


@st.composite
def _linear(draw: st.DrawFn, ticks: int) -> tuple[int, int]:
    lower = draw(st.integers(0, ticks - 1))
    return lower, draw(st.integers(lower + 1, ticks))


@st.composite
def _wrapping(draw: st.DrawFn, ticks: int) -> tuple[int, int]:
    """[lower, upper), reaching over the end of the clock where upper is below."""
    lower = draw(st.integers(0, ticks - 1))
    if lower == 0:
        return 0, draw(st.integers(1, ticks))
    upper = draw(st.integers(0, ticks - 1))
    return lower, ticks if upper == lower else upper


@st.composite
def _alignments(draw: st.DrawFn, n: int, kind: str | None) -> list[int]:
    kind = draw(st.sampled_from(ALIGNMENTS)) if kind is None else kind
    if kind == "none":
        return [1] * n
    if kind == "uniform":
        return [draw(st.sampled_from((4, 64, 512)))] * n
    return [draw(st.sampled_from((1, 2, 3, 4, 64))) for _ in range(n)]


@st.composite
def _fixed(draw: st.DrawFn, sizes: list[int], units: list[int]) -> list[int]:
    """Offsets for some, one above the other with room between, in any order."""
    order = draw(st.permutations(range(len(sizes))))
    gaps = [draw(st.integers(0, 40)) for _ in sizes]
    room = [gaps[i] + sizes[i] + units[i] for i in order]
    starts = dict(zip(order, accumulate(room, initial=0), strict=False))
    return [
        -(-starts[i] // units[i]) * units[i] if draw(st.booleans()) else FREE
        for i in range(len(sizes))
    ]
