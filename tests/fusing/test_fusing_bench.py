"""Networks timed under contenders that take turns: records, and what is refused."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import EnvironmentUnfitError, UsageError
from memplan.fusing import networks
from memplan.fusing.bench import contenders
from memplan.fusing.bench.contenders import Setting, kept_bytes, prepared
from memplan.fusing.bench.record import (
    BenchOptions,
    bench,
    cases,
    first_calls,
    record_of,
    spread,
)
from memplan.fusing.bench.rounds import Contender
from memplan.fusing.bench.worker import Job, an_input, answers

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

KEY = ("stack:1", 1, 1)
PLANE = 64 * 56 * 56 * 4  # bytes of what a stack gives
PROMISED = {
    "network", "batch", "threads", "seconds", "ratio_to_eager", "ratio_to_compile",
    "max_relative_error", "first_call_seconds", "failures", "peak_activation_bytes",
}  # fmt: skip


@pytest.fixture(autouse=True)
def a_worker_in_this_process_changes_nothing() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    gc.unfreeze()


def one(name: str, *turns: float, **more: Any) -> Contender:
    more = {"first_call": 1.0, "error": 1e-7, **more}
    return Contender(name, turns=list(turns), **more)


def test_torch_alone_is_measured() -> None:
    options = BenchOptions(
        contenders=("eager", "channels_last"),
        repeats=3,
        turn_seconds=0.001,
        shares=True,
    )
    (record,) = bench(cases(["stack:1"], [2]), options)
    assert set(record) >= PROMISED
    assert json.loads(json.dumps(record)) == record
    assert (record["network"], record["batch"], record["threads"]) == ("stack:1", 2, 1)
    assert record["failures"] == {}
    for name in options.contenders:
        assert record["seconds"][name] == median(record["turns"][name]) > 0
        assert len(record["turns"][name]) == 3
        assert record["first_call_seconds"][name] > 0
    assert record["errors"]["eager"] == 0
    assert record["max_relative_error"] < 1e-6
    assert record["ratio_to_eager"] is None  # memplan was not asked for
    assert record["peak_activation_bytes"]["eager"] >= 2 * PLANE
    assert record["clock"] == "wall"
    assert (record["layers"], record["optimisable"], record["stacks"]) == (3, 3, 1)
    assert 0.9 < record["share_of_time"] <= 1


def test_a_contender_that_fails_is_a_reason_in_the_record() -> None:
    options = BenchOptions(contenders=("eager", "compile"), timeout=0.01)
    (record,) = bench([KEY], options)
    assert set(record) >= PROMISED
    assert record["seconds"] == {}
    assert record["ratio_to_eager"] is record["max_relative_error"] is None
    assert set(record["failures"]) == {"eager", *contenders.COMPILED}
    assert set(record["failures"].values()) == {"no answer within 0.01 s"}


def test_a_worker_that_dies_is_a_reason_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "none")  # with which Python does not start
    (record,) = bench([KEY], BenchOptions(contenders=("eager",)))
    assert record["failures"] == {"eager": "its process ended with code 1"}


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_peers_give_what_eager_gives(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    pytest.importorskip("onnx")
    job = Job(name, "stack:2", 2, 1, str(tmp_path), 0.001)
    first, turn, error = answers(job, iter(["turn\n", "error\n"]))
    assert first["first_call"] > 0
    assert turn["wall"] > 0
    assert error["error"] < 1e-5


@pytest.mark.parametrize("name", ["memplan", "memplan:1"])
def test_memplan_is_measured_with_the_arena_it_keeps(name: str, tmp_path: Path) -> None:
    pytest.importorskip("memplan.fusing.fuse")
    job = Job(name, "stack:2", 2, 1, str(tmp_path), 0.001)
    first, turn, error, memory = answers(job, iter(["turn", "error", "memory"]))
    assert first["remarks"] == []
    assert turn["wall"] > 0
    assert error["error"] < 1e-5
    assert memory["bytes"] >= 2 * PLANE


def test_an_arena_counts_as_activations() -> None:
    def program(size: int) -> Any:
        return SimpleNamespace(
            engine=SimpleNamespace(arena=SimpleNamespace(bytes=size))
        )

    left_alone = SimpleNamespace(reason="it has no layers that are fused")
    fused: Any = SimpleNamespace(programs=lambda: [program(64), left_alone, program(8)])
    assert kept_bytes(fused) == 72
    assert kept_bytes(networks.build("stack:1")) == 0


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_peer_that_is_not_installed_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, name, None)
    (answer,) = answers(Job(name, *KEY, str(tmp_path), 0.1), iter([]))
    assert answer == {"failure": f"{name} is not installed"}


def test_contenders_leave_an_input_as_it_was(tmp_path: Path) -> None:
    noise = an_input("stack:2", 2)
    kept = noise.clone()
    expected = networks.build("stack:2")(noise)
    for name in ("eager", "channels_last"):
        call = prepared(name, networks.build("stack:2"), Setting(noise, 1, tmp_path))
        torch.testing.assert_close(call(noise), expected)
        assert torch.equal(noise, kept)
        assert noise.is_contiguous()


def test_first_calls_have_cold_and_warm_caches() -> None:
    found = first_calls(KEY, ["eager"])
    assert set(found) == {"eager"}
    assert all(float(found["eager"][state]) > 0 for state in ("cold", "warm"))
    late = first_calls(KEY, ["eager"], timeout=0.01)
    assert late == {"eager": {"failure": "no answer within 0.01 s"}}


def test_ratios_are_of_rounds_and_compile_is_its_best() -> None:
    record = record_of(
        KEY,
        [
            one("eager", 4.0, 9.0, 2.0),
            one("compile", 5.0, 5.0, 5.0, first_call=30.0),
            one("compile:freezing", 2.0, 2.0, 6.0, first_call=40.0),
            one("memplan", 1.0, 3.0, 1.0, error=3e-6, remarks=["left as it was"]),
        ],
    )
    assert record["remarks"] == {"memplan": ["left as it was"]}
    assert record["ratio_to_eager"] == 3.0  # 4, 3, 2; of the medians it would be 4
    assert record["ratios"]["eager"] == {"min": 2.0, "median": 3.0, "max": 4.0}
    assert record["compiled"] == "compile:freezing"
    assert record["ratio_to_compile"] == 2.0
    assert record["seconds"] == {"eager": 4.0, "memplan": 1.0, "compile": 2.0}
    assert record["first_call_seconds"]["compile"] == 40.0
    assert record["ways"]["compile"] == {"seconds": 5.0, "first_call_seconds": 30.0}
    assert record["max_relative_error"] == 3e-6


def test_what_failed_is_in_no_figure() -> None:
    wrong = one("memplan", 1.0, error=None, failure="its result is not eager's")
    record = record_of(KEY, [one("eager", 4.0), wrong])
    assert record["seconds"] == {"eager": 4.0}
    assert record["ratio_to_eager"] is None
    assert record["ratio_to_compile"] is None
    assert record["failures"] == {"memplan": "its result is not eager's"}


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), st.floats(0.01, 100))
def test_noise_that_falls_on_both_leaves_the_ratio(
    ours: list[float], ratio: float
) -> None:
    found = spread([ratio * seconds for seconds in ours], ours)
    for value in found.values():
        assert value == pytest.approx(ratio)


def test_cases_are_every_combination_once() -> None:
    assert cases(["alexnet", "stack:2", "alexnet"], [1, 8]) == [
        ("alexnet", 1, 1),
        ("stack:2", 1, 1),
        ("alexnet", 8, 1),
        ("stack:2", 8, 1),
    ]


@pytest.mark.parametrize(
    ("names", "batches", "threads", "said"),
    [
        (["alexnet", "vgg12"], [1], [1], "'vgg12' is no network; there are alexnet"),
        (["alexnet"], [0], [1], "a batch of 0; it is from 1"),
        (["alexnet"], [8, 2000], [1], "a batch of 2000"),
        (["alexnet"], [1], [0], "0 threads"),
        ([], [1], [1], "name a network"),
        (["alexnet"], [], [1], "a batch"),
    ],
)
def test_cases_that_there_are_not_are_refused(
    names: list[str], batches: list[int], threads: list[int], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        cases(names, batches, threads)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"contenders": ("eager", "jax")}, "'jax' is no contender; there are eager"),
        ({"contenders": ()}, "at least one"),
        ({"contenders": ("eager", "eager")}, "once"),
        ({"variants": ()}, "at least one way"),
        ({"variants": ("eager",)}, "ways to compile are compile, compile:freezing"),
        ({"repeats": 0}, "0 repeats; at least 1"),
        ({"clock": "sun"}, "'sun' is no clock"),
        ({"turn_seconds": 0.0}, "more than 0 seconds"),
        ({"timeout": float("nan")}, "more than 0 seconds"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        BenchOptions(**options)


def test_processor_time_of_several_threads_is_refused() -> None:
    with pytest.raises(UsageError, match="several threads"):
        next(bench([("alexnet", 1, 2)], BenchOptions(clock="cpu")))


def test_an_unknown_contender_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no contender"):
        first_calls(KEY, ["eagre"])
    with pytest.raises(UsageError, match="no contender"):
        prepared("eagre", None, Setting(None, 1, tmp_path))


def test_workers_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    list(bench([KEY], BenchOptions(contenders=("eager",), repeats=1)))
    assert os.listdir(tmp_path) == []


def test_networks_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EnvironmentUnfitError, match="need PyTorch"):
        networks.build("alexnet")
