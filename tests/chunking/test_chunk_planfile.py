"""Plan files: what is written is read again, and what is of others is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memplan
from memplan.chunking.plan import Part
from memplan.chunking.planfile import to_json
from memplan.chunking.region import Region
from memplan.chunking.rules.flow import Slice
from memplan.errors import FormatError, InputError

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
naturals = st.integers(0, 1 << 40)
ratios = st.builds(Fraction, st.integers(1, 64), st.integers(1, 64))
dims, zero = st.integers(0, 7), st.just(0)
slices = st.one_of(
    st.builds(Slice, dims, ratios, naturals, naturals, st.just(False)),
    st.builds(Slice, dims, ratios, zero, zero, st.just(True)),
)


def regions(depth: int = 2) -> st.SearchStrategy[Region]:
    inner = st.lists(regions(depth - 1), max_size=2) if depth else st.just([])
    return st.builds(
        lambda cut, extent, step, copied, inner: Region(
            cut, extent, min(step, extent), frozenset(copied), tuple(inner)
        ),
        st.dictionaries(names, slices, min_size=1, max_size=3),
        st.integers(2, 1 << 40),
        st.integers(1, 1 << 40),
        st.lists(names, max_size=2),
        inner,
    )


parts = st.builds(Part, names, names, st.lists(regions(), max_size=2).map(tuple))
plans = st.builds(
    memplan.ChunkPlan,
    st.sampled_from(["chunked", "unchanged", "refused"]),
    names,
    naturals,
    st.lists(parts, max_size=2).map(tuple),
    device=names,
    torch=names,
)


@given(plans)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, plan: memplan.ChunkPlan
) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    memplan.write_chunk_plan(plan, path)
    found = memplan.read_chunk_plan(path)
    assert found == plan
    orders = [[list(region.slices) for region in part.regions] for part in plan.parts]
    assert orders == [
        [list(region.slices) for region in part.regions] for part in found.parts
    ]


REGION = Region({"mm": Slice(0)}, 8, 2)
PLAN = memplan.ChunkPlan("chunked", "", 64, (Part("", "abc", (REGION,)),))


def changed(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({**to_json(PLAN), **fields}))
    return path


def changed_region(path: Path, **fields: Any) -> Path:
    value = to_json(PLAN)
    value["parts"][0]["regions"][0].update(fields)
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schema": "memplan.plan"}, "schema must be 'memplan.chunks'"),
        ({"version": 2}, "version must be 1"),
        ({"parts": 3}, "parts"),
        ({"parts": [3]}, "parts"),
        ({"budget_bytes": "much"}, "budget_bytes"),
        ({"torch": 2}, "torch"),
    ],
)
def test_a_wrong_field_is_named(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    path = changed(tmp_path / "plan.json", **fields)
    with pytest.raises(FormatError, match=said) as raised:
        memplan.read_chunk_plan(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"slices": {}}, "slices"),
        ({"slices": []}, "slices"),
        ({"slices": [["mm", 0, 1, 1, 0, 0]] * 2}, "slices"),
        ({"slices": [["mm", 0, 1, 0, 0, 0]]}, r"slices\[0\]"),
        ({"slices": [["mm", 0, 1, 1, 0]]}, r"slices\[0\]"),
        ({"slices": [["mm", -1, 1, 1, 0, 0]]}, r"slices\[0\]"),
        ({"slices": [["mm", 0, 1, 1, 0, 1, True]]}, r"slices\[0\]"),
        ({"slices": [["mm", 0, 1, 1, 0, 0, 1]]}, r"slices\[0\]"),
        ({"slices": [["mm", 0, 1, 1, 0, 0, False]]}, r"slices\[0\]"),
        ({"slices": [["mm", 0, 1.0, 1, 0, 0]]}, r"slices\[0\]"),
        ({"slices": [[3, 0, 1, 1, 0, 0]]}, r"slices\[0\]\[0\]"),
        ({"slices": ["mm"]}, r"slices\[0\]"),
        ({"extent": 1}, "extent"),
        ({"step": 9}, "step"),
        ({"step": 0}, "step"),
        ({"copied": "mm"}, "copied"),
        ({"copied": [3]}, "copied"),
        ({"inner": {}}, "inner"),
    ],
)
def test_a_wrong_field_of_a_region_is_named(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    path = changed_region(tmp_path / "plan.json", **fields)
    with pytest.raises(FormatError, match=said):
        memplan.read_chunk_plan(path)


def test_regions_are_not_nested_without_end(tmp_path: Path) -> None:
    region = REGION
    for _ in range(12):
        region = replace(REGION, inner=(region,))
    path = tmp_path / "plan.json"
    memplan.write_chunk_plan(replace(PLAN, parts=(Part("", "a", (region,)),)), path)
    with pytest.raises(FormatError, match="more than 8 deep"):
        memplan.read_chunk_plan(path)


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        memplan.read_chunk_plan(tmp_path / "nowhere.json")
