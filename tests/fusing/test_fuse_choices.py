"""What is chosen, kept and given up: kernels by time, decisions, compilers, memory."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from memplan.errors import UsageError  # noqa: E402
from memplan.fusing import compiler, kernels  # noqa: E402
from memplan.fusing.engine import decide  # noqa: E402
from memplan.fusing.engine.engine import Engine  # noqa: E402
from memplan.fusing.fuse import fuse  # noqa: E402
from memplan.fusing.options import FuseOptions  # noqa: E402
from memplan.fusing.prepared import Fallback, Prepared  # noqa: E402
from memplan.fusing.summary import summary  # noqa: E402
from memplan.toolchain.cache import Cache  # noqa: E402

FORCED = FuseOptions(measure=False)


def packaged() -> bool:
    built = {**kernels.headers("conv_"), **kernels.headers("tape")}
    return kernels.package_library("native", built) is not None


@pytest.fixture
def no_decisions(
    kernel_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder of kernels of this test's own, without what was decided before."""
    own = tmp_path / "kernels"
    own.mkdir(mode=0o700)
    for each in kernel_cache.iterdir():
        if each.is_file() and each.suffix != ".json":
            shutil.copy2(each, own)
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(own))
    return own


Times = Callable[[float, float], None]


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    """Sets the times of two runs that are compared, whatever the machine does."""

    def set_times(first: float, second: float) -> None:
        monkeypatch.setattr(compiler, "seconds", lambda *_, **__: [first, second])

    return set_times


def model_of(width: int = 4) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(2), nn.Sigmoid(), nn.Conv2d(width, 3, 1),
    ).eval()  # fmt: skip


def called(model: Any, x: Any, options: FuseOptions = FORCED) -> Any:
    ready = fuse(model, options)
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x), rtol=1e-5, atol=1e-5)
    return ready


def test_what_was_decided_is_kept(
    no_decisions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = model_of(), torch.randn(3, 3, 12, 12)
    first = called(model, x).programs()[0]
    assert len(list(no_decisions.glob("*.json"))) == 1

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("it is known by now")

    monkeypatch.setattr(decide, "fastest", never)
    monkeypatch.setattr(compiler, "seconds", never)
    again = called(model_of(), x).programs()[0]
    assert again.engine.kernels == first.engine.kernels
    assert again.engine.batch == first.engine.batch


@pytest.mark.parametrize(
    "found", [[], {"plan": 3}, [["direct", "onednn"], 0], [["no", "onednn"], 1], [3, 1]]
)
def test_a_damaged_decision_is_none(no_decisions: Path, found: Any) -> None:
    model, x = model_of(), torch.randn(3, 3, 12, 12)
    options = FuseOptions(measure=False, kernels=("direct",), micro_batch=2)
    called(model, x, options)
    (path,) = no_decisions.glob("*.json")
    Cache().write(path.stem, ".json", json.dumps(found).encode())
    (again,) = called(model_of(), x, options).programs()
    assert again.engine.plan == (("direct", "direct"), 2)
    assert json.loads(Cache().read(path.stem, ".json")) == [["direct", "direct"], 2]
    path.write_bytes(b"{")
    (again,) = called(model_of(), x, options).programs()
    assert again.engine.plan == (("direct", "direct"), 2)


def test_what_takes_longer_is_given_up_for_good(
    no_decisions: Path, times: Times
) -> None:
    # Times of its own: on a busy machine a small model takes as long as anything.
    times(3.0, 1.0)
    x = torch.randn(1, 3, 8, 8)
    for reason in ("3.00 times as long", "by an earlier measurement"):
        with pytest.warns(UserWarning, match=reason):
            ready = called(model_of(), x, FuseOptions())
        assert isinstance(ready.programs()[0], Fallback)
        assert ready._arena_pool.bytes == 0


def test_what_takes_more_memory_is_given_up(
    no_decisions: Path, monkeypatch: pytest.MonkeyPatch, times: Times
) -> None:
    x = torch.randn(1, 3, 8, 8)
    for most in (FuseOptions().memory, 1.0 + (1 << 21)):
        peaks = iter([1 << 10])

        def peak(run: Callable[[], Any], _: str, peaks: Any = peaks) -> int:
            run()
            return next(peaks, 1 << 30)

        monkeypatch.setattr(compiler, "activation_peak", peak)
        if most < 2:
            with pytest.warns(UserWarning, match="times the memory"):
                called(model_of(8), x, FuseOptions(memory=most))
        else:
            times(1.0, 3.0)
            (program,) = called(model_of(8), x, FuseOptions(memory=most)).programs()
            assert isinstance(program, Prepared)


def test_limits_of_memory_are_numbers() -> None:
    with pytest.raises(UsageError, match="memory is at least 0"):
        FuseOptions(memory=float("nan"))


def test_a_model_is_not_compiled_while_a_profiler_runs(
    no_decisions: Path, times: Times
) -> None:
    times(1.0, 2.0)
    model, x = model_of(8), torch.randn(1, 3, 8, 8)
    ready = fuse(model, FuseOptions())
    with torch.profiler.profile(), torch.no_grad():
        ready(x)
    assert not ready.programs()
    with torch.no_grad():
        ready(x)
    assert isinstance(ready.programs()[0], Prepared)


def test_a_fused_model_takes_no_more_memory() -> None:
    from memplan.graph.measure import activation_peak

    model, x = model_of(16), torch.randn(2, 3, 64, 64)
    ready = called(model, x, FuseOptions(measure=False, kernels=("direct",)))
    with torch.no_grad():
        theirs = activation_peak(lambda: ready(x)) + ready._arena_pool.bytes
        conversion = x.numel() * 4
        assert theirs - conversion <= activation_peak(lambda: model(x))


def test_results_that_differ_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Engine.run
    monkeypatch.setattr(
        Engine, "run", lambda self, inputs: [x * 1.001 for x in plain(self, inputs)]
    )
    with pytest.warns(UserWarning, match="results differ by 1.0e-03"):
        called(model_of(5), torch.randn(1, 3, 8, 8))


@pytest.fixture
def warned_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "_told", set())


@pytest.fixture(params=["none", "fails"])
def no_compiler(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = request.param
    script = tmp_path / "c++"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && echo odd && exit\nexit 1\n')
    script.chmod(0o700)
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(script) if compiler == "fails" else "")
    monkeypatch.setenv("PATH", str(tmp_path) if compiler == "fails" else "")


def models() -> dict[str, Any]:
    return {
        "convolutions": model_of(),
        "stacks": nn.Sequential(nn.ReLU(), nn.AvgPool2d(2), nn.Sigmoid()).eval(),
        "cats": Cats().eval(),
    }


@pytest.mark.parametrize("kind", ["convolutions", "stacks", "cats"])
@pytest.mark.usefixtures("warned_of_nothing", "no_compiler")
def test_without_kernels_torch_runs_the_layers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "folders", lambda: (tmp_path,))
    model, x = models()[kind], torch.randn(2, 3, 8, 8)
    with pytest.warns(UserWarning, match="torch runs all layers"):
        ready = called(model, x)
    assert isinstance(ready.programs()[0], Prepared)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        called(model, torch.randn(3, 3, 8, 8))
    assert not list((tmp_path / "cache").glob("*.json"))


@pytest.mark.skipif(not packaged(), reason="the package was built without kernels")
@pytest.mark.usefixtures("warned_of_nothing", "no_compiler")
def test_without_a_compiler_torch_runs_the_stacks_alone(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.MaxPool2d(2), nn.ELU(0.37)).eval()
    x = torch.randn(2, 3, 8, 8)
    options = FuseOptions(measure=False, kernels=("direct",))
    with pytest.warns(UserWarning, match="torch runs the stacks: ") as told:
        ready = called(model, x, options)
    assert len(told) == 1
    (program,) = ready.programs()
    assert list(program.engine.kernels.values()) == ["direct"]
    assert [run.by for run in summary(ready).parts[0].running] == ["torch"]
    # A compiler that is there later is not kept from the stacks.
    assert not list((tmp_path / "cache").glob("*.json"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        called(model, torch.randn(3, 3, 8, 8), options)
        called(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), x, options)
    assert len(list((tmp_path / "cache").glob("*.json"))) == 1


class Cats(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(11)

    def forward(self, x: Any) -> Any:
        y = torch.cat([self.conv(x), x, torch.relu(self.conv(x))], 1)
        return torch.cat([torch.sigmoid(self.bn(y)), y], 1)


@pytest.mark.usefixtures("warned_of_nothing")
def test_a_cache_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(folder))
    with pytest.warns(UserWarning, match="written to by others") as told:
        called(model_of(), torch.randn(1, 3, 8, 8))

    assert len(told) == 1


def test_options_are_checked() -> None:
    for wrong in (
        {"kernels": ()}, {"kernels": ("fast",)}, {"micro_batch": 0}, {"max_steps": 0},
        {"tolerance": -1.0},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            FuseOptions(**wrong)  # type: ignore[arg-type]
