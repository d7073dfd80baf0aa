"""Training under a budget, from a recording to the program under its plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memplan
from memplan.budgeting.choose import RESERVE, Budgeting, with_units
from memplan.budgeting.descent import composed, peak_of
from memplan.budgeting.step import Recorded
from memplan.budgeting.units import candidates
from memplan.core.planfile import read_plan
from memplan.core.verify import verify
from memplan.errors import InfeasibleError, UsageError
from memplan.trace.lives import lives_of
from memplan.trace.trace import Trace
from tests.budgeting.training import (
    CONVOLUTIONS,
    ENCODER,
    PROGRAMS,
    script_of,
    without_times,
)
from tests.conftest import Run, environment
from tests.warm import WarmProcess

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

MIB = 1 << 20


@pytest.fixture(scope="module")
def recordings(
    tmp_path_factory: pytest.TempPathFactory, warm: WarmProcess
) -> dict[str, Path]:
    """A folder for each program, with train.py, train.parquet and what it prints."""
    folders = {}
    for name, program in PROGRAMS.items():
        folder = folders[name] = tmp_path_factory.mktemp(name)
        (folder / "train.py").write_text(script_of(program))
        plain = warm.run(["train.py"], folder, environment())
        assert plain.returncode == 0, plain.stderr
        words = ["-m", "memplan", "record", "--activations", "-o", "train.parquet"]
        recorded = warm.run([*words, "train.py"], folder, environment())
        assert recorded.returncode == 0, recorded.stderr
        assert recorded.stdout == plain.stdout  # it changes nothing
        without_times(folder / "train.parquet")
        (folder / "printed").write_text(plain.stdout)
    return folders


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_keeps_its_budget_and_its_bits(
    name: str, recordings: dict[str, Path], warm: WarmProcess
) -> None:
    folder = recordings[name]
    printed = (folder / "printed").read_text()
    budgeting = Budgeting(memplan.read_trace(folder / "train.parquet"))
    least = budgeting.least.units.budget
    assert least < budgeting.eager
    for budget in (least, (least + budgeting.eager) // 2):
        plan = memplan.solve(
            memplan.read_trace(folder / "train.parquet"), "bestfit", budget=budget
        )
        assert not verify(plan)
        memplan.write_plan(plan, folder / "plan.json", force=True)
        words = ["-m", "memplan", "apply", "--no-replan", "--report", "report.json"]
        done = warm.run(
            [*words, "--force", "plan.json", "train.py"], folder, environment()
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == printed
        report = json.loads((folder / "report.json").read_text())
        part = plan.recompute
        assert part is not None
        assert part.predicted <= budget == part.budget
        live = report["memory"]["most_live"]
        assert live <= budget
        assert live == pytest.approx(part.predicted, rel=1e-3, abs=RESERVE)
        again = report["recompute"]
        assert again["units"] == again["bound"] == len(part.units) > 0
        assert again["recomputations"] > 0
        share = report["planned_requests"] / report["requests"]
        # A gradient of oneDNN's LSTM, and copies of weights, live longer than expected.
        assert share > 0.97


@pytest.mark.parametrize("name", PROGRAMS)
def test_more_memory_never_takes_more_time(
    name: str, recordings: dict[str, Path]
) -> None:
    budgeting = Budgeting(memplan.read_trace(recordings[name] / "train.parquet"))
    front = budgeting.curve(8)
    assert front[0].peak == budgeting.eager
    # What only bisection found is not said to be proved.
    for each in front:
        again = budgeting._base.within(each.units.budget)
        if each.units.proved and again is not None and again[2]:
            cheapest = sum(candidate.cost for candidate in again[0])
            assert each.cost <= cheapest * (1 + 1e-3)
    assert front[-1].peak == min(each.peak for each in front)
    peaks, costs = [c.peak for c in front], [c.cost for c in front]
    assert peaks == sorted(peaks, reverse=True)
    assert costs == sorted(costs)


@pytest.mark.parametrize("name", ["encoder", "runs"])
def test_a_part_of_every_budget_is_left_free(
    name: str, recordings: dict[str, Path]
) -> None:
    budgeting = Budgeting(memplan.read_trace(recordings[name] / "train.parquet"))
    for level in budgeting._levels:
        for budget in (level.peak, level.peak + RESERVE - 1, level.peak + RESERVE):
            try:
                part = budgeting.within(budget).units
            except InfeasibleError as refusal:
                assert refusal.peak is not None
                assert refusal.peak > budget
                continue
            assert part.predicted <= budget - RESERVE * bool(part.units)


def test_units_lie_within_units_or_apart(recordings: dict[str, Path]) -> None:
    trace = memplan.read_trace(recordings["runs"] / "train.parquet")
    units = Budgeting(trace).least.units.units
    assert any(around.path == "" for around in units)
    assert not any(one.crosses(other) for one in units for other in units)


@pytest.mark.parametrize("name", ["runs", "convolutions", "encoder"])
def test_a_descent_leads_down_by_units_within_units(
    name: str, recordings: dict[str, Path]
) -> None:
    budgeting = Budgeting(memplan.read_trace(recordings[name] / "train.parquet"))
    path = budgeting._lower
    peaks = [each.peak for each in path]
    assert peaks == sorted(peaks, reverse=True)
    assert budgeting.least.peak == peaks[-1]
    known = {each.unit: each for each in budgeting.candidates.found}
    for each in path:
        units = each.units.units
        assert len(set(units)) == len(units)
        assert not any(one.crosses(other) for one in units for other in units)
        chosen = [known[unit] for unit in units]
        assert peak_of(composed(budgeting.recorded, chosen)) == each.peak
        shuffled = composed(budgeting.recorded, chosen[::-1])
        assert peak_of(shuffled) == each.peak
        found = budgeting.within(each.units.budget)
        assert found.cost <= each.cost
        assert found.units.predicted <= each.units.budget - RESERVE


@given(seed=st.integers(0, 1 << 20))
@settings(max_examples=10)
def test_what_else_the_machine_did_is_no_cost(
    seed: int, recordings: dict[str, Path]
) -> None:
    trace = memplan.read_trace(recordings["encoder"] / "train.parquet")
    calls = trace.calls
    assert calls is not None
    recorded = Recorded.of(trace)
    inside = recorded.inside_end - np.arange(len(calls.module))
    times = inside * 1_000_000
    first = np.searchsorted(recorded.lives.bounds, recorded.begin, side="right")
    draw = np.random.default_rng(seed)
    for step in np.unique(first)[:-1]:  # one is undisturbed, which is not known
        hit = int(draw.choice(np.flatnonzero(first == step)))
        while hit >= 0:
            times[hit] += 50_000_000
            hit = int(calls.parent[hit])
    quiet = replace(trace, calls=replace(calls, cost_ns=inside * 1_000_000))
    busy = replace(trace, calls=replace(calls, cost_ns=times))
    one, other = (candidates(Recorded.of(each), (), ()) for each in (quiet, busy))
    assert other.forward == pytest.approx(one.forward)
    costs = {each.unit: each.cost for each in one.found}
    assert {each.unit: each.cost for each in other.found} == pytest.approx(costs)


def test_no_unit_is_cheaper_than_the_proved_choice(recordings: dict[str, Path]) -> None:
    """Against every set of units of which none lies in another."""
    trace = memplan.read_trace(recordings["convolutions"] / "train.parquet")
    budgeting = Budgeting(trace)
    found = budgeting.candidates.found
    budget = (budgeting.least.peak + 3 * budgeting.eager) // 4
    chosen = budgeting.within(budget)
    assert chosen.units.proved
    cheapest = np.inf
    for i, one in enumerate(found):
        for other in [one, *found[i + 1 :]]:
            pair = [one] if other is one else [one, other]
            calls = [set(range(*span.calls)) for each in pair for span in each.spans]
            if len(set().union(*calls)) < sum(map(len, calls)):
                continue
            cost = sum(each.cost for each in pair)
            if cost >= min(cheapest, chosen.cost):
                continue
            made = with_units(budgeting.recorded, [each.unit for each in pair])
            if made.lives.live_bytes.max() <= budget - RESERVE:
                cheapest = cost
    assert chosen.cost <= cheapest


def test_every_buffer_is_freed_once_in_the_trace_to_be(
    recordings: dict[str, Path],
) -> None:
    budgeting = Budgeting(memplan.read_trace(recordings["encoder"] / "train.parquet"))
    before = budgeting.recorded.lives
    after = budgeting.least.recorded.lives
    assert len(after) > len(before)
    unfreed = [(each.end == len(each.events)).sum() for each in (before, after)]
    assert unfreed[0] == unfreed[1]
    # Whatever is not computed again is there as before.
    assert before.steps == after.steps


def test_what_a_budget_may_be(recordings: dict[str, Path]) -> None:
    budgeting = Budgeting(memplan.read_trace(recordings["shared"] / "train.parquet"))
    assert budgeting.bytes_of("4MiB") == 4 * MIB
    assert budgeting.bytes_of("50%") == budgeting.eager // 2
    assert budgeting.bytes_of(17) == 17
    assert budgeting.bytes_of("min") == budgeting.least.units.budget
    with pytest.raises(UsageError, match="not a size"):
        budgeting.bytes_of("much")
    whole = budgeting.within(budgeting.eager)
    assert whole.units.units == ()
    assert whole.units.proved
    with pytest.raises(InfeasibleError, match="the least is") as refusal:
        budgeting.within(budgeting.least.peak - MIB)
    assert refusal.value.peak == budgeting.least.units.budget


def test_modules_that_are_kept(recordings: dict[str, Path]) -> None:
    trace = memplan.read_trace(recordings["encoder"] / "train.parquet")
    kept = Budgeting(trace, ["layers.1"])
    names = [each.unit.name for each in kept.candidates.found]
    assert not [name for name in names if f"{name}.".startswith("layers.1.")]
    assert kept.candidates.excluded["layers.1"] == "it is kept, as you asked"
    assert kept.least.peak > Budgeting(trace).least.peak
    run = Budgeting(trace, ["layers.1 to layers.2"])
    assert run.candidates.excluded.keys() >= {"layers.1", "layers.2"}
    with pytest.raises(UsageError, match="no module of that name"):
        Budgeting(trace, ["layer.1"])


def test_a_trace_that_does_not_say_what_is_saved(recordings: dict[str, Path]) -> None:
    trace = memplan.read_trace(recordings["encoder"] / "train.parquet")
    with pytest.raises(UsageError, match="again with activations=True"):
        memplan.solve(replace(trace, calls=None), budget="min")
    with pytest.raises(UsageError, match="for a recorded trace"):
        memplan.solve(([0], [1], [2]), budget="min")
    with pytest.raises(UsageError, match="for a budget"):
        memplan.solve(trace, keep=["layers.1"])
    with pytest.raises(UsageError, match="at least three steps"):
        Budgeting(_first_step(trace)).candidates  # noqa: B018


def _first_step(trace: Trace) -> Trace:
    end = int(lives_of(trace).bounds[0])
    return replace(trace, events=trace.events.take(slice(0, end)))


STEPS = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    loss = model(torch.randn(256, 64)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

OBSTACLES = """
from torch.utils.checkpoint import checkpoint

def wide():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

class Drawing(nn.Sequential):
    def forward(self, value):
        return super().forward(value) * random.random()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain, self.hooked, self.drawing = wide(), wide(), Drawing(*wide())
        self.again, self.changed = wide(), wide()
        self.hooked[1].register_forward_hook(lambda *_: None)

    def forward(self, value):
        value = self.drawing(self.hooked(self.plain(value)))
        value = checkpoint(self.again, value, use_reentrant=False)
        value = value * 1.5
        found = self.changed(value.detach())
        value += 1.0
        return found + value

model = Net()
"""


def test_why_modules_are_left_out(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of(OBSTACLES + STEPS))
    memplan("record", "--activations", "-q", "-o", "t.parquet", "train.py")
    import memplan as package

    found = candidates(Recorded.of(package.read_trace(tmp_path / "t.parquet")))
    names = {each.unit.name for each in found.found}
    assert "plain" in names
    assert "drawing" in names
    assert not names & {"hooked", "again", "changed"}
    assert found.excluded["hooked"].startswith("hooked.1: it has forward hooks")
    assert found.excluded["changed"] == "a tensor that it is given is changed in place"
    assert not [name for name in names if name.startswith("again")]


UNUSUAL = """
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.made = nn.LazyLinear(64)
        self.normed = nn.LazyBatchNorm1d()
        self.register_buffer("turned", torch.randn(64, dtype=torch.complex64).conj())
        self.register_buffer("sparse", torch.eye(64).to_sparse())
        self.register_buffer("none", torch.empty(0))

    def forward(self, value):
        value = self.normed(torch.tanh(self.made(value)))
        return (value * self.turned).real + torch.sparse.mm(self.sparse, value.t()).t()

model = nn.Sequential(Odd(), Odd())
model(torch.randn(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    slopes = torch.func.jacrev(model[0].made)(torch.randn(64))
    loss = model(torch.randn(256, 64)).square().mean() + slopes.mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""
SHORT = """
for step in range(steps):
    optimizer.zero_grad()
    print(train().hex())
"""


def test_modules_with_unusual_tensors_are_recorded(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script_of(UNUSUAL).split("\nfor ")[0] + SHORT)
    done = memplan("record", "--activations", "-q", "-o", "t.parquet", "train.py")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6
    solved = memplan("solve", "t.parquet", "--budget", "min", "--method", "bestfit")
    assert solved.returncode == 0, solved.stderr
    assert memplan("apply", "-q", "t.plan.json", "train.py").stdout == done.stdout


SCRIPTED = """
def part():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

model = nn.Sequential(
    part(), torch.jit.trace(part(), torch.randn(4, 64)), torch.jit.script(part()),
    part(), nn.Linear(64, 1),
)
"""


def test_modules_that_are_traced_and_scripted(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import warnings\nwarnings.simplefilter('ignore')\n"
        + script_of(SCRIPTED + STEPS)
    )
    done = memplan("record", "--activations", "-q", "-o", "t.parquet", "train.py")
    assert done.returncode == 0, done.stderr
    solved = memplan("solve", "t.parquet", "--budget", "min", "--method", "bestfit")
    assert solved.returncode == 0, solved.stderr
    assert memplan("apply", "-q", "t.plan.json", "train.py").stdout == done.stdout


def test_a_budget_that_needs_nothing_is_watched_too(
    memplan: Run, tmp_path: Path
) -> None:
    longer = ENCODER.replace("torch.randn(4, 64", "torch.randn(4 + 4 * (step == 5), 64")
    (tmp_path / "train.py").write_text(script_of(longer))
    memplan("record", "-q", "--activations", "-o", "t.parquet", "train.py", "5")
    memplan("solve", "-q", "t.parquet", "--budget", "100%", "--method", "bestfit")
    done = memplan("apply", "t.plan.json", "train.py", "5")
    assert "at the most\n" in done.stderr
    assert "recomputed" not in done.stderr
    done = memplan("apply", "t.plan.json", "train.py", "6")
    assert "at the most, more than the budget" in done.stderr


def test_commands(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of(ENCODER))
    recorded = memplan("record", "--activations", "-o", "t.parquet", "train.py")
    assert "solve t.parquet --curve" in recorded.stderr
    solved = memplan("solve", "t.parquet", "--budget", "80%", "--method", "bestfit")
    assert solved.returncode == 0, solved.stderr
    assert "budget " in solved.stdout
    assert "of the forward pass" in solved.stdout
    plan = read_plan(tmp_path / "t.plan.json")
    assert plan.recompute is not None
    applied = memplan("apply", "t.plan.json", "train.py")
    count = len(plan.recompute.units)
    assert f"{count} unit{'s' * (count > 1)}: " in applied.stderr
    told = memplan("solve", "t.parquet", "--budget", "80%", "--json", "--force")
    entries = json.loads(told.stdout)["budget"]
    assert entries["units"] == [each.name for each in plan.recompute.units]
    assert entries["excluded"] == {}
    impossible = memplan("solve", "t.parquet", "--budget", "1MiB", "--force")
    assert impossible.returncode == 4
    assert "the least is" in impossible.stderr
    curve = memplan("solve", "t.parquet", "--curve", "-o", "curve.svg")
    assert curve.returncode == 0, curve.stderr
    assert "recomputed" in curve.stdout
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    points = json.loads(memplan("solve", "t.parquet", "--curve", "--json").stdout)
    assert points["timed"]
    assert points["points"][0]["recomputed"] == 0.0


def test_options_without_effect(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id,lower,upper,size\n0,0,1,64\n")
    for words, what in {
        ("--keep", "a"): "--keep is for --budget or --curve",
        ("--curve", "--budget", "1MiB"): "--budget is not for --curve",
        ("--curve", "--capacity", "1MiB"): "--capacity is not for --curve",
        ("--budget", "1MiB"): "for a recorded trace",
        ("--curve",): "for a recorded trace",
    }.items():
        done = memplan("solve", "x.csv", *words)
        assert (done.returncode, what in done.stderr) == (2, True), done.stderr


def test_under_fake_tensors(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of(CONVOLUTIONS))
    words = ("record", "-q", "--activations", "-o", "t.parquet", "--device", "fake")
    done = memplan(*words, "train.py")
    assert done.returncode == 0, done.stderr
    told = memplan("solve", "t.parquet", "--curve")
    assert "has no times" in told.stdout
    solved = memplan("solve", "t.parquet", "--budget", "min", "--method", "bestfit")
    assert solved.returncode == 0, solved.stderr
    plain = memplan("apply", "-q", "t.plan.json", "train.py")
    assert plain.stdout


def test_plan_files(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of(CONVOLUTIONS))
    memplan("record", "-q", "--activations", "-o", "t.parquet", "train.py")
    memplan("solve", "t.parquet", "--budget", "min", "--method", "bestfit")
    import memplan as package

    plan = package.read_plan(tmp_path / "t.plan.json")
    package.write_plan(plan, tmp_path / "again.plan.parquet")
    assert (
        package.read_plan(tmp_path / "again.plan.parquet").recompute == plan.recompute
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({"root": 7}, "there is no such root"),
        ({"first": 3, "last": 2}, "must be greater than first"),
        ({"path": 1}, "must be text"),
    ]
    part = plan.recompute
    assert part is not None
    first = replace(part.units[0], path="", first=2, last=4)
    rows: list[tuple[tuple[Any, ...], str]] = [
        ((replace(part.units[0], **changes),), what) for changes, what in cases
    ]
    rows += [
        ((first, first), "as a unit before it"),
        ((first, replace(first, first=1, last=3)), "crosses 2 to 3"),
    ]
    for units, what in rows:
        other = replace(plan, recompute=replace(part, units=units))
        package.write_plan(other, tmp_path / "other.json", force=True)
        done = memplan("verify", "other.json")
        assert (done.returncode, what in done.stderr) == (3, True), done.stderr
