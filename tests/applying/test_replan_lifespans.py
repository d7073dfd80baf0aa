"""When a plan whose blocks lie by how long they live is held to fit no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import memplan
from memplan.applying.cuda_library import CudaReplay, Place
from memplan.applying.replan import ELASTIC_PATIENCE, Replanner
from tests.solving.test_lifespans import LENGTHS, START, on_cuda, step_of

PLAN = memplan.solve(on_cuda([START, *(step_of(*both) for both in LENGTHS)]))


class Told(CudaReplay):
    """A stream's plan in force, of which a test says how its steps went."""

    def __init__(self) -> None:
        self.went: list[tuple[int, dict[str, int]]] = []
        self.given_up = self.logged = False
        super().__init__(SimpleNamespace(logged=None), Place())  # type: ignore[arg-type]

    def _call(self, name: str, *arguments: object) -> Any:
        if name == "aside":
            return self.given_up
        if name == "stand_aside":
            self.given_up = bool(arguments[0])
        return PLAN.arena_bytes

    def open_log(self) -> None:
        self.logged = True

    def take_log(self) -> bytes:
        return b""

    def largest(self) -> list[int]:
        return [0] * len(PLAN.problem)

    def take_steps(self) -> list[tuple[int, dict[str, int]]]:
        went, self.went = self.went, []
        return went


def run(steps: int, **counts: int) -> tuple[Told, Replanner]:
    replay = Told()
    replanner = Replanner(PLAN, replay, replay.adopt)
    all_counts: dict[str, Any] = dict.fromkeys(
        ("online", "fallback", "fallback_bytes", "outgrown", "followed"), 0
    )
    for step in range(steps + 1):
        # The first one is as planned.
        now = {**all_counts, "requests": 100, **(counts if step else {})}
        replay.went = [(0, now)]
        replanner.step_ended()
    return replay, replanner


def test_whatever_finds_room_is_as_planned() -> None:
    replay, replanner = run(30, online=90)
    assert not replay.given_up
    assert not replay.logged
    assert replanner.given_up == []


@pytest.mark.parametrize(("parts", "fits"), [(3, True), (1, False)])
def test_a_few_blocks_that_find_none_tell_by_their_bytes(
    parts: int, fits: bool
) -> None:
    beside = PLAN.arena_bytes // parts
    early, _ = run(ELASTIC_PATIENCE - 1, fallback=2, fallback_bytes=beside)
    assert not early.given_up
    replay, replanner = run(ELASTIC_PATIENCE, fallback=2, fallback_bytes=beside)
    assert replay.given_up == replay.logged == (not fits)
    assert [one.reason for one in replanner.given_up] == ["different"] * (not fits)
    replanner.finish()


def test_before_there_is_an_arena_nothing_tells_against_it() -> None:
    many = {"fallback": 100, "followed": 99}
    replay, _ = run(30, fallback_bytes=9 * PLAN.arena_bytes, **many)
    assert not replay.given_up
    assert not replay.logged
