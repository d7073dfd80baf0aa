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

from memplan.compiling import bench  # noqa: E402
from memplan.compiling.fuse import fuse  # noqa: E402
from memplan.compiling.module import Compiled, Runner  # noqa: E402
from memplan.compiling.report import Fallback  # noqa: E402
from memplan.compiling.summary import summary  # noqa: E402
from memplan.errors import UsageError  # noqa: E402
from memplan.fusing import decide, kernels  # noqa: E402
from memplan.fusing.options import FuseOptions  # noqa: E402
from memplan.graph.measure import Footprint  # noqa: E402
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
    """Sets the times of the model and the fused one, whatever the machine does."""

    def set_times(first: float, second: float) -> None:
        monkeypatch.setattr(bench, "seconds", lambda *_, **__: [first, second])

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
    again = called(model_of(), x).programs()[0]
    kept = [each.runner.schedule.joined.kernels for each in (first, again)]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    "found", [{}, {"plan": 3}, ["direct"], ["no", "onednn"], [3, 1], 0]
)
def test_a_damaged_decision_is_none(no_decisions: Path, found: Any) -> None:
    model, x = model_of(), torch.randn(3, 3, 12, 12)
    options = FuseOptions(measure=False, kernels=("direct",))
    wanted = ["direct", "direct"]
    called(model, x, options)
    (path,) = no_decisions.glob("*.json")
    for text in (json.dumps(found).encode(), b"{"):
        Cache().write(path.stem, ".json", text)
        (again,) = called(model_of(), x, options).programs()
        assert list(again.runner.schedule.joined.kernels.values()) == wanted
        assert json.loads(Cache().read(path.stem, ".json")) == wanted


def test_what_takes_longer_is_given_up(no_decisions: Path, times: Times) -> None:
    # Times of its own: on a busy machine a small model takes as long as anything.
    times(1.0, 3.0)
    with pytest.warns(UserWarning, match="3.00 times as long; the limit is 0.98"):
        ready = called(model_of(), torch.randn(1, 3, 8, 8), FuseOptions())
    assert isinstance(ready.programs()[0], Fallback)
    assert ready._arenas.bytes == 0


def test_what_takes_more_memory_is_given_up(
    no_decisions: Path, monkeypatch: pytest.MonkeyPatch, times: Times
) -> None:
    x = torch.randn(1, 3, 8, 8)
    times(3.0, 1.0)
    for most in (FuseOptions().memory, 1.0 + (1 << 21)):
        peaks = iter([1 << 10])

        def found(run: Callable[[], Any], peaks: Any = peaks) -> Footprint:
            run()
            return Footprint(next(peaks, 1 << 30), 1)

        monkeypatch.setattr(bench, "footprint", found)
        if most < 2:
            with pytest.warns(UserWarning, match="of memory, the model needs 1.0 KiB"):
                called(model_of(8), x, FuseOptions(memory=most))
        else:
            (program,) = called(model_of(8), x, FuseOptions(memory=most)).programs()
            assert isinstance(program, Compiled)


def test_limits_of_memory_are_numbers() -> None:
    with pytest.raises(UsageError, match="memory is at least 0"):
        FuseOptions(memory=float("nan"))


def test_a_model_is_not_compiled_while_a_profiler_runs(
    no_decisions: Path, times: Times
) -> None:
    times(2.0, 1.0)
    model, x = model_of(8), torch.randn(1, 3, 8, 8)
    ready = fuse(model, FuseOptions())
    with torch.profiler.profile(), torch.no_grad():
        ready(x)
    assert not ready.programs()
    with torch.no_grad():
        ready(x)
    assert isinstance(ready.programs()[0], Compiled)


def test_a_fused_model_takes_no_more_memory() -> None:
    from memplan.graph.measure import activation_peak

    model, x = model_of(16), torch.randn(2, 3, 64, 64)
    ready = called(model, x, FuseOptions(measure=False, kernels=("direct",)))
    with torch.no_grad():
        theirs = activation_peak(lambda: ready(x)) + ready._arenas.bytes
        conversion = x.numel() * 4
        assert theirs - conversion <= activation_peak(lambda: model(x))


def test_results_that_differ_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Runner.__call__

    def off(self: Runner, inputs: Any) -> Any:
        return plain(self, inputs) * 1.001

    monkeypatch.setattr(Runner, "__call__", off)
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
    with pytest.warns(
        UserWarning, match="torch runs all layers|no supported layers|none of its"
    ):
        ready = called(model, x)
    if kind == "convolutions":
        assert isinstance(ready.programs()[0], Compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", "memplan.fuse: .*(no supported layers|none of its layers)"
        )
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
    assert list(program.runner.schedule.joined.kernels.values()) == ["direct"]
    (part,) = summary(ready).parts
    assert not part.running
    reasons = {each.reason for each in part.layers if each.became == "torch"}
    assert reasons == {"no kernel was compiled"}
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
