"""Whether objects hold what they held."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from memplan.native import _state  # noqa: E402


def test_equal_values_are_the_same() -> None:
    group: dict[str, object] = {"one": [1, 2], "nan": float("nan")}
    rows = [(group, name, value) for name, value in group.items()]
    assert _state.holds(rows)
    group["one"] = [1, 2]
    assert _state.holds(rows)
    group["one"] = [1, 3]
    assert not _state.holds(rows)


def test_what_went_has_changed() -> None:
    group: dict[str, object] = {"one": None}
    rows = [(group, "one", None)]
    assert _state.holds(rows)
    del group["one"]
    assert not _state.holds(rows)


@pytest.mark.parametrize("now", [np.arange(3), torch.arange(3)])
def test_what_cannot_be_compared_has_changed(now: Any) -> None:
    assert not _state.holds([({"a": now}, "a", np.arange(3))])
    assert _state.holds([({"a": now}, "a", now)])


def test_errors_of_a_comparison_are_raised() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise LookupError("odd")

        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(LookupError, match="odd"):
        _state.holds([({"a": Odd()}, "a", Odd())])


def test_a_value_may_go_while_it_is_compared() -> None:
    group: dict[str, object] = {}

    class Going:
        def __eq__(self, other: object) -> bool:
            group.clear()
            gc.collect()
            return bool(seen() is self)

        __hash__ = None  # type: ignore[assignment]

    then = Going()
    group["a"] = Going()
    seen = weakref.ref(group["a"])
    assert _state.holds([(group, "a", then)])


@pytest.mark.parametrize(("now", "then"), [(1, True), (2.0, 2), (-0.0, 0.0)])
def test_equal_values_of_other_types_or_signs_have_changed(now: Any, then: Any) -> None:
    assert not _state.holds([({"a": now}, "a", then)])


def row(group: dict[str, Any], name: str) -> Any:
    x = group[name]
    return group, name, x, x._version, x.data_ptr(), x.shape, x.stride()


def test_tensors_are_the_same_by_version_and_place() -> None:
    tensor = torch.zeros(4, 4)
    group = {"a": tensor}
    then = row(group, "a")
    assert _state.holds_tensors([then])
    group["a"] = torch.zeros(4, 4)
    assert not _state.holds_tensors([then])
    group["a"] = tensor
    tensor.add_(1)
    assert not _state.holds_tensors([then])
    then = row(group, "a")
    assert not _state.holds_tensors([(*then[:4], then[4] + 1, *then[5:])])
    for other in (tensor.t(), tensor[:2], torch.zeros(4, 4)):
        tensor.data = other
        assert not _state.holds_tensors([then])


def test_vectors_are_the_same_by_shape() -> None:
    tensor = torch.zeros(4)
    then = (
        {"a": tensor},
        "a",
        tensor,
        tensor._version,
        tensor.data_ptr(),
        tensor.shape,
        None,
    )
    assert _state.holds_tensors([then])
    scalar = tensor[0]
    for other in (tensor[:2], tensor.view(2, 2), scalar):
        tensor.data = other
        assert not _state.holds_tensors([then])


def test_versions_count_changes() -> None:
    group: dict[str, Any] = {"a": 1}
    groups: list[dict[str, Any]] = [group, {}]
    then = _state.versions(groups)
    known = sys.version_info < (3, 13)
    assert _state.has_versions(groups, then) == known
    changes: list[Callable[[], object]] = [
        lambda: group.update(a=2),
        lambda: group.update(b=1),
        lambda: group.pop("b"),
        lambda: groups[1].setdefault("c"),
        group.clear,
    ]
    for change in changes:
        change()
        assert not _state.has_versions(groups, then)
        then = _state.versions(groups)
        assert _state.has_versions(groups, then) == known
    with pytest.raises(ValueError, match="other groups"):
        _state.has_versions(groups[1:], then)


def test_attributes_count_as_changes() -> None:
    module = torch.nn.Linear(2, 2)
    groups = [vars(module)]
    then = _state.versions(groups)
    module.note = 1
    assert not _state.has_versions(groups, then)
    then = _state.versions(groups)
    for _ in range(100):  # the interpreter has quicker ways for what is done often
        module.note = object()
        assert not _state.has_versions(groups, then)
        then = _state.versions(groups)


def test_keys_and_bytes() -> None:
    group: dict[str, object] = {"a": 1, "b": 2}
    rows = [(group, ("a", "b"))]
    assert _state.has_keys(rows)
    group["a"] = group.pop("a")
    assert not _state.has_keys(rows)
    group["b"] = group.pop("b")
    assert _state.has_keys(rows)
    group["c"] = 3
    assert not _state.has_keys(rows)
    memory = np.arange(8, dtype=np.uint8)
    there = [(memory.ctypes.data + 2, bytes([2, 3])), (memory.ctypes.data, b"\0")]
    assert _state.has_bytes(there)
    memory[3] = 0
    assert not _state.has_bytes(there)


@pytest.mark.parametrize(
    ("function", "row"),
    [
        ("holds", ({}, "a")),
        ("holds", ([], "a", 1)),
        ("holds", [{}, "a", 1]),
        ("holds", ({}, [], 1)),
        ("holds_tensors", ({"a": 1}, "a", 1)),
        ("has_keys", ({}, "one")),
        ("has_keys", (3, ())),
        ("versions", 1),
        ("has_bytes", ("here", b"")),
        ("has_bytes", (1, "text")),
    ],
)
def test_wrong_rows_are_refused(function: str, row: Any) -> None:
    with pytest.raises(TypeError):
        getattr(_state, function)([row])


def test_tensors_without_a_version_are_told() -> None:
    one = 1
    with pytest.raises(AttributeError):
        _state.holds_tensors([({"a": one}, "a", one, 0, 0, (), ())])
