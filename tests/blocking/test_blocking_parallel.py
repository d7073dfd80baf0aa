"""Figure 9: a layer on several cores."""

from __future__ import annotations

import pytest

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign
from memplan.blocking.cost.placement import MAIN
from memplan.blocking.design.parallel import SHARED, cores_energy
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, Tensor
from memplan.blocking.nest.nest import parse_nest
from memplan.errors import UsageError

CONV1 = PAPER_LAYERS["conv1"]
# The best of two extents a dimension, as the reference has it; its last kernel memory
# is the largest of all, like those of the paper's four schedules.
NEST = parse_nest(
    "X4 Y16 Fw11 Fh11 X256 K192 C256 Y256 K384", CONV1, {"C": 16, "K": 16}
)


@pytest.mark.parametrize(
    ("split", "expected"),
    [("xy", [0.867, 0.834, 0.813, 0.800]), ("k", [0.867, 0.972, 0.883, 0.837])],
)
def test_conv1_as_the_research_has_it(split: str, expected: list[float]) -> None:
    """pJ a multiplication: sharing the larger memory, of kernels, always helps."""
    found = [cores_energy(NEST, cores, split) for cores in (1, 2, 4, 8)]
    assert [round(bar.total / CONV1.macs, 3) for bar in found] == expected


def test_one_core_is_the_plain_energy() -> None:
    energy = evaluate(CONV1, NEST)
    for split in ("k", "xy"):
        bar = cores_energy(NEST, 1, split)
        assert bar.total == pytest.approx(energy.total, rel=1e-12)
        assert bar.shuffle == 0
        assert bar.main == pytest.approx(energy.pj(MAIN), rel=1e-12)
        own = [s for s in energy.shares if s.tensor is Tensor.KERNEL]
        last = own[-2]  # before main memory
        assert bar.last[Tensor.KERNEL] == last.pj


def test_what_is_shared_is_sent_to_all_cores_at_once() -> None:
    bars = {
        (way, n): cores_energy(NEST, n, way) for way in SHARED for n in (1, 2, 4, 8)
    }
    for tensor, split in ((Tensor.KERNEL, "xy"), (Tensor.INPUT, "k")):
        two, eight = bars[split, 2].last[tensor], bars[split, 8].last[tensor]
        assert eight == pytest.approx(two / 4, rel=1e-12)
    # What is split gets cheaper with its memory, but never as fast.
    two, eight = (bars["xy", n].last[Tensor.INPUT] for n in (2, 8))
    assert two / 4 < eight < two
    alpha = CONV1.X * CONV1.Y * CONV1.K
    assert bars["k", 2].shuffle == bars["k", 8].shuffle > alpha
    assert bars["xy", 8].shuffle == 0
    assert len({bar.private for bar in bars.values()}) == 1


def test_memories_within_a_budget() -> None:
    small = cores_energy(NEST, 2, "xy", Codesign(budget=1 << 20))
    large = cores_energy(NEST, 2, "xy")
    assert small.main > large.main


def test_a_tensor_without_a_memory() -> None:
    layer = Layer("fc", 1, 1, 8, 8)
    bar = cores_energy(parse_nest("C8 K8", layer), 2, "k")
    assert bar.last[Tensor.KERNEL] == 0
    assert bar.total > 0


@pytest.mark.parametrize(
    ("cores", "split", "message"),
    [
        (0, "k", "0 cores"),
        (2, "c", "not 'c'"),
        (7, "k", "7 cores cannot share 24 tiles of K evenly"),
        (3, "xy", "3 cores cannot share 65536 tiles of XY evenly"),
    ],
)
def test_splits_that_cannot_be(cores: int, split: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cores_energy(NEST, cores, split)
