"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from memplan import cli
from tests.warm import WarmProcess, at_start

# No test is late, however busy the machine is.
settings.register_profile(
    "memplan", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("memplan")

# A shell that runs us in the background may have us ignore Ctrl-C, and our children
# would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was loaded for all tests is left alone by the collector, and by recordings,
    which look through all of its objects."""
    gc.collect()
    gc.freeze()


# Of tests with a Ray cluster: what Ray itself leaves open and calls outdated.
RAYS_OWN_WARNINGS = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)

ROOT = Path(__file__).parent.parent
Run = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]
Python = Callable[..., str]

# A small program with everything a training loop has: weights, momentum, gradients
# dropped and made anew, a batch that is rebound, a list that grows.
TRAINING = """\
import sys
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8
width = int(sys.argv[2]) if len(sys.argv) > 2 else 64
model = torch.nn.Sequential(
    torch.nn.Linear(width, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for step in range(steps):
    batch = torch.randn(32, width)
    loss = torch.nn.functional.cross_entropy(model(batch), torch.arange(32) % 10)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.detach().clone())
print([float(x).hex() for x in history])
"""


def environment() -> dict[str, str]:
    """Of a process that runs memplan from this tree."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcess]:
    """Runs `python ARGS` in processes that need not load torch."""
    process = WarmProcess(environment())
    yield process
    process.close()


@pytest.fixture
def memplan(tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """Runs `memplan ARGS` in an empty folder, as a user would.

    cold: in a process that starts from nothing, which takes seconds.
    """

    def run(
        *arguments: str | Path,
        timeout: float = 900,
        cold: bool = False,
        **options: object,
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "memplan", *map(str, arguments)]
        own = environment()
        if not (cold or options):
            warm: WarmProcess = request.getfixturevalue("warm")
            if at_start(own) == warm.at_start:
                return warm.run(command[1:], tmp_path, own, timeout)
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=own,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **options,  # type: ignore[call-overload]
        )

    return run


@pytest.fixture
def python(warm: WarmProcess, tmp_path: Path) -> Python:
    """Runs `python ARGS` in an empty folder; what it prints."""

    def run(*arguments: str) -> str:
        done = warm.run(arguments, tmp_path, environment())
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Command:
    """Runs `memplan ARGS` in an empty folder, but in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["memplan", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        heard = capfd.readouterr()
        assert isinstance(stop.value.code, int)
        return Said(stop.value.code, heard.out, heard.err)

    return run


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A training script, alone in its folder."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    return script


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """Of a Ray cluster of two processes, on this machine, for as long as a module."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 100 << 20}
    node |= {"include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()
